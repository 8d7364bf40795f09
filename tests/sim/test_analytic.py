"""The simulator against queueing theory and laws of conservation; each law notices what is planted against it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.registry import PoolConfig
from sim.cost_executor import CostExecutor
from sim.integrals import Integrals
from sim.pool_state import PoolState
from sim.recorder import Recorder
from sim.replay import Replay
from sim.row_store import RowStore
from sim.rows import Progress
from sim.sessions import Arrivals
from sim.simulate import Run, RunSpec, Simulation, simulate
from tests.sim.laws import LAWS, STEP, US, Observed, observe
from tests.sim.planting import instead, with_line
from workloads import Trace, synthetic_trace

SETUPS = ("paged", "orca-oracle", "contiguous-chunk(32)-first-fit")


def tight(allocator: str, seed: int = 7) -> Observed:
    """A pool that runs dry, queues, and pauses between bursts; no prefixes, so that no block has two owners."""
    trace = synthetic_trace("gamma", "uniform:1-60,1-60", 150, seed=seed, rate_per_s=60_000.0, cv=3.0)
    pool = PoolConfig(12, 16, 128, enable_caching=False)
    return observe(trace, pool, allocator, SchedulerConfig(128, max_num_seqs=16))


@pytest.mark.parametrize("allocator", SETUPS)
def test_every_law_holds(allocator):
    seen = tight(allocator)

    assert {name: law(seen)[:3] for name, law in LAWS.items()} == {name: [] for name in LAWS}
    assert len({step.start for step in seen.steps}) > 500
    assert any(step.num_waiting for step in seen.steps)
    paused = any(a.stop < b.start for a, b in pairwise(seen.steps))
    assert paused == (allocator != "orca-oracle")  # which is never done
    assert any(row.num_preemptions for row in seen.run.rows) == (allocator != "orca-oracle")


# Planted faults -------------------------------------------------------------------------------------------------------


def a_finished_request_leaves_no_row() -> AbstractContextManager[Any]:
    return instead(
        RowStore, "append", lambda original, store, row: None if row.request_id == 40 else original(store, row)
    )


def an_arrival_is_noted_but_not_queued() -> AbstractContextManager[Any]:
    line = "scheduler.add(request)"
    return with_line(Arrivals, "_enqueue_stamped", line, f"request.request_id == 40 or {line}")


def what_a_preemption_loses_is_not_counted() -> AbstractContextManager[Any]:
    return with_line(Progress, "recount", "self.recomputed += max(0, min(computed, high) - start)", "pass")


def a_token_too_many_comes_out() -> AbstractContextManager[Any]:
    return instead(
        Integrals,
        "add_step",
        lambda original, self, start, duration, state, emitted, computed: original(
            self, start, duration, state, emitted + (start % 13 == 0), computed
        ),
    )


def a_block_of_one_request_is_never_freed() -> AbstractContextManager[Any]:
    def leak(original: Callable[..., None], allocator: PagedAllocator, request: Any) -> None:
        if request.request_id == 10:
            allocator.pool.touch(allocator.block_table(request)[:1])
        original(allocator, request)

    return instead(PagedAllocator, "free", leak)


def two_requests_get_the_same_block() -> AbstractContextManager[Any]:
    def share(original: Callable[..., Any], allocator: PagedAllocator, request: Any) -> Any:
        table = list(original(allocator, request))
        return [0, *table[1:]]

    return instead(PagedAllocator, "block_table", share)


def the_clock_jumps_back() -> AbstractContextManager[Any]:
    back = "now += result.duration - (2_000_000 if recorder.num_turns % 50 == 49 else 0)"
    return with_line(Replay, "_turn", "now += result.duration\n", back + "\n")


def requests_are_served_before_they_arrive() -> AbstractContextManager[Any]:
    return instead(Arrivals, "enqueue_until", lambda original, arrivals, now: original(arrivals, now + 5 * US))


def a_first_token_is_stamped_at_the_start_of_its_step() -> AbstractContextManager[Any]:
    return instead(
        Recorder, "updated", lambda original, recorder, now, batch, done: original(recorder, now - US // 2, batch, done)
    )


def the_server_oversleeps() -> AbstractContextManager[Any]:
    return with_line(Replay, "_serve", "now = wake\n", "now = wake + 1_000_000\n")


def an_arrival_is_looked_at_a_step_late() -> AbstractContextManager[Any]:
    late = "if arrivals.next_time + (1_000_000 if scheduler.running else 0) <= now:"
    return with_line(Replay, "_serve", "if arrivals.next_time <= now:", late)


def a_running_request_is_not_counted() -> AbstractContextManager[Any]:
    def fewer(original: Callable[..., Any], *args: Any) -> list[int]:
        state = list(original(*args))
        state[0] = max(state[0] - (state[0] > 3), 0)
        return state

    return instead(PoolState, "_read", fewer)


def a_preempted_request_does_not_wait_again() -> AbstractContextManager[Any]:
    return with_line(Recorder, "moved", "self.wait_starts.append(now)", "self.wait_starts.append(now + 1)")


FAULTS: dict[Callable[[], AbstractContextManager[Any]], str] = {
    a_finished_request_leaves_no_row: "requests_are_conserved",
    an_arrival_is_noted_but_not_queued: "requests_are_conserved",
    what_a_preemption_loses_is_not_counted: "tokens_are_conserved",
    a_token_too_many_comes_out: "tokens_are_conserved",
    a_block_of_one_request_is_never_freed: "blocks_are_conserved",
    two_requests_get_the_same_block: "blocks_are_conserved",
    the_clock_jumps_back: "the_clock_is_monotone",
    a_first_token_is_stamped_at_the_start_of_its_step: "causes_come_first",
    requests_are_served_before_they_arrive: "causes_come_first",
    the_server_oversleeps: "the_server_never_idles_over_work",
    an_arrival_is_looked_at_a_step_late: "requests_are_conserved",
    a_running_request_is_not_counted: "littles_law_holds",
    a_preempted_request_does_not_wait_again: "littles_law_holds",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_noticed_by_its_law(fault):
    with fault():
        seen = tight("paged")

    assert LAWS[FAULTS[fault]](seen) != []


def test_every_law_has_a_fault_that_it_notices():
    assert set(FAULTS.values()) == set(LAWS)


# M/D/1 ----------------------------------------------------------------------------------------------------------------

COUNT, BATCHES, STUDENT = 16_000, 40, 3.558
"""Requests, batches of them, and the 99.95 % quantile of Student's t for 39 degrees of freedom."""


def one_server(rho: float, steps: int, seed: int) -> Run:
    """Poisson arrivals, one sequence at a time, `steps` steps each: M/D/1 of that load."""
    trace = synthetic_trace("poisson", f"fixed:1,{steps}", COUNT, seed=seed, rate_per_s=rho * 1e6 / steps)
    limits = SchedulerConfig(64, max_num_seqs=1)
    return simulate(RunSpec("paged", PoolConfig(8, 16, 64), limits), trace, CostExecutor(STEP))


def bounds(values: np.ndarray) -> tuple[float, float]:
    """Mean and half of its 99.9 % interval, by means of batches: successive waits are not independent."""
    batches = values[len(values) // 10 :]
    means = batches[: len(batches) // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    return float(means.mean()), STUDENT * float(means.std(ddof=1)) / math.sqrt(BATCHES)


def waits(run: Run) -> np.ndarray:
    """In microseconds."""
    return np.array([row.first_scheduled - row.arrival for row in run.rows]) / US


@pytest.mark.parametrize("rho,steps", [(0.3, 1), (0.6, 1), (0.8, 1), (0.6, 5)])
def test_waits_of_one_server_are_those_of_m_d_1(rho, steps):
    """Pollaczek and Khinchine: W = rho / (2 (1 - rho)) services, and a share of 1 - rho does not wait at all."""
    run = one_server(rho, steps, seed=11)
    waited = waits(run)
    mean, half = bounds(waited / steps)
    idle, idle_half = bounds((waited == 0).astype(float))
    expected = rho / (2 * (1 - rho))

    assert abs(mean - expected) <= half
    assert half < 0.3 * expected
    assert abs(idle - (1 - rho)) <= idle_half < 0.05
    assert run.makespan >= COUNT * steps * US


def test_the_queue_of_one_server_is_littles():
    run = one_server(0.6, 1, seed=12)
    queue = run.backlog.until(run.makespan) / run.makespan
    rate_per_us = COUNT / (run.makespan / US)

    assert queue == pytest.approx(rate_per_us * float(waits(run).mean()), rel=1e-9)


def services_take_six_per_cent_longer() -> AbstractContextManager[Any]:
    return instead(type(STEP), "duration", lambda original, model, features: original(model, features) * 106 // 100)


def arrivals_are_half_as_bursty() -> AbstractContextManager[Any]:
    def even(
        original: Callable[..., Any], simulation: Any, spec: Any, trace: Trace, executor: Any, **options: Any
    ) -> None:
        stamps = (trace.arrival_ns + np.linspace(0, trace.arrival_ns[-1], len(trace))) / 2
        columns = trace.num_prompt_tokens, trace.num_output_tokens
        original(simulation, spec, Trace.build(stamps.astype(np.int64), *columns), executor, **options)

    return instead(Simulation, "__init__", even)


@pytest.mark.parametrize(
    "fault", [services_take_six_per_cent_longer, the_server_oversleeps, arrivals_are_half_as_bursty]
)
def test_a_queue_that_is_not_m_d_1_lies_outside_the_bounds(fault):
    with fault():
        mean, half = bounds(waits(one_server(0.6, 1, seed=11)))

    assert abs(mean - 0.75) > half


def test_a_server_of_two_at_a_time_waits_less_than_m_d_1():
    trace = synthetic_trace("poisson", "fixed:1,1", COUNT, seed=11, rate_per_s=0.6e6)
    limits = SchedulerConfig(64, max_num_seqs=2)
    mean, half = bounds(waits(simulate(RunSpec("paged", PoolConfig(8, 16, 64), limits), trace, CostExecutor(STEP))))

    assert mean + half < 0.75


def test_a_trace_without_a_queue_has_none():
    run = simulate(
        RunSpec("paged", PoolConfig(8, 16, 64), SchedulerConfig(64)),
        Trace.build([0, 10_000, 20_000], [1, 1, 1], [2, 2, 2]),
        CostExecutor(STEP),
    )

    assert waits(run).tolist() == [0, 0, 0]
    assert run.backlog.until(run.makespan + 1) == 0
