"""Faults that the properties found and that are not mended yet; each test fails until its fault is.

`tests.sim.check` leaves out of its comparisons what these tests show, and only that.
"""

from __future__ import annotations

import pytest

from engine.core.paged import PagedAllocator
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.scheduler import Scheduler, SchedulerConfig
from sim import integrals as at
from sim.cost import LinearModel
from sim.shadow import ShadowExecutor
from sim.simulate import RunSpec
from tests.sim.cases import US, Case, play, random_case
from tests.sim.check import check_case
from workloads import Trace

MICROSECOND_STEPS = LinearModel(US, 0, 0, 0)


def case(trace: Trace, allocator: str, pool: PoolConfig, **limits: object) -> Case:
    spec = RunSpec(allocator, pool, SchedulerConfig(pool.max_model_len, **limits))  # type: ignore[arg-type]
    return Case(0, spec, trace, MICROSECOND_STEPS, None)


@pytest.mark.xfail(strict=True, reason="blocks stay findable that were scheduled to fill in a step that took them back")
@pytest.mark.parametrize("capacity", [8])
def test_a_request_preempted_in_its_own_step_leaves_no_uncomputed_block_in_the_cache(capacity):
    """Priority: B, served first, commits two blocks; A then needs one and takes B's memory. B's next lookup finds
    both, but the step that was to compute them never ran."""
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


@pytest.mark.xfail(strict=True, reason="with equal (priority, arrival) the victim is the first in running order")
def test_requests_of_equal_priority_and_arrival_do_not_preempt_each_other_for_ever():
    """Neither of two equals is the more urgent one: each takes the other's memory, for ever. A victim chosen in the
    queue's own order (priority, arrival, id) would let the first one finish."""
    pool = PoolConfig(10, 4, max_model_len=60, enable_caching=False)
    trace = Trace.build([0, 0], [6, 34], [34, 6])
    limits = {"policy": "priority", "full_sequence_gate": False, "long_prefill_token_threshold": 3}
    run = play(case(trace, "paged", pool, **limits)).run
    assert [row.status for row in run.rows] == ["finished", "finished"]


@pytest.mark.xfail(strict=True, reason="add_idle ends before an edge that it reaches, add_step after it")
def test_a_step_that_begins_at_an_edge_after_an_idle_time_counts_after_the_edge():
    """Half-open windows: with the default window [0, last arrival) the last request's first step is outside."""
    trace = Trace.build([0, 16_000], [4, 4], [1, 1])
    run = play(case(trace, "paged", PoolConfig(8, 4, max_model_len=32))).run
    before, after = run.integrals_between(0, run.window.stop), run.integrals_between(run.window.stop, 1 << 60)
    assert (before[at.STEPS], after[at.STEPS]) == (1, 1)


@pytest.mark.xfail(strict=True, reason="evictions of a run assume that blocks without content go first")
@pytest.mark.parametrize("seed", [75])
def test_cached_slots_are_exact_where_freed_blocks_queue_up_at_the_back(seed):
    check_case(random_case(seed), all_of_it=True)


@pytest.mark.xfail(strict=True, reason="chunk(block_size) grows like a paged pool and is taken for one")
def test_a_contiguous_chunk_of_one_block_is_not_accounted_as_paged():
    """Two requests that outgrow each other: the extent that a move leaves behind is held and never filled."""
    pool = PoolConfig(16, 4, max_model_len=32, enable_caching=False)
    trace = Trace.build([0, 0], [4, 4], [10, 10])
    check_case(case(trace, "contiguous-chunk(4)-first-fit", pool), all_of_it=True)


@pytest.mark.xfail(strict=True, reason="a step short of memory extends growing requests only: filling ones commit late")
@pytest.mark.parametrize("seed", [12, 119, 631])
def test_a_step_short_of_memory_commits_the_blocks_that_decoding_fills(seed):
    check_case(random_case(seed, "paged"), all_of_it=True)
