"""Broken lines of forks, copy-on-write and swaps, in the form of `planted_faults`."""

from __future__ import annotations

from typing import Any

WRITES = "engine.core.copy_on_write:CopyOnWrite."
SHARING = "engine.core.sharing:Sharing."
HOST = "engine.core.host_blocks:HostBlocks."
PAGED = "engine.core.paged:PagedAllocator."
CONTIGUOUS = "engine.core.contiguous:ContiguousAllocator."


def stays_queued(touch):
    def broken(self, block_ids):
        queued = set(self.queue.order())
        touch(self, [block_id for block_id in block_ids if block_id not in queued])

    return broken


def drops_twice(drop):
    def broken(self, host_ids):
        before = len(self._free)
        drop(self, host_ids)
        self._free += self._free[before:]

    return broken


SHARING_FAULTS: list[dict[str, Any]] = [
    {
        "fault": "a shared tail is written without a copy",
        "where": WRITES + "write",
        "line": "if source not in self.open:",
        "becomes": "if True:",
        "suite": "paged",
        "law": "test_sharing:test_three_samples_of_50_tokens_copy_twice_and_the_third_writes_in_place",
    },
    {
        "fault": "the last owner of a tail copies it, too",
        "where": WRITES + "_let_go",
        "line": "if not self._pool.extra_references(block_id):",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_sharing:test_a_sample_that_ends_leaves_the_tail_to_the_other",
    },
    {
        "fault": "the second-to-last owner of a tail writes in place",
        "where": WRITES + "_let_go",
        "line": "if not self._pool.extra_references(block_id):",
        "becomes": "if self._pool.extra_references(block_id) < 2:",
        "suite": "paged",
        "law": "test_sharing:test_a_second_to_last_owner_still_copies",
    },
    {
        "fault": "the source of a copy is given away before the grant settles",
        "where": WRITES + "release",
        "line": "if self.reading:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_sharing:test_the_source_of_a_copy_without_an_owner_waits_for_the_copy",
    },
    {
        "fault": "the source of a copy stays taken after the grant has settled",
        "where": WRITES + "settle",
        "line": "if source in self._left:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_sharing:test_the_source_of_a_copy_without_an_owner_waits_for_the_copy",
    },
    {
        "fault": "copies are not counted as needed",
        "where": PAGED + "extend",
        "line": "needed += self._writes.num_needed(",
        "becomes": "needed += 0 * self._writes.num_needed(",
        "suite": "paged",
        "law": "test_sharing:test_copies_that_do_not_fit_are_refused_and_change_nothing",
    },
    {
        "fault": "a run of steps writes a shared tail",
        "where": PAGED + "free_run",
        "line": "if self._mixes or self._writes.open:",
        "becomes": "if self._mixes:",
        "suite": "paged",
        "law": "test_sharing:test_no_run_of_steps_while_a_partly_filled_block_is_shared",
    },
    {
        "fault": "the empty slots of a shared tail count as shared",
        "where": "engine.core.paged_state:PagedState.stats",
        "line": "if writes.open:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_sharing:test_three_samples_of_50_tokens_copy_twice_and_the_third_writes_in_place",
    },
    {
        "fault": "a block with references stays in the free queue",
        "where": "engine.core.block_pool:BlockPool.touch",
        "wrap": stays_queued,
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a fork forgets how much of the table is findable",
        "where": SHARING + "fork",
        "line": "child.num_hashed = min(parent.num_hashed, full)",
        "becomes": "child.num_hashed = 0",
        "law": "test_sharing:test_children_find_and_commit_no_block_twice",
    },
    {
        "fault": "children do without the partly filled block",
        "where": SHARING + "fork",
        "line": "table[: full + (filled > 0)]",
        "becomes": "table[:full]",
        "suite": "paged",
    },
    {
        "fault": "a child keeps what it held before",
        "where": SHARING + "fork",
        "line": "if child in self._tables:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_sharing:test_a_beam_dies_in_its_place_and_gives_its_tail_back_at_once",
    },
    {
        "fault": "a group counts as one request",
        "where": PAGED + "refuses_forever",
        "line": "if request.group is not None and slots > request.num_prompt_tokens:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_sharing:test_a_group_too_large_is_refused_for_ever",
    },
    {
        "fault": "a swap-out forgets the copies under way",
        "where": WRITES + "content_of",
        "line": "self._source.get(block_id, block_id)",
        "becomes": "block_id",
        "suite": "paged",
        "law": "test_swapping:test_a_swap_out_reads_what_is_still_to_be_copied_where_it_comes_from",
    },
    {
        "fault": "a swap-out goes beyond host memory",
        "where": SHARING + "swap_out",
        "line": "if needed > free:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_swapping:test_host_memory_that_is_full_refuses_and_keeps_everything",
    },
    {
        "fault": "what is shared goes to the host once for each that shares it",
        "where": HOST + "store",
        "line": "if block_id not in places:",
        "becomes": "if True:",
        "suite": "paged",
        "law": "test_swapping:test_what_is_shared_goes_to_the_host_once_and_is_shared_again",
    },
    {
        "fault": "a swapped block is freed twice",
        "where": HOST + "_drop",
        "wrap": drops_twice,
        "suite": "paged",
        "law": "test_swapping:test_what_is_shared_goes_to_the_host_once_and_is_shared_again",
    },
    {
        "fault": "host blocks are free before they have been read back",
        "where": HOST + "restore",
        "line": "self._users[host_id] += 1",
        "becomes": "self._users[host_id] += 0",
        "suite": "paged",
        "law": "test_swapping:test_what_is_shared_goes_to_the_host_once_and_is_shared_again",
    },
    {
        "fault": "host blocks are never read back",
        "where": PAGED + "settle",
        "line": "if grant.to_device:",
        "becomes": "if False:",
        "suite": "paged",
        "law": "test_swapping:test_what_is_shared_goes_to_the_host_once_and_is_shared_again",
    },
    {
        "fault": "a swap-in shares a partly filled block, and nobody knows",
        "where": SHARING + "swap_in",
        "line": "full = [request.num_computed_tokens // size for request in requests]",
        "becomes": "full = [-(-request.num_computed_tokens // size) for request in requests]",
        "suite": "paged",
        "law": "test_swapping:test_what_is_shared_goes_to_the_host_once_and_is_shared_again",
    },
    {
        "fault": "a swap-in needs no room for its last blocks",
        "where": SHARING + "swap_in",
        "line": "if needed + reserve > free:",
        "becomes": "if len(places) + reserve > free:",
        "suite": "paged",
        "law": "test_swapping:test_device_memory_that_is_full_refuses_a_return_and_keeps_everything",
    },
    {
        "fault": "contiguous children have nothing of the prompt",
        "where": CONTIGUOUS + "fork",
        "line": "for child in children for pair in",
        "becomes": "for child in () for pair in",
        "suite": "orca-pow2",
        "law": "test_sharing:test_contiguous_groups_reserve_for_each_member_and_copy_the_prompt",
    },
    {
        "fault": "a forked extent is given away while it is copied",
        "where": CONTIGUOUS + "free",
        "line": "self._departures.leave(read.start + 1,",
        "becomes": "self._departures.leave(-1,",
        "suite": "orca-pow2",
        "law": "test_sharing:test_a_forked_extent_that_is_left_waits_for_the_copies_out_of_it",
    },
    {
        "fault": "contiguous memory is reserved for the leader of a group only",
        "where": CONTIGUOUS + "admit",
        "line": "members = members_of(request)",
        "becomes": "members = (request,)",
        "suite": "orca-pow2",
        "law": "test_sharing:test_contiguous_groups_reserve_for_each_member_and_copy_the_prompt",
    },
    {
        "fault": "a contiguous group is served that never fits",
        "where": CONTIGUOUS + "refuses_forever",
        "line": "self._space.most_ever(units) < width",
        "becomes": "False",
        "suite": "orca-pow2",
        "law": "test_sharing:test_contiguous_groups_are_refused_for_ever_by_the_extents_they_need",
    },
]
