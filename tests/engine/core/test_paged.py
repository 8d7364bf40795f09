"""The paged allocator: capacity, watermark and gate, the switches for other systems, and decode runs."""

from __future__ import annotations

import pytest

from engine.core.allocator import NO_HIT, Grant, Reason, Refusal
from engine.core.content import BlockIdContent, TokenContent
from engine.core.decode_set import DecodeSet
from engine.core.request import Request
from tests.engine.core.serving import admit, paged, request, served

# capacity and refusals -------------------------------------------------------------------------------


def test_a_pool_of_one_block_serves_one_request_after_the_other():
    allocator = paged(1)
    first, second = request(range(4)), request(range(10, 14))
    assert admit(allocator, first) == Grant(([1],))
    assert admit(allocator, second) == Refusal(Reason.NO_FREE_BLOCKS, 1, 0)
    allocator.free(first)
    assert admit(allocator, second) == Grant(([1],))


def test_a_partly_filled_last_block_takes_tokens_without_a_new_one():
    allocator = paged(2, 16)
    made = request(range(20))
    assert isinstance(admit(allocator, made), Grant)
    assert allocator.stats().num_free == 0
    assert not any(allocator.extend((made,), (32,)).new_blocks)
    assert allocator.extend((made,), (33,)) == Refusal(Reason.NO_FREE_BLOCKS, 1, 0)


def test_a_pool_without_a_usable_block_cannot_be_made():
    with pytest.raises(ValueError, match="num_blocks=0"):
        paged(0)


def test_a_refused_admission_with_a_hit_changes_nothing():
    allocator = paged(4)
    cached = served(allocator, range(8))
    holder = request(range(100, 104))
    admit(allocator, holder)
    before = allocator.stats(), allocator.pool.free_queue(), allocator.regions().owner.tolist()
    wanted = request([*range(8), *range(50, 58)])
    assert allocator.lookup(wanted).num_tokens == 8
    assert admit(allocator, wanted) == Refusal(Reason.NO_FREE_BLOCKS, 4, 3)
    assert (allocator.stats(), allocator.pool.free_queue(), allocator.regions().owner.tolist()) == before
    assert (wanted.blocks, cached.blocks) == (None, None)


def test_hit_blocks_in_the_free_queue_count_as_needed():
    allocator = paged(3)
    served(allocator, range(8))
    again = request([*range(8), 9, 10, 11, 12, 13])
    assert allocator.lookup(again).num_tokens == 8
    assert admit(allocator, again) == Refusal(Reason.NO_FREE_BLOCKS, 4, 3)


def test_hit_blocks_in_use_are_not_needed_again():
    allocator = paged(3)
    first, second = request(range(8)), request([*range(8), 9])
    admit(allocator, first)
    assert admit(allocator, second) == Grant(([3],), num_computed_tokens=8)
    assert allocator.stats().num_extra_references == 2
    assert allocator.stats().num_extra_slots == 8


def test_an_allocation_cannot_evict_its_own_hit():
    allocator = paged(3)
    served(allocator, range(4))
    served(allocator, range(50, 58))
    assert allocator.pool.free_queue() == [1, 3, 2]
    again = request(range(8))
    assert admit(allocator, again) == Grant(([3],), num_computed_tokens=4)
    assert allocator.block_table(again) == [1, 3]


@pytest.mark.parametrize("num_tokens", [0, 4])
def test_admitting_nothing_new_is_an_error(num_tokens):
    allocator = paged(4)
    served(allocator, range(8))
    again = request(range(8))
    hit = allocator.lookup(again) if num_tokens else NO_HIT
    with pytest.raises(ValueError, match=f"num_tokens={num_tokens}"):
        allocator.admit(again, num_tokens, hit)


def test_unknown_and_repeated_requests_raise():
    allocator, made = paged(4), request(range(4))
    for call in (allocator.free, allocator.block_table):
        with pytest.raises(KeyError, match="holds no blocks"):
            call(made)
    admit(allocator, made)
    with pytest.raises(ValueError, match="admitted already"):
        allocator.admit(made, 4)
    allocator.free(made)
    with pytest.raises(KeyError):
        allocator.free(made)


def test_what_can_never_fit_is_refused_for_ever_and_the_last_token_needs_no_slot():
    allocator = paged(4)
    assert allocator.refuses_forever(request(range(8), 9)) is None
    assert allocator.refuses_forever(request(range(8), 10)) == Refusal(Reason.NEVER, 5, 4)


def test_the_model_length_clips_slots():
    allocator = paged(8, max_model_len=10)
    made = request(range(9))
    admit(allocator, made, whole=500)
    assert allocator.extend((made,), (10,), num_lookahead=20) == Grant([[]])


# watermark and gate ----------------------------------------------------------------------------------


def test_the_watermark_is_a_fraction_of_all_blocks_the_null_block_included():
    assert paged(3, watermark=0.25).watermark_blocks == 1
    assert paged(7, watermark=0.25).watermark_blocks == 2
    assert paged(99, watermark=0.01).watermark_blocks == 1


def test_the_watermark_holds_back_admission_beside_others_only():
    allocator = paged(7, watermark=0.25)
    first, second = request(range(16)), request(range(20, 28))
    assert isinstance(admit(allocator, first), Grant)
    assert admit(allocator, second, others_running=True) == Refusal(Reason.WATERMARK, 2, 3)
    assert isinstance(admit(allocator, second, others_running=False), Grant)
    assert isinstance(allocator.extend((first,), (20,)), Grant), "a running request is never held back"


def test_the_watermark_comes_on_top_of_free_hit_blocks():
    allocator = paged(7, watermark=0.25)
    served(allocator, range(16))
    admit(allocator, request(range(50, 53)))
    again = request(range(17))
    assert allocator.lookup(again).num_tokens == 16
    assert admit(allocator, again, others_running=True) == Refusal(Reason.WATERMARK, 5, 6)


def test_the_full_sequence_gate_refuses_a_first_chunk_that_alone_would_fit():
    allocator = paged(4)
    made = request(range(20))
    assert admit(allocator, made, 4, whole=20) == Refusal(Reason.FULL_SEQUENCE, 5, 4)
    assert admit(allocator, made, 4, whole=0) == Grant(([1],))


def test_refusals_name_the_first_thing_that_is_short():
    allocator = paged(7, watermark=0.25)
    admit(allocator, request(range(100, 104)), others_running=False)
    made = request(range(40))
    reasons = [
        admit(allocator, made, chunk, whole=whole, others_running=True).reason
        for chunk, whole in ((28, 40), (24, 40), (4, 40), (4, 20))
    ]
    expected = [Reason.NO_FREE_BLOCKS, Reason.WATERMARK, Reason.FULL_SEQUENCE, Reason.FULL_SEQUENCE]
    assert reasons == expected


# switches for other systems --------------------------------------------------------------------------


def test_freed_to_back_queues_every_freed_block_behind_all_others():
    allocator = paged(6, freed_to="back")
    made = request(range(9))
    admit(allocator, made)
    allocator.free(made)
    assert allocator.pool.free_queue() == [4, 5, 6, 3, 2, 1]
    assert allocator.stats().num_cached_free == 2, "the tail that holds no content does not count"
    assert allocator.reset_prefix_cache()
    assert allocator.stats().num_cached_free == 0
    admit(allocator, request(range(24)))
    allocator.check()


def test_one_free_each_lets_a_sequence_append_only_while_a_block_is_free():
    allocator = paged(3, one_free_each=True)
    first, second = request(range(5)), request(range(50, 53))
    admit(allocator, first)
    admit(allocator, second)
    assert allocator.extend((first,), (6,)) == Refusal(Reason.NO_FREE_BLOCKS, 1, 0), "needed or not"
    assert allocator.free_run(DecodeSet.of([first], 4), 3) == 0
    allocator.free(second)
    assert isinstance(allocator.extend((first,), (9,)), Grant)


def test_alone_in_the_pool_one_free_each_does_not_apply():
    allocator = paged(2, one_free_each=True)
    made = request(range(5))
    admit(allocator, made)
    assert isinstance(allocator.extend((made,), (8,)), Grant)


@pytest.mark.parametrize("watermark", [-0.1, 1.0])
def test_a_watermark_outside_its_range_is_named(watermark):
    with pytest.raises(ValueError, match="watermark"):
        paged(4, watermark=watermark)


# decode runs -----------------------------------------------------------------------------------------


def decoding_pair(allocator, lengths, content=None):
    """Requests that have computed `lengths` tokens and sampled one more."""
    made = [Request(f"r{index}", length, 1000, content=content) for index, length in enumerate(lengths)]
    for order, one in enumerate(made):
        assert isinstance(allocator.admit(one, one.num_tokens), Grant)
        one.computed, one.known, one.order = one.num_tokens, one.num_tokens + 1, order
    return made


def test_a_run_ends_before_the_step_whose_growth_is_short():
    allocator = paged(6)
    decoding = DecodeSet.of(decoding_pair(allocator, [6, 7]), 4)
    assert allocator.free_run(decoding, 100) == 5, "two blocks for tokens 8, none for token 12 of the second"
    assert allocator.free_run(decoding, 3) == 3
    assert allocator.advance(decoding, 5) == Grant(([5, 6],))
    tables = [allocator.block_table(one) for one in decoding]
    assert tables == [[1, 2, 6], [3, 4, 5]], "in order of steps: the second request grows first"
    assert allocator.stats().num_free == 0


def test_a_run_of_no_requests_is_free():
    assert paged(1).free_run(DecodeSet(4), 10) == 10


def test_a_run_ends_before_it_commits_the_watched_block():
    allocator = paged(9)
    tokens = list(range(20))
    made = request(tokens[:6], 14)
    made.content.tokens[:] = tokens
    allocator.admit(made, 6)
    made.computed, made.known = 6, 7
    watch = TokenContent(tokens).keys(0, 3, 4)[2]
    decoding = DecodeSet.of([made], 4)
    assert allocator.free_run(decoding, 12) == 12
    assert allocator.free_run(decoding, 12, watch) == 5, "tokens 6 to 10; token 11 fills the block"


def test_outputs_that_nobody_shares_are_never_watched():
    allocator = paged(9)
    decoding = DecodeSet.of(decoding_pair(allocator, [6], BlockIdContent([0, 1], 4, 6)), 4)
    assert allocator.free_run(decoding, 12, watch=-1) == 12


def test_a_run_with_unknown_tokens_ends_where_they_would_be_committed():
    allocator = paged(9)
    made = request(range(6))
    allocator.admit(made, 6)
    made.content.tokens.append(6)
    made.computed, made.known = 6, 7
    assert allocator.free_run(DecodeSet.of([made], 4), 12, watch=b"x") == 1
