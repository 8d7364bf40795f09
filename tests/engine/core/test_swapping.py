"""Host memory of a paged pool: who is swapped out comes back with all that was computed."""

from __future__ import annotations

import pytest

from engine.core.allocator import Grant, Reason, Refusal
from engine.core.content import TokenContent
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from tests.engine.core.sharing_steps import forked, prompted, references


def swapping(capacity, host_blocks, **switches):
    return PagedAllocator(capacity, 4, max_model_len=100, host_blocks=host_blocks, **switches)


def test_what_is_shared_goes_to_the_host_once_and_is_shared_again():
    allocator = swapping(12, 3)
    first = prompted(allocator, 10)
    (second,) = forked(allocator, first, 1)
    out = allocator.swap_out([first, second])
    assert len(out.to_host) == 3, "two full blocks and a partly filled one, held by both"
    assert (allocator.stats().num_free, allocator.num_free_host_blocks) == (12, 0)
    assert (first.blocks, second.blocks) == (None, None)
    back = allocator.swap_in([first, second], [11, 11])
    tables = [list(allocator.block_table(made)) for made in (first, second)]
    assert tables[0][:2] == tables[1][:2]
    assert tables[0][2] != tables[1][2], "each writes its last block now"
    assert len(back.to_device) == 4
    assert references(allocator) == {2: 2, 1: 2}
    assert allocator.num_free_host_blocks == 0, "not read yet"
    allocator.settle(back)
    assert allocator.num_free_host_blocks == 3
    allocator.check()


def test_host_memory_that_is_full_refuses_and_keeps_everything():
    allocator = swapping(12, 2)
    first = prompted(allocator, 10)
    table = list(allocator.block_table(first))
    assert allocator.swap_out([first]) == Refusal(Reason.NO_HOST_BLOCKS, 3, 2)
    assert (allocator.block_table(first), allocator.num_free_host_blocks) == (table, 2)
    allocator.check()


def test_device_memory_that_is_full_refuses_a_return_and_keeps_everything():
    allocator = swapping(4, 8)
    first = prompted(allocator, 10)
    allocator.swap_out([first])
    prompted(allocator, 8, name="other")
    assert allocator.swap_in([first], [11]) == Refusal(Reason.NO_FREE_BLOCKS, 3, 2)
    assert (first.blocks, allocator.num_free_host_blocks) == (None, 5)
    allocator.check()


def test_the_watermark_holds_back_a_return_beside_others_only():
    allocator = swapping(7, 8, watermark=0.25)
    first, second = prompted(allocator, 10), prompted(allocator, 12, name="second")
    allocator.swap_out([first])
    assert allocator.swap_in([first], [11], others_running=True) == Refusal(Reason.WATERMARK, 3, 4)
    allocator.free(second)
    assert isinstance(allocator.swap_in([first], [11]), Grant)


def test_a_swap_out_reads_what_is_still_to_be_copied_where_it_comes_from():
    allocator = swapping(6, 6)
    first = prompted(allocator, 6)
    (second,) = forked(allocator, first, 1)
    grant = allocator.extend((first,), (7,))
    ((source, _),) = grant.copies
    out = allocator.swap_out([first])
    assert [device for device, _ in out.to_host] == [1, source]
    allocator.settle(grant)
    assert allocator.block_table(second) == [1, source]
    allocator.check()


def test_what_was_swapped_out_is_findable_and_comes_back_as_a_copy_of_its_own():
    allocator = swapping(12, 4)
    made = Request("r", 9, 50, content=TokenContent(list(range(60))))
    allocator.admit(made, 9)
    made.computed, made.known = 9, 10
    allocator.swap_out([made])
    assert allocator.stats().num_cached_free == 2
    assert allocator.lookup(Request("again", 9, 1, content=TokenContent(list(range(9))))).num_tokens == 8
    allocator.swap_in([made], [10])
    assert allocator.pool.num_cached_keys() == 2
    allocator.check()


@pytest.mark.parametrize("call", ["swap_out", "swap_in"])
def test_whoever_is_not_there_cannot_be_swapped(call):
    allocator = swapping(6, 6)
    stranger = Request("stranger", 4, 1)
    arguments = ([stranger],) if call == "swap_out" else ([stranger], [4])
    with pytest.raises(KeyError, match="stranger"):
        getattr(allocator, call)(*arguments)


def test_host_memory_has_no_negative_size():
    with pytest.raises(ValueError, match="host_blocks"):
        swapping(4, -1)


def wrong_calls():
    """Calls that a caller must not make: (name, call of allocator, a running request, one that is swapped out, one that
    nobody knows)."""
    return {
        "a child twice": lambda pool, runs, away, new: pool.fork(runs, [new, new]),
        "its own child": lambda pool, runs, away, new: pool.fork(runs, [runs]),
        "its own child among others": lambda pool, runs, away, new: pool.fork(runs, [new, runs]),
        "a child in host memory": lambda pool, runs, away, new: pool.fork(runs, [away]),
        "out twice": lambda pool, runs, away, new: pool.swap_out([runs, runs]),
        "in twice": lambda pool, runs, away, new: pool.swap_in([away, away], [11, 11]),
        "in with fewer tokens than computed": lambda pool, runs, away, new: pool.swap_in([away], [3]),
        "in with no tokens": lambda pool, runs, away, new: pool.swap_in([away], [0]),
        "admitted while away": lambda pool, runs, away, new: pool.admit(away, 11),
    }


@pytest.mark.parametrize("wrong", wrong_calls())
def test_a_wrong_call_is_refused_before_anything_changes(wrong):
    allocator = swapping(12, 4)
    runs, away = prompted(allocator, 10), prompted(allocator, 10, name="away")
    allocator.swap_out([away])
    before = allocator.stats(), list(allocator.block_table(runs)), allocator.num_free_host_blocks
    with pytest.raises(ValueError, match=r"twice|swapped out|has computed more"):
        wrong_calls()[wrong](allocator, runs, away, Request("new", 10, 100))
    assert (allocator.stats(), list(allocator.block_table(runs)), allocator.num_free_host_blocks) == before
    allocator.check()
    assert isinstance(allocator.swap_in([away], [11]), Grant)
