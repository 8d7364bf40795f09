"""Contiguous allocators: how much they reserve, how they grow, move and refuse; the paper's Orca numbers."""

from __future__ import annotations

import pytest

from engine.core.allocator import Grant, Reason, Refusal
from engine.core.contiguous import LEAVING, ContiguousAllocator
from engine.core.decode_set import DecodeSet
from engine.core.registry import PoolConfig, load_allocator, make_allocator
from engine.core.request import Request
from engine.core.reserve import parse_reserve


def contiguous(capacity, reserve, fit="first-fit", *, size=1, max_model_len=None):
    longest = max_model_len or capacity * size
    return ContiguousAllocator(capacity, size, max_model_len=longest, reserve=reserve, fit=fit)


def request(prompt, limit=4, oracle=None):
    return Request("r", prompt, limit, oracle_output_tokens=oracle)


def admitted(allocator, prompt, **lengths):
    made = request(prompt, **lengths)
    grant = allocator.admit(made, prompt)
    assert isinstance(grant, Grant), grant
    made.computed, made.known = prompt, prompt + 1
    return made


def test_orca_max_holds_the_closed_form_number_of_requests():
    allocator = make_allocator("orca-max", PoolConfig(984, 16, 2048))
    for _ in range(984 // 128):
        admitted(allocator, 100, limit=200)
    assert allocator.admit(request(100, 200), 100) == Refusal(Reason.NO_FREE_BLOCKS, 128, 984 - 7 * 128)
    assert allocator.stats().num_asked_slots == 7 * 2048


@pytest.mark.parametrize(
    "name,asked,blocks",
    [
        ("orca-max", 2048, 128),
        ("orca-pow2", 161 + 32, 16),  # 25 output tokens are estimated as 32
        ("orca-oracle", 161 + 25, 16),
        ("contiguous-limit-buddy", 161 + 300, 32),
        ("contiguous-limit-first-fit", 161 + 300, 29),
        ("contiguous-oracle-best-fit", 161 + 25, 12),
        ("contiguous-chunk(64)-first-fit", 192, 12),
    ],
)
def test_reservations_ask_and_round_as_defined(name, asked, blocks):
    allocator = make_allocator(name, PoolConfig(984, 16, 2048))
    made = admitted(allocator, 161, limit=300, oracle=25)
    assert allocator.stats().num_asked_slots == asked
    assert len(allocator.block_table(made)) == blocks


@pytest.mark.parametrize("output,estimate", [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64)])
def test_pow2_estimates_at_most_twice_the_output(output, estimate):
    rule = parse_reserve("pow2", 16)
    assert rule.ask(request(10, 100, output), 10, 2048) == 10 + estimate


@pytest.mark.parametrize("text", ["max", "limit", "pow2", "oracle", "chunk(48)"])
def test_no_reservation_passes_the_model_length(text):
    assert parse_reserve(text, 16).ask(request(10, 100, 100), 10, 40) == 40


@pytest.mark.parametrize("text", ["chunk(24)", "chunk(0)", "chunk(x)", "chunk", "most", ""])
def test_a_bad_reservation_is_named(text):
    with pytest.raises(ValueError, match="reserve"):
        parse_reserve(text, 16)


def test_a_refusal_tells_external_fragmentation_from_shortage():
    allocator = contiguous(10, "chunk(1)")
    held = [admitted(allocator, 2) for _ in range(5)]
    for made in held[::2]:
        allocator.free(made)
    assert allocator.admit(request(3), 3) == Refusal(Reason.NO_HOLE, 3, 6)
    assert allocator.admit(request(7), 7) == Refusal(Reason.NO_FREE_BLOCKS, 7, 6)
    assert allocator.stats().largest_free_extent == 2


@pytest.mark.parametrize("fit,table", [("first-fit", range(1, 3)), ("best-fit", range(7, 9))])
def test_fits_choose_different_holes(fit, table):
    allocator = contiguous(10, "chunk(1)", fit)
    held = [admitted(allocator, units) for units in (4, 2, 2, 2)]
    for made in (held[0], held[2]):
        allocator.free(made)
    assert allocator.block_table(admitted(allocator, 2)) == table


def test_a_chunk_grows_in_place_where_the_hole_behind_suffices():
    allocator = contiguous(8, "chunk(2)", size=2)
    made = admitted(allocator, 2)
    assert allocator.extend((made,), (3,)) == Grant((range(2, 3),))
    assert allocator.block_table(made) == range(1, 3)
    assert allocator.stats().num_copies == 0


def test_a_chunk_moves_where_it_cannot_grow_and_its_old_extent_waits_for_the_copy():
    allocator = contiguous(8, "chunk(2)")
    mover, neighbour = admitted(allocator, 2), admitted(allocator, 2)
    mover.row, neighbour.row = 0, 1
    grant = allocator.extend((mover,), (3,))
    assert grant == Grant((range(5, 9),), moved=(mover,), copies=[(1, 5), (2, 6)])
    assert allocator.block_table(mover) == range(5, 9)
    assert (allocator.stats().num_copies, allocator.stats().num_free) == (2, 0)
    assert allocator.regions().owner.tolist() == [-4, LEAVING, 1, 0]
    allocator.check()
    allocator.settle(grant)
    assert allocator.stats().num_free == 2
    assert allocator.block_table(admitted(allocator, 2)) == range(1, 3)


def slid():
    """A request of blocks 3 and 4 of six that has grown to five tokens, alone in the pool."""
    allocator = contiguous(6, "chunk(1)")
    squatter, mover = admitted(allocator, 2), admitted(allocator, 2)
    allocator.free(squatter)
    mover.row = 0
    return allocator, mover, allocator.extend((mover,), (5,))


def test_a_chunk_slides_over_its_own_extent_where_no_other_place_is_left():
    allocator, mover, grant = slid()
    assert grant == Grant((range(1, 6),), moved=(mover,), copies=[(3, 1), (4, 2)])
    allocator.settle(grant)
    assert allocator.block_table(mover) == range(1, 6)
    assert allocator.stats().num_free == 1
    allocator.check()


def test_what_a_slide_leaves_waits_for_the_copy():
    allocator = contiguous(8, "chunk(1)")
    squatter, mover, right = admitted(allocator, 3), admitted(allocator, 3), admitted(allocator, 2)
    allocator.free(squatter)
    mover.row, right.row = 0, 1
    grant = allocator.extend((mover,), (4,))
    assert grant == Grant((range(1, 5),), moved=(mover,), copies=[(4, 1), (5, 2), (6, 3)])
    assert allocator.regions().owner.tolist() == [-4, 0, LEAVING, 1]
    allocator.check()
    allocator.settle(grant)
    assert allocator.stats().num_free == 2
    allocator.check()


def test_what_a_slide_still_reads_goes_back_with_its_copies_though_the_request_has_gone():
    allocator, mover, grant = slid()
    allocator.free(mover)
    assert allocator.stats().num_free == 1
    allocator.check()
    allocator.settle(grant)
    assert allocator.stats().num_free == 6
    allocator.check()


def test_a_slide_waits_for_the_copies_of_the_one_before():
    allocator = contiguous(8, "chunk(1)")
    first, second, mover = admitted(allocator, 2), admitted(allocator, 2), admitted(allocator, 3)
    allocator.free(second)
    before = allocator.extend((mover,), (5,))
    assert before.copies == [(5, 3), (6, 4), (7, 5)]
    allocator.free(first)
    mover.computed = 5
    assert allocator.extend((mover,), (7,)) == Refusal(Reason.NO_FREE_BLOCKS, 7, 3)
    allocator.settle(before)
    assert allocator.extend((mover,), (7,)).new_blocks == (range(1, 8),)
    allocator.check()


@pytest.mark.parametrize("capacity", [8, 12])
def test_buddies_slide_to_the_left_within_their_tile(capacity):
    allocator = contiguous(capacity, "chunk(1)", "buddy", max_model_len=8)
    held = [admitted(allocator, 2) for _ in range(capacity // 2)]
    mover = max(held, key=lambda r: r.blocks.start if r.blocks.start < 8 else 0)
    assert mover.blocks == range(7, 9)
    for other in held:
        if other is not mover and other.blocks.start < 8:
            allocator.free(other)
    grant = allocator.extend((mover,), (5,))
    assert (grant.new_blocks, grant.copies) == ((range(1, 9),), [(7, 1), (8, 2)])
    allocator.settle(grant)
    allocator.check()
    allocator.free(mover)
    allocator.check()


def test_old_extents_return_even_if_a_request_moves_to_the_same_place_twice_before_settling():
    allocator = contiguous(10, "chunk(2)")
    mover, left, right = (admitted(allocator, 2) for _ in range(3))
    first = allocator.extend((mover,), (3,))
    allocator.free(mover)
    allocator.free(left)
    assert allocator.admit(mover, 2) == Grant((range(3, 5),))
    second = allocator.extend((mover,), (3,))
    assert first.new_blocks == second.new_blocks == (range(7, 11),)
    for grant in (first, second):
        allocator.settle(grant)
    allocator.free(mover)
    allocator.free(right)
    assert allocator.stats().num_free == 10
    allocator.check()


def test_a_move_with_nothing_computed_copies_nothing_and_frees_at_once():
    allocator = contiguous(8, "chunk(2)")
    mover = request(2)
    allocator.admit(mover, 2)
    admitted(allocator, 2)
    grant = allocator.extend((mover,), (3,))
    assert (grant.moved, grant.copies) == ((mover,), [])
    assert allocator.stats().num_free == 2


def test_a_chunk_is_refused_where_it_can_neither_grow_nor_move():
    allocator = contiguous(6, "chunk(2)")
    stuck, _ = admitted(allocator, 2), admitted(allocator, 2)
    assert allocator.extend((stuck,), (3,)) == Refusal(Reason.NO_FREE_BLOCKS, 4, 2)
    assert allocator.block_table(stuck) == range(1, 3)


def test_several_requests_grow_at_once_only_if_all_have_the_room():
    allocator = contiguous(12, "chunk(4)")
    pair = admitted(allocator, 2), admitted(allocator, 3)
    assert allocator.extend(pair, (4, 4)) == Grant([(), ()])
    assert isinstance(allocator.extend(pair, (4, 5)), Refusal)


def test_rounded_up_room_does_not_shift_the_steps_at_which_a_chunk_grows():
    """Three tokens are asked for and four granted: the next chunk is asked for at three all the same."""
    allocator = contiguous(16, "chunk(3)", "buddy")
    made = admitted(allocator, 3)
    assert len(allocator.block_table(made)) == 4
    assert allocator.free_run(DecodeSet.of([made], 3), 5) == 0


def test_a_chunk_in_rounded_up_room_asks_for_all_of_its_chunk():
    allocator = contiguous(16, "chunk(3)", "buddy")
    made = admitted(allocator, 3)
    assert isinstance(allocator.extend((made,), (4,)), Grant)
    assert allocator.stats().num_asked_slots == 6
    assert len(allocator.block_table(made)) == 8


def test_reservations_that_never_grow_run_freely():
    allocator = contiguous(16, "limit")
    made = admitted(allocator, 3, limit=9)
    assert allocator.growth_tokens == 0
    decoding = DecodeSet.of([made], allocator.growth_tokens)
    assert allocator.free_run(decoding, 8) == 8
    assert allocator.advance(decoding, 8) == Grant()


def test_look_ahead_stops_at_the_model_length():
    allocator = contiguous(8, "max", max_model_len=4)
    made = admitted(allocator, 3)
    assert allocator.extend((made,), (4,), num_lookahead=3) == Grant([()])


@pytest.mark.parametrize(
    "name,prompt,limit,needed,largest",
    [
        ("orca-max", 1, 1, 16, 8),  # 12 blocks tile as 8 + 4
        ("contiguous-max-first-fit", 1, 1, 16, 12),
        ("contiguous-limit-first-fit", 8, 5, 13, 12),
        ("contiguous-limit-buddy", 8, 1, 16, 8),
    ],
)
def test_what_the_empty_pool_cannot_hold_is_refused_for_ever(name, prompt, limit, needed, largest):
    allocator = make_allocator(name, PoolConfig(12, 1, 16))
    assert allocator.refuses_forever(request(prompt, limit)) == Refusal(Reason.NEVER, needed, largest)


def test_contiguous_memory_shares_nothing():
    allocator = contiguous(8, "limit")
    assert allocator.lookup(request(4)).num_tokens == 0
    assert allocator.stats().num_extra_references == 0


def test_names_that_make_no_allocator_are_explained():
    pool = PoolConfig(8, 1, 8)
    with pytest.raises(ValueError, match="did you mean 'orca-max'"):
        make_allocator("orca-mx", pool)
    with pytest.raises(ValueError, match="unknown reserve 'most'"):
        make_allocator("contiguous-most-buddy", pool)
    with pytest.raises(ValueError, match="importable"):
        load_allocator("engine.core.nowhere:Nothing")
    with pytest.raises(ValueError, match="whole, positive sizes"):
        make_allocator("paged", PoolConfig(0, 1, 8))


def test_pow2_keeps_a_power_of_two():
    assert parse_reserve("pow2", 16).ask(request(10, 100, 32), 10, 2048) == 42
