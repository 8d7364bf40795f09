"""Faults that the properties found, each in its smallest form."""

from __future__ import annotations

import pytest

from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from sim import integrals as at
from sim.cost import LinearModel
from sim.shadow import ShadowExecutor
from sim.simulate import RunSpec
from tests.sim.cases import STEP, US, Case, differences, play, random_case
from tests.sim.check import check_case
from workloads import Trace

MICROSECOND_STEPS = LinearModel(US, 0, 0, 0)


def case(trace: Trace, allocator: str, pool: PoolConfig, **limits: object) -> Case:
    spec = RunSpec(allocator, pool, SchedulerConfig(pool.max_model_len, **limits))  # type: ignore[arg-type]
    return Case(0, spec, trace, MICROSECOND_STEPS, None)


@pytest.mark.parametrize("capacity", [8, 9, 10])
def test_a_request_preempted_in_its_own_step_leaves_no_uncomputed_block_in_the_cache(capacity):
    """Priority: B, served first, commits two blocks; A then needs one and takes B's memory. B's next lookup must
    find neither: the step that was to compute them never ran."""
    allocator = PagedAllocator(capacity, 4, max_model_len=100)
    limits = SchedulerConfig(100, policy="priority", long_prefill_token_threshold=8, full_sequence_gate=False)
    scheduler = Scheduler(limits, allocator)
    executor = ShadowExecutor(allocator)
    scheduler.add(Request("D", 1, 9, priority=0))
    scheduler.add(Request("B", 28, 1, priority=1))
    for step in range(12):
        if step == 1:
            scheduler.add(Request("A", 4, 2, priority=0, arrival=1))
        batch = scheduler.schedule()
        scheduler.update(batch, executor.submit(batch).result())


def test_requests_of_equal_priority_and_arrival_do_not_preempt_each_other_for_ever():
    """Neither of two equals is the more urgent one. The victim is the last in the queue's own order (priority,
    arrival, id): the first in running order would let each take the other's memory, for ever."""
    pool = PoolConfig(10, 4, max_model_len=60, enable_caching=False)
    trace = Trace.build([0, 0], [6, 34], [34, 6])
    limits = {"policy": "priority", "full_sequence_gate": False, "long_prefill_token_threshold": 3}
    run = play(case(trace, "paged", pool, **limits)).run
    assert [row.status for row in run.rows] == ["finished", "finished"]


def test_a_step_that_begins_at_an_edge_after_an_idle_time_counts_after_the_edge():
    """Half-open windows: with the default window [0, last arrival) the last request's first step is outside."""
    trace = Trace.build([0, 16_000], [4, 4], [1, 1])
    run = play(case(trace, "paged", PoolConfig(8, 4, max_model_len=32))).run
    before, after = run.integrals_between(0, run.window.stop), run.integrals_between(run.window.stop, 1 << 60)
    assert (before[at.STEPS], after[at.STEPS]) == (1, 1)


@pytest.mark.parametrize("seed", [75])
def test_cached_slots_are_exact_where_freed_blocks_queue_up_at_the_back(seed):
    check_case(random_case(seed))


def test_a_contiguous_chunk_of_one_block_is_not_accounted_as_paged():
    """Two requests that outgrow each other: the extent that a move leaves behind is held and never filled."""
    pool = PoolConfig(16, 4, max_model_len=32, enable_caching=False)
    trace = Trace.build([0, 0], [4, 4], [10, 10])
    check_case(case(trace, "contiguous-chunk(4)-first-fit", pool))


@pytest.mark.parametrize("seed", [12, 119, 631])
def test_a_step_short_of_memory_commits_the_blocks_that_decoding_fills(seed):
    check_case(random_case(seed, "paged"))


def test_a_run_in_which_nothing_is_served_has_a_timeline_with_columns():
    trace = Trace.build([0], [60], [4])
    run = play(case(trace, "paged", PoolConfig(2, 4, max_model_len=64))).run
    assert [row.status for row in run.rows] == ["rejected"]
    assert "kv_live_frac" in run.timeline().columns


def test_a_growing_extent_that_lies_in_the_wrong_place_does_not_restart_for_ever():
    """A moves behind B and reaches the end of the pool. It then takes B's memory, still finds no second extent beside
    its own, gives up its own as well, and both begin again just as before."""
    pool = PoolConfig(5, 8, max_model_len=40, enable_caching=False)
    trace = Trace.build([0, 0], [30, 20], [5, 5])
    limits = {"full_sequence_gate": False, "long_prefill_token_threshold": 1}
    run = play(case(trace, "contiguous-chunk(8)-first-fit", pool, **limits)).run
    assert [row.status for row in run.rows] == ["finished", "finished"]


def test_what_a_preempted_request_has_just_left_comes_back_though_no_batch_runs():
    """Priority: A moves, then B takes its memory and still has not enough, as A's old extent waits for its copies. B
    gives up as well, so no batch runs, and that extent must not stay taken."""
    pool = PoolConfig(9, 1, max_model_len=9, enable_caching=False)
    trace = Trace.build([0, 1_000], [1, 8], [5, 1], priority=[2, 0])
    limits = {"policy": "priority", "full_sequence_gate": False, "max_num_batched_tokens": 5}
    watched = check_case(case(trace, "contiguous-chunk(1)-first-fit", pool, **limits))
    assert [row.num_preemptions for row in watched.run.rows] == [1, 0]


def test_pictures_of_the_pool_are_the_same_stepped_and_skipped():
    spec = RunSpec("paged", PoolConfig(16, 4, max_model_len=64), SchedulerConfig(64), num_snapshots=5)
    alone = Case(0, spec, Trace.build([0, 30_000], [4, 4], [40, 2]), MICROSECOND_STEPS, None)
    assert differences(play(alone, STEP).seen, play(alone).seen) == {}
