"""Broken lines, and what kills each: the evidence that suite, recorded traces and laws see what they should.

A row names a function, a line of it and what the line becomes (or a `wrap` that spoils the whole function), and the
checks that must fail then: `suite` (the contract over the named allocator), `oracle` (vLLM's recorded traces), `law`
(a test beside the code). Checks that a row does not name may fail, too. New rows go into the table, new kinds of
checks into `CHECKS` of the test beside.
"""

from __future__ import annotations

from typing import Any

POOL = "engine.core.block_pool:BlockPool."
PAGED = "engine.core.paged:PagedAllocator."
VIRTUAL = "engine.core.virtual:VirtualAllocator."
CONTIGUOUS = "engine.core.contiguous:ContiguousAllocator."
BUDDY = "engine.core.placement:Buddy."


def hands_out_the_last_block(take):
    def broken(self, count):
        return take(self, count)[:-1] + [self.capacity] * (count > 0)

    return broken


def counts_one(touch):
    def broken(self, block_ids):
        touch(self, block_ids)
        for block_id in block_ids:
            self.num_extra_references -= self._extra.pop(block_id, 0)

    return broken


def head_first(release):
    def broken(self, block_ids, num_full=None):
        for index, block_id in enumerate(block_ids):
            release(self, [block_id], *([] if num_full is None else [int(index < num_full)]))

    return broken


def in_reverse(advance):
    def broken(self, requests, num_steps):
        for bucket in requests.buckets:
            bucket.reverse()
        grant = advance(self, requests, num_steps)
        for bucket in requests.buckets:
            bucket.reverse()
        return grant

    return broken


FAULTS: list[dict[str, Any]] = [
    {
        "fault": "a page that is still mapped for an idle slot is lost when its request leaves",
        "where": VIRTUAL + "free",
        "line": "slot.spare += reversed(slot.table)",
        "becomes": "slot.spare += reversed(slot.table[1:])",
        "suite": "virtual",
        "law": "test_virtual:test_every_page_is_in_one_place_whoever_comes_and_goes",
    },
    {
        "fault": "surplus is unmapped, and stays with its slot all the same",
        "where": VIRTUAL + "_unmap",
        "line": "slot.spare.clear()",
        "becomes": "pass",
        "suite": "virtual",
    },
    {
        "fault": "virtual pages are used out of order",
        "where": VIRTUAL + "_take",
        "line": "slot.table += pages",
        "becomes": "slot.table += pages[::-1]",
        "suite": "virtual",
    },
    {
        "fault": "a request sits in a slot that is too small although one fits",
        "where": VIRTUAL + "_seat",
        "line": "chosen = min(enough) if enough else",
        "becomes": "chosen = min(sizes) if enough else",
        "law": "test_virtual:test_a_request_takes_the_idle_slot_whose_pages_fit_best",
    },
    {
        "fault": "a block is handed out twice",
        "where": POOL + "take",
        "wrap": hands_out_the_last_block,
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a refusal leaks a block",
        "where": PAGED + "admit",
        "line": "if needed + reserve > free:",
        "becomes": "if needed + reserve > free and [pool.take(min(free, 1))]:",
        "suite": "paged",
        "oracle": "manager",
        "law": "test_paged:test_a_refused_admission_with_a_hit_changes_nothing",
    },
    {
        "fault": "a hit does not raise the reference count",
        "where": POOL + "touch",
        "wrap": counts_one,
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a cached block that was taken still passes for one in the queue",
        "where": "engine.core.free_queue:FreeQueue.pop_back",
        "line": "home[block_id] = None",
        "becomes": "pass",
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a segment that lost blocks to hits is handed out whole",
        "where": "engine.core.free_queue:FreeQueue.pop_back",
        "line": "elif segment.gone:",
        "becomes": "elif False:",
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a table is released head first",
        "where": POOL + "release",
        "wrap": head_first,
        "oracle": "manager",
        "law": "test_prefix_cache:test_free_blocks_go_unhashed_first_then_oldest_then_tail_before_head",
    },
    {
        "fault": "unhashed blocks queue up at the back",
        "where": PAGED + "__init__",
        "line": "freed_to=freed_to",
        "becomes": 'freed_to="back"',
        "oracle": "manager",
        "law": "test_prefix_cache:test_free_blocks_go_unhashed_first_then_oldest_then_tail_before_head",
    },
    {
        "fault": "the slot of a token is off by one: the last block comes one token late",
        "where": PAGED + "extend",
        "line": "max(-(-min(total + num_lookahead, limit) // size) - len(table), 0)",
        "becomes": "max(-(-(min(total + num_lookahead, limit) - 1) // size) - len(table), 0)",
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "new blocks are taken before the hit is touched: a hit evicts itself",
        "where": PAGED + "admit",
        "line": "        if held:\n            pool.touch(hit.block_ids)\n        new_blocks = pool.take(fresh)\n",
        "becomes": "        new_blocks = pool.take(fresh)\n        pool.touch(hit.block_ids)\n",
        "suite": "paged",
        "oracle": "manager",
        "law": "test_paged:test_an_allocation_cannot_evict_its_own_hit",
    },
    {
        "fault": "hit blocks in the free queue are not counted as needed",
        "where": PAGED + "admit",
        "line": "needed = fresh + unreferenced",
        "becomes": "needed = fresh",
        "suite": "paged",
        "oracle": "manager",
        "law": "test_paged:test_hit_blocks_in_the_free_queue_count_as_needed",
    },
    {
        "fault": "the watermark is a fraction of the usable blocks",
        "where": PAGED + "__init__",
        "line": "int(watermark * self.num_blocks)",
        "becomes": "int(watermark * self.capacity_blocks)",
        "law": "test_paged:test_the_watermark_is_a_fraction_of_all_blocks_the_null_block_included",
    },
    {
        "fault": "the watermark holds back the first request, too",
        "where": PAGED + "admit",
        "line": "self.watermark_blocks if others_running else 0",
        "becomes": "self.watermark_blocks",
        "suite": "paged with watermark",
        "oracle": "manager",
    },
    {
        "fault": "there is no watermark",
        "where": PAGED + "admit",
        "line": "self.watermark_blocks if others_running else 0",
        "becomes": "0",
        "oracle": "manager",
        "law": "test_paged:test_the_watermark_holds_back_admission_beside_others_only",
    },
    {
        "fault": "the full-sequence gate is open",
        "where": PAGED + "admit",
        "line": "if gate + reserve > free:",
        "becomes": "if False:",
        "oracle": "manager",
        "law": "test_paged:test_the_full_sequence_gate_refuses_a_first_chunk_that_alone_would_fit",
    },
    {
        "fault": "the table has its hit behind its new blocks",
        "where": PAGED + "admit",
        "line": "[*hit.block_ids, *new_blocks]",
        "becomes": "[*new_blocks, *hit.block_ids]",
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a hit covers the last token",
        "where": PAGED + "lookup",
        "line": "(request.num_tokens - 1) // self.block_size",
        "becomes": "request.num_tokens // self.block_size",
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "a lookup skips gaps in the chain",
        "where": POOL + "find",
        "line": "iter(map(self._map.get, keys).__next__, None)",
        "becomes": "filter(None, map(self._map.get, keys))",
        "law": "test_prefix_cache:test_a_gap_in_a_chain_ends_the_hit",
    },
    {
        "fault": "look-ahead slots are hashed",
        "where": PAGED + "extend",
        "line": "self._commits.later(request, min(total, request.num_tokens) // size)",
        "becomes": "self._commits.now(request, request.blocks, len(request.blocks))",
        "suite": "paged",
        "law": "test_prefix_cache:test_look_ahead_slots_are_taken_kept_and_never_hashed",
    },
    {
        "fault": "an evicted block can still be found",
        "where": POOL + "_forget",
        "wrap": lambda forget: lambda self, block_ids: None,
        "suite": "paged",
        "oracle": "manager",
    },
    {
        "fault": "content that was given up is found by whoever looks before it is forgotten",
        "where": "engine.core.commits:Commits.catch_up",
        "line": "self._pool.forget_stale()",
        "becomes": "pass",
        "law": "test_prefix_cache:test_content_that_was_given_up_is_not_found",
    },
    {
        "fault": "a salt does not isolate",
        "where": "engine.core.content:TokenContent._extend",
        "line": "index or self.salt is None",
        "becomes": "True",
        "oracle": "manager",
        "law": "test_content:test_a_salt_isolates_the_whole_chain",
    },
    {
        "fault": "whoever looks does not see what decoding has filled",
        "where": PAGED + "lookup",
        "line": "if not self._commits.may_find(first):",
        "becomes": "if not self.pool.finds(first):",
        "law": "test_commits:test_committing_late_is_committing_at_once",
    },
    {
        "fault": "whoever looks does not see a prompt that was admitted in the same step",
        "where": "engine.core.commits:Commits.may_find",
        "line": "first_key in self._first_keys or self._pool.finds(first_key)",
        "becomes": "self._pool.finds(first_key)",
        "law": "test_commits:test_committing_late_is_committing_at_once",
    },
    {
        "fault": "whoever looks does not see what has been filled behind a block that can be found",
        "where": "engine.core.commits:Commits.may_find",
        "line": "first_key in self._first_keys or self._pool.finds(first_key)",
        "becomes": "first_key in self._first_keys",
        "law": "test_commits:test_committing_late_is_committing_at_once",
    },
    {
        "fault": "what decoding has filled is committed by request, not in its order",
        "where": "engine.core.commits:Commits.catch_up",
        "line": "for request, full in behind:",
        "becomes": "for request, full in dict(behind).items():",
        "law": "test_commits:test_committing_late_is_committing_at_once",
    },
    {
        "fault": "a block's key does not depend on the blocks before it",
        "where": "engine.core.content:TokenContent._extend",
        "line": "hashlib.sha256(parent + tokens",
        "becomes": "hashlib.sha256(tokens",
        "oracle": "manager",
        "law": "test_content:test_token_keys_are_equal_exactly_for_equal_prefixes",
    },
    {
        "fault": "a run may be one block short",
        "where": "engine.core.decode_set:DecodeSet.steps_within",
        "line": "if left < 0:",
        "becomes": "if left < -1:",
        "suite": "paged",
        "law": "test_paged:test_a_run_ends_before_the_step_whose_growth_is_short",
    },
    {
        "fault": "a run commits the watched block",
        "where": "engine.core.decode_set:DecodeSet.steps_before_filling",
        "line": "first = step",
        "becomes": "first = step + 1",
        "suite": "paged",
        "law": "test_paged:test_a_run_ends_before_it_commits_the_watched_block",
    },
    {
        "fault": "a run hands out blocks in another order than single steps",
        "where": PAGED + "advance",
        "wrap": in_reverse,
        "suite": "paged",
    },
    {
        "fault": "a request that decodes late grows after those admitted behind it",
        "where": "engine.core.decode_set:DecodeSet.add",
        "line": "insort(bucket, request, key=_order)",
        "becomes": "bucket.append(request)",
        "law": "test_decode_set:test_a_late_request_grows_in_its_place_in_running_order",
    },
    {
        "fault": "buddies are not joined",
        "where": BUDDY + "give",
        "line": "while order < self._order and",
        "becomes": "while False and",
        "suite": "orca-pow2",
        "law": "test_placement:test_a_split_buddy_joins_again_when_both_halves_are_free",
    },
    {
        "fault": "a buddy grows to its left",
        "where": BUDDY + "grow",
        "line": "if start & (size - 1):",
        "becomes": "if False:",
        "law": "test_placement:test_a_buddy_grows_into_its_right_half_only",
    },
    {
        "fault": "best fit takes the first hole",
        "where": "engine.core.placement:Holes.take",
        "line": "if not self._best:",
        "becomes": "if True:",
        "law": "test_placement:test_first_fit_takes_the_lowest_hole_and_best_fit_the_tightest",
    },
    {
        "fault": "settling returns nothing",
        "where": CONTIGUOUS + "settle",
        "line": "if grant.copies:",
        "becomes": "if False:",
        "suite": "chunks in holes",
        "law": "test_contiguous:test_a_chunk_moves_where_it_cannot_grow_and_its_old_extent_waits_for_the_copy",
    },
    {
        "fault": "the source of a copy is given away before it is read",
        "where": CONTIGUOUS + "_move",
        "line": "self._departures.leave(old.start + 1,",
        "becomes": "self._departures.leave(old.start + 1 if slides else -1,",
        "suite": "chunks in holes",
        "law": "test_contiguous:test_a_chunk_moves_where_it_cannot_grow_and_its_old_extent_waits_for_the_copy",
    },
    {
        "fault": "a moved request's last block is not copied",
        "where": CONTIGUOUS + "_move",
        "line": "zip(old.blocks[:held], new.blocks[:held], strict=True)",
        "becomes": "zip(old.blocks[: held - 1], new.blocks[:held])",
        "suite": "chunks in holes",
    },
    {
        "fault": "a request that is alone cannot grow over its own extent",
        "where": CONTIGUOUS + "_move",
        "line": "if slides and request not in self._slid and",
        "becomes": "if False and",
        "suite": "chunks in holes",
        "law": "test_contiguous:test_a_chunk_slides_over_its_own_extent_where_no_other_place_is_left",
    },
    {
        "fault": "a slide gives away what its copies still read",
        "where": CONTIGUOUS + "_move",
        "line": "self._departures.leave(old.start + 1,",
        "becomes": "self._departures.leave(-1 if slides else old.start + 1,",
        "suite": "chunks in holes",
        "law": "test_contiguous:test_what_a_slide_leaves_waits_for_the_copy",
    },
    {
        "fault": "a freed request gives away what the copies of its slide still read",
        "where": CONTIGUOUS + "free",
        "line": "self._slid.pop(request, extent)",
        "becomes": "self._slid.pop(request, extent) and extent",
        "law": "test_contiguous:test_what_a_slide_still_reads_goes_back_with_its_copies_though_the_request_has_gone",
    },
    {
        "fault": "rounded-up room puts off the next chunk",
        "where": CONTIGUOUS + "extend",
        "line": "self._asked(request, min(total + num_lookahead, self._max_model_len))",
        "becomes": "min(total + num_lookahead, self._max_model_len)",
        "suite": "chunks in buddies",
        "law": "test_contiguous:test_a_chunk_in_rounded_up_room_asks_for_all_of_its_chunk",
    },
    {
        "fault": "pow2 doubles a power of two",
        "where": "engine.core.reserve:_ask_pow2",
        "line": "(request.num_stop_tokens - 1).bit_length()",
        "becomes": "request.num_stop_tokens.bit_length()",
        "law": "test_contiguous:test_pow2_keeps_a_power_of_two",
    },
]
