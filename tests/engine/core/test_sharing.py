"""Forks and copy-on-write: the paper's examples, block by block, and what each action promises."""

from __future__ import annotations

import pytest

from engine.core.allocator import LEAVING, Grant, Reason, Refusal
from engine.core.content import TokenContent
from engine.core.contiguous import ContiguousAllocator
from engine.core.decode_set import DecodeSet
from engine.core.group import in_group
from engine.core.request import Request
from tests.engine.core.serving import paged
from tests.engine.core.sharing_steps import begin, compute, forked, logical_and_physical, prompted, references

# parallel sampling ----------------------------------------------------------------------------------------------------


def test_three_samples_of_48_tokens_share_three_blocks_and_copy_none():
    allocator = paged(20, 16)
    leader = prompted(allocator, 48)
    samples = [leader, *forked(allocator, leader, 2)]
    assert references(allocator) == {3: 3}
    assert logical_and_physical(allocator) == (9, 3)
    assert not any(compute(allocator, sample, 49).copies for sample in samples)
    assert logical_and_physical(allocator) == (12, 6)
    assert references(allocator) == {3: 3, 1: 3}
    assert allocator.stats().num_copies == 0
    allocator.check()


def test_three_samples_of_50_tokens_copy_twice_and_the_third_writes_in_place():
    allocator = paged(20, 16)
    leader = prompted(allocator, 50)
    samples = [leader, *forked(allocator, leader, 2)]
    assert logical_and_physical(allocator) == (12, 4)
    assert allocator.stats().num_extra_slots == 2 * 50
    tail = allocator.block_table(leader)[3]
    grants = [compute(allocator, sample, 51) for sample in samples]
    assert [len(grant.copies) for grant in grants] == [1, 1, 0]
    assert {source for grant in grants for source, _ in grant.copies} == {tail}
    assert [grant.moved for grant in grants] == [[samples[0]], [samples[1]], ()]
    assert allocator.block_table(samples[2])[3] == tail
    assert logical_and_physical(allocator) == (12, 6)
    assert allocator.stats().num_extra_slots == 2 * 48
    allocator.check()


def test_all_three_may_write_in_one_call():
    allocator = paged(6, 16)
    leader = prompted(allocator, 50)
    samples = [leader, *forked(allocator, leader, 2)]
    tail = allocator.block_table(leader)[3]
    grant = allocator.extend(samples, [51] * 3)
    assert grant.copies == [(tail, 5), (tail, 6)]
    assert grant.moved == samples[:2]
    allocator.check()


def test_copies_that_do_not_fit_are_refused_and_change_nothing():
    allocator = paged(5, 16)
    leader = prompted(allocator, 50)
    samples = [leader, *forked(allocator, leader, 2)]
    before = allocator.stats(), [list(allocator.block_table(sample)) for sample in samples]
    assert allocator.extend(samples, [51] * 3) == Refusal(Reason.NO_FREE_BLOCKS, 2, 1)
    assert (allocator.stats(), [list(allocator.block_table(sample)) for sample in samples]) == before
    compute(allocator, leader, 51)
    assert allocator.extend((samples[1],), (51,)) == Refusal(Reason.NO_FREE_BLOCKS, 1, 0)


def test_figure_8_two_samples_of_seven_tokens_in_blocks_of_four():
    """Block 1 of the prompt has two owners; the first one that writes gets a copy, the second one the block."""
    allocator = paged(9)
    first = prompted(allocator, 7)
    (second,) = forked(allocator, first, 1)
    shared = list(allocator.block_table(first))
    assert references(allocator) == {2: 2}
    grant = compute(allocator, first, 8)
    assert grant.copies == [(shared[1], allocator.block_table(first)[1])]
    assert references(allocator) == {2: 1, 1: 2}
    assert not compute(allocator, second, 8).copies
    assert allocator.block_table(second) == shared
    assert logical_and_physical(allocator) == (4, 3)


def test_a_sample_that_ends_leaves_the_tail_to_the_other():
    allocator = paged(9)
    first = prompted(allocator, 6)
    (second,) = forked(allocator, first, 1)
    allocator.free(first)
    assert not compute(allocator, second, 7).copies
    allocator.free(second)
    assert allocator.stats().num_free == 9
    allocator.check()


def test_a_second_to_last_owner_still_copies():
    allocator = paged(9)
    first = prompted(allocator, 6)
    second, third = forked(allocator, first, 2)
    allocator.free(first)
    assert len(compute(allocator, second, 7).copies) == 1
    assert not compute(allocator, third, 7).copies


def test_the_source_of_a_copy_without_an_owner_waits_for_the_copy():
    allocator = paged(4)
    first = prompted(allocator, 6)
    (second,) = forked(allocator, first, 1)
    grant = allocator.extend((first,), (7,))
    ((source, target),) = grant.copies
    allocator.free(second)
    assert allocator.stats().num_free == 1, "the last owner is gone, the copy is not made"
    assert allocator.regions().owner.tolist() == [-4, 0, LEAVING, 0, -1]
    allocator.check()
    assert allocator.pool.take(1) == [4]
    allocator.pool.release([4])
    allocator.settle(grant)
    assert allocator.pool.free_queue()[0] == source
    assert target in allocator.block_table(first)


def test_a_source_that_was_filled_meanwhile_is_kept_with_what_is_cached():
    allocator = paged(4, 2)
    first = Request("r", 3, 50, content=TokenContent(list(range(9))))
    allocator.admit(first, 3)
    first.computed, first.known = 3, 4
    (second,) = forked(allocator, first, 1)
    second.content.tokens += range(50, 60)
    grant = allocator.extend((first, second), (3, 4))
    ((source, _),) = grant.copies
    second.computed = 4
    allocator.free(second)
    allocator.settle(grant)
    allocator.check()
    assert allocator.pool.free_queue() == [4, source]


def test_no_run_of_steps_while_a_partly_filled_block_is_shared():
    allocator = paged(30)
    first = prompted(allocator, 6)
    (second,) = forked(allocator, first, 1)
    decoding = DecodeSet.of([first, second], 4)
    assert (allocator.shares_tails, allocator.free_run(decoding, 10)) == (True, 0)
    for made in (first, second):
        decoding.remove(made)
        compute(allocator, made, 7)
    assert (allocator.shares_tails, allocator.free_run(DecodeSet.of([first, second], 4), 10)) == (False, 10)


@pytest.mark.parametrize("num_tokens", [-4, 1, 5, 7, 8])
def test_a_fork_inside_what_is_computed_ends_with_a_full_block(num_tokens):
    allocator = paged(9)
    parent, child = prompted(allocator, 6), Request("c", 6, 1)
    with pytest.raises(ValueError, match=f"at 6 tokens or at the end of a full block, not at {num_tokens}"):
        allocator.fork(parent, [child], num_tokens)
    assert (child.blocks, allocator.stats().num_extra_references) == (None, 0)


def test_children_find_and_commit_no_block_twice():
    """Full blocks of the parent are in the cache; a child goes on behind them."""
    allocator = paged(9, record_events=True)
    leader = Request("r", 8, 50, content=TokenContent([*range(8), *range(50, 60)]))
    allocator.admit(leader, 8)
    leader.computed, leader.known = 8, 9
    (child,) = forked(allocator, leader, 1)
    child.content.tokens += range(70, 80)
    for made in (leader, child):
        compute(allocator, made, 12)
    stored = [event.block_id for event in allocator.pool.events]
    assert stored == [1, 2, 3, 4]
    assert allocator.pool.num_stored == 4


# beam search ----------------------------------------------------------------------------------------------------------


def test_figure_9_four_beams_of_four_blocks():
    """Blocks 0 to 8 before the step; 2, 4, 5 and 8 are freed by it, 9 to 12 allocated, and nothing is copied."""
    allocator = paged(30, enable_caching=False)
    beams = [prompted(allocator, 4)]
    (last,) = forked(allocator, beams[0], 1)
    for beam in (beams[0], last):
        compute(allocator, beam, 12)
    beams += [*forked(allocator, beams[0], 2), last]
    for beam in beams[:3]:
        compute(allocator, beam, 16)
    compute(allocator, last, 16)
    assert references(allocator) == {4: 1, 3: 2, 1: 6}
    assert logical_and_physical(allocator) == (16, 9)
    ends = [allocator.block_table(beam)[3] for beam in beams]
    dying = {ends[0], *allocator.block_table(last)[1:]}
    allocator.fork(beams[1], [beams[0]])
    allocator.fork(beams[2], [beams[3]])
    for parent, child in ((beams[1], beams[0]), (beams[2], beams[3])):
        begin(parent, child)
    assert {b for b, count in enumerate(allocator.pool.ref_cnts()) if b and not count and b in dying} == dying
    assert references(allocator) == {4: 3, 2: 2}
    for beam in beams:
        assert len(compute(allocator, beam, 17).new_blocks[0]) == 1
    assert references(allocator) == {4: 3, 2: 2, 1: 4}
    assert logical_and_physical(allocator) == (20, 9)
    assert allocator.stats().num_copies == 0
    allocator.check()


def test_a_beam_dies_in_its_place_and_gives_its_tail_back_at_once():
    allocator = paged(4)
    survivor = prompted(allocator, 6)
    (dead,) = forked(allocator, survivor, 1)
    for beam in (survivor, dead):
        compute(allocator, beam, 7)
    assert allocator.stats().num_free == 1
    allocator.fork(survivor, [dead])
    begin(survivor, dead)
    assert allocator.stats().num_free == 2
    assert allocator.block_table(dead) == allocator.block_table(survivor)
    assert allocator.stats().num_extra_slots == 7
    allocator.check()


# contiguous memory ----------------------------------------------------------------------------------------------------


def contiguous(capacity, size=4, reserve="max", max_model_len=16):
    return ContiguousAllocator(capacity, size, max_model_len=max_model_len, reserve=reserve)


def test_contiguous_groups_reserve_for_each_member_and_copy_the_prompt():
    allocator = contiguous(12)
    leader = in_group(Request("r", 6, 4), 3)
    assert isinstance(allocator.admit(leader, 6), Grant)
    leader.computed, leader.known = 6, 7
    first, second, third = leader.group.members
    tables = [allocator.block_table(member) for member in leader.group.members]
    assert tables == [range(1, 5), range(5, 9), range(9, 13)]
    grant = allocator.fork(first, [second, third])
    assert grant == Grant([(), ()], copies=[(1, 5), (2, 6), (1, 9), (2, 10)])
    assert allocator.stats().num_copies == 4
    assert allocator.stats().num_extra_references == 0


def test_a_contiguous_group_is_refused_whole():
    allocator = contiguous(8)
    group = in_group(Request("r", 6, 4), 2)
    other = prompted(allocator, 4, limit=4)
    assert allocator.admit(group, 6) == Refusal(Reason.NO_FREE_BLOCKS, 8, 4)
    assert (allocator.stats().num_free, [m.blocks for m in group.group.members]) == (4, [None, None])
    allocator.free(other)
    assert isinstance(allocator.admit(group, 6), Grant)


def test_contiguous_forks_that_do_not_fit_are_refused():
    allocator = contiguous(8)
    parent = prompted(allocator, 6, limit=4)
    children = [Request("a", 6, 4), Request("b", 6, 4)]
    assert allocator.fork(parent, children) == Refusal(Reason.NO_FREE_BLOCKS, 8, 4)
    assert [child.blocks for child in children] == [None, None]
    assert isinstance(allocator.fork(parent, children[:1]), Grant)


def test_a_forked_extent_that_is_left_waits_for_the_copies_out_of_it():
    allocator = contiguous(12)
    parent = prompted(allocator, 6, limit=4)
    grants = [allocator.fork(parent, [Request(name, 6, 4)]) for name in "ab"]
    allocator.free(parent)
    assert allocator.stats().num_free == 0
    allocator.settle(grants[0])
    assert allocator.stats().num_free == 0, "the other copy has not run"
    allocator.check()
    allocator.settle(grants[1])
    assert allocator.stats().num_free == 4
    allocator.check()


def test_a_child_whose_extent_is_too_short_gets_another_one():
    allocator = contiguous(8, reserve="chunk(4)")
    child, parent = prompted(allocator, 2, limit=4), prompted(allocator, 10, limit=4, row=1)
    assert allocator.block_table(child) == range(1, 2)
    grant = allocator.fork(parent, [child])
    assert grant.copies == [(2, 5), (3, 6), (4, 7)]
    assert allocator.block_table(child) == range(5, 8)
    allocator.check()


# for ever -------------------------------------------------------------------------------------------------------------


def test_a_group_too_large_is_refused_for_ever():
    """48 tokens of prompt once, and for each member 2 blocks for the 18 tokens of output that get a slot."""
    assert paged(9, 16).refuses_forever(in_group(Request("r", 48, 19), 3)) is None
    assert paged(8, 16).refuses_forever(in_group(Request("r", 48, 19), 3)) == Refusal(Reason.NEVER, 9, 8)
    assert paged(9, 16).refuses_forever(in_group(Request("r", 50, 15), 6)) is None
    assert paged(9, 16).refuses_forever(in_group(Request("r", 50, 15), 7)) == Refusal(Reason.NEVER, 10, 9)


def test_contiguous_groups_are_refused_for_ever_by_the_extents_they_need():
    assert contiguous(12).refuses_forever(in_group(Request("r", 6, 4), 3)) is None
    assert contiguous(11).refuses_forever(in_group(Request("r", 6, 4), 3)) == Refusal(Reason.NEVER, 12, 11)
    assert contiguous(99, reserve="chunk(4)").refuses_forever(in_group(Request("r", 6, 4), 2)).reason is Reason.NEVER
