"""The prefix cache and the pool beneath it: what is found, what is kept, and in which order it goes."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import pytest

from engine.core import free_queue
from engine.core.allocator import NO_HIT, Grant
from engine.core.block_pool import BlockPool
from engine.core.request import Request
from tests.engine.core.serving import admit, decode, paged, request, served


@pytest.mark.parametrize("extra,hit", [(0, 4), (1, 8), (3, 8), (4, 8)])
def test_a_resent_prompt_hits_all_blocks_but_what_its_last_token_needs(extra, hit):
    allocator = paged(8)
    served(allocator, range(8))
    assert allocator.lookup(request([*range(8), *range(90, 90 + extra)])).num_tokens == hit


def test_block_size_one_hits_all_tokens_but_the_last():
    allocator = paged(8, 1)
    served(allocator, range(5))
    assert allocator.lookup(request(range(5))).num_tokens == 4
    assert allocator.lookup(request([0])).num_tokens == 0


def test_a_fully_cached_prompt_recomputes_a_block_into_a_duplicate():
    allocator = paged(8)
    first, second = request(range(8)), request(range(8))
    admit(allocator, first)
    assert admit(allocator, second) == Grant(([3],), num_computed_tokens=4)
    assert allocator.pool.num_cached_keys() == 2
    third = request([*range(8), 8])
    assert allocator.lookup(third).block_ids == [1, 2], "the oldest copy is found"
    allocator.free(first)
    allocator.free(second)
    evictor = request(range(50, 74))
    admit(allocator, evictor)
    assert allocator.lookup(third).block_ids == [1, 3], "evicting one copy keeps the key"


def test_free_blocks_go_unhashed_first_then_oldest_then_tail_before_head():
    allocator = paged(6)
    first, second = request(range(9)), request(range(50, 59))
    for made in (first, second):
        admit(allocator, made)
    allocator.free(first)
    allocator.free(second)
    assert allocator.pool.free_queue() == [6, 3, 2, 1, 5, 4]


def test_evicting_the_tail_leaves_a_shorter_hit():
    allocator = paged(3)
    served(allocator, range(12))
    served(allocator, range(50, 53))
    assert allocator.lookup(request([*range(12), 12])).num_tokens == 8


def test_a_gap_in_a_chain_ends_the_hit():
    allocator = paged(8)
    made = served(allocator, range(12))
    keys = made.content.keys(0, 3, 4)
    pool = allocator.pool
    pool._forget(pool.find(keys[:2])[1:])
    assert allocator.lookup(request([*range(12), 12])).num_tokens == 4


def test_a_reused_block_loses_its_old_content():
    allocator = paged(1)
    served(allocator, range(4))
    served(allocator, range(50, 53))
    assert allocator.pool.num_cached_keys() == 0
    assert allocator.stats().num_evictions == 1
    assert allocator.stats().num_cached_free == 0


@pytest.mark.parametrize("isolated", [{"salt": "a"}, {"lora": "a"}, {"salt": "b"}, {"lora": "b"}, {}])
def test_salt_and_lora_isolate(isolated):
    allocator = paged(8)
    served(allocator, range(8), **isolated)
    for other in ({}, {"salt": "a"}, {"lora": "a"}, {"salt": "b"}, {"lora": "b"}):
        assert allocator.lookup(request(range(8), **other)).num_tokens == (4 if other == isolated else 0)


def num_stored(allocator):
    """Once what was put off is done, as it is before anybody could notice."""
    allocator.catch_up()
    return allocator.pool.num_stored


def test_a_request_that_skips_reading_still_writes_the_cache():
    allocator = paged(8)
    served(allocator, range(8))
    skipping = request(range(8), skip=True)
    assert allocator.lookup(skipping) is NO_HIT
    admit(allocator, skipping)
    assert num_stored(allocator) == 4


def test_equal_prompts_share_before_anything_is_computed():
    allocator = paged(8)
    first, second = request(range(9)), request(range(9))
    assert isinstance(allocator.admit(first, 9, allocator.lookup(first)), Grant)
    assert first.computed == 0
    assert allocator.lookup(second).num_tokens == 8


def test_only_blocks_inside_the_scheduled_chunk_are_hashed():
    allocator = paged(8)
    made = request(range(12))
    admit(allocator, made, 7, whole=12)
    assert (num_stored(allocator), len(made.blocks)) == (1, 2)
    allocator.extend((made,), (12,))
    assert num_stored(allocator) == 3


def test_look_ahead_slots_are_taken_kept_and_never_hashed():
    allocator = paged(8)
    made = request(range(7))
    admit(allocator, made)
    decode(allocator, made, 7)
    made.known += 1
    made.content.tokens += [8, 9, 10, 11, 12]
    allocator.extend((made,), (9,), num_lookahead=4)
    assert (len(made.blocks), num_stored(allocator)) == (4, 2)
    made.computed = 9
    assert allocator.extend((made,), (10,)) == Grant([[]]), "the surplus of a rejected draft is kept"


def test_a_block_filled_by_outputs_serves_the_next_turn():
    allocator = paged(8)
    made = request(range(6))
    admit(allocator, made)
    decode(allocator, made, 60, 61, 62)
    allocator.free(made)
    assert allocator.lookup(request([*range(6), 60, 61, 99])).num_tokens == 8


def test_a_preempted_request_hits_its_own_blocks_until_pressure_evicts_them():
    allocator = paged(4)
    made = request(range(6))
    admit(allocator, made)
    decode(allocator, made, 60, 61, 62)
    allocator.free(made)
    made.computed = 0
    assert allocator.lookup(made).num_tokens == 8
    other = request(range(100, 112))
    admit(allocator, other)
    assert allocator.lookup(made).num_tokens == 4


def test_content_that_was_given_up_is_not_found():
    allocator = paged(4)
    served(allocator, range(8))
    admit(allocator, Request("private", 15, 1))  # commits nothing itself, which would forget
    assert allocator.stats().num_evictions == 2
    assert allocator.lookup(request(range(9))).num_tokens == 0


def test_resetting_the_cache_waits_for_an_empty_pool():
    allocator = paged(4)
    made = request(range(9))
    admit(allocator, made)
    assert not allocator.reset_prefix_cache()
    allocator.catch_up()
    assert allocator.pool.num_cached_keys() == 2
    allocator.free(made)
    queue = allocator.pool.free_queue()
    assert allocator.reset_prefix_cache()
    assert allocator.lookup(request(range(9))).num_tokens == 0
    assert allocator.pool.free_queue() == queue
    allocator.check()


def test_without_caching_reuse_is_last_in_first_out_and_nothing_is_hashed():
    allocator = paged(6, enable_caching=False)
    served(allocator, range(12))
    assert allocator.pool.free_queue() == [3, 2, 1, 4, 5, 6]
    assert allocator.lookup(request(range(12))) is NO_HIT
    assert allocator.stats().num_cached_free == 0
    assert allocator.reset_prefix_cache()


def test_events_tell_every_copy_that_appears_and_goes():
    allocator = paged(2, record_events=True)
    served(allocator, range(4))
    admit(allocator, request(range(50, 58)))
    kinds = [(event.kind, event.block_id) for event in allocator.pool.events]
    assert kinds == [("stored", 1), ("removed", 1), ("stored", 2), ("stored", 1)]


def test_the_pool_check_finds_a_block_that_is_free_and_in_use():
    pool = BlockPool(3)
    pool.take(2)
    pool.touch([2])
    pool.queue.stack.append(2)
    with pytest.raises(AssertionError, match="with references"):
        pool.check()


def test_a_prefix_that_is_hit_again_and_again_leaves_no_places_behind():
    """Hits take blocks out of the free queue's middle; what they leave there does not pile up."""
    allocator = paged(400)
    for _ in range(3_000):
        served(allocator, range(39), limit=1)
    queue = allocator.pool.queue
    kept = sum(len(segment.blocks) for segment in queue.back())
    assert kept <= 2 * queue.num_at_back + 1_024
    assert len(queue.order()) == len(queue) == 400
    allocator.check()


@pytest.mark.parametrize("seed", range(20))
def test_clearing_places_away_changes_no_order(seed, monkeypatch):
    def lives(most_gone):
        monkeypatch.setattr(free_queue, "MOST_GONE", most_gone)
        rng, allocator, orders = Random(seed), paged(30), []
        for _ in range(80):
            served(allocator, [rng.randrange(2) for _ in range(rng.randint(1, 60))], limit=1)
            orders.append(allocator.pool.free_queue())
        return orders

    assert lives(0) == lives(1 << 30)


def test_events_count_the_copies_that_are_left():
    """Who keeps one entry a key drops it when no copy is left, not at the first removal."""
    pool = BlockPool(3, record_events=True)
    first, second = pool.take(1), pool.take(1)
    pool.commit(first, ["a"])
    pool.commit(second, ["a"])
    pool.release(first, 1)
    pool.release(second, 1)
    pool.take(3)
    assert pool.reset() is False

    assert pool.events is not None
    assert [(event.kind, event.num_copies) for event in pool.events] == [
        ("stored", 1),
        ("stored", 2),
        ("removed", 1),
        ("removed", 0),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_listener_that_counts_copies_knows_what_can_be_found(seed):
    rng = Random(seed)
    allocator = paged(8, record_events=True)
    events = allocator.pool.events
    assert events is not None
    known: set[Hashable] = set()
    for _ in range(60):
        served(allocator, rng.choices(range(2), k=rng.randrange(1, 16)))
        if not rng.randrange(20):
            assert allocator.reset_prefix_cache()
        for event in events:
            if event.kind == "cleared":
                known.clear()
            elif event.num_copies:
                known.add(event.key)
            else:
                known.discard(event.key)
        events.clear()
        assert len(known) == allocator.pool.num_cached_keys()
        assert all(allocator.pool.find([key]) for key in known)
