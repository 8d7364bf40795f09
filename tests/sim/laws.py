"""Laws of any queue and any store, checked on what a stepped replay leaves behind: rows, steps, and the pool itself.

Each law takes an `Observed` and says what contradicts it; nothing is taken from `sim.reconcile`, which makes checks of
its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim import integrals as at
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.recorder import Recorder
from sim.simulate import Run, RunSpec, simulate
from tests.sim.planting import instead
from workloads import Trace

US = 10**6
STEP = LinearModel(US, 0, 0, 0)


class Step(NamedTuple):
    """One step: when, and what the scheduler and the pool looked like in it."""

    start: int
    stop: int
    num_new_tokens: int
    num_waiting: int
    num_running: int
    num_free: int
    num_referenced: int
    table: list[int]
    """Blocks of all running requests, one table after the other."""


class Observed(NamedTuple):
    """A replay that was cut nowhere."""

    trace: Trace
    run: Run
    steps: list[Step]


def observe(trace: Trace, pool: PoolConfig, allocator: str, limits: SchedulerConfig) -> Observed:
    """Steps through the trace with steps of a microsecond, looking at the pool in each of them."""
    steps: list[Step] = []

    def record(
        original: Callable[..., None], recorder: Recorder, start: int, batch: Any, result: Any, due: int
    ) -> None:
        original(recorder, start, batch, result, due)
        allocator, running = recorder._allocator, list(recorder._scheduler.running)
        free = allocator.stats()
        table = [block for request in running for block in allocator.block_table(request)]
        waiting = len(recorder._scheduler.waiting)
        steps.append(
            Step(
                start,
                start + result.duration,
                batch.num_new_tokens,
                waiting,
                len(running),
                free.num_free,
                free.num_referenced,
                table,
            )
        )

    with instead(Recorder, "record", record):
        spec = RunSpec(allocator, pool, limits, record_steps=True)
        return Observed(trace, simulate(spec, trace, CostExecutor(STEP)), steps)


def served(seen: Observed) -> list[Any]:
    """Rows of the requests that ran."""
    return [row for row in seen.run.rows if row.status in ("finished", "truncated")]


def requests_are_conserved(seen: Observed) -> list[str]:
    """Arrived = waiting + running + finished, at the start of every step; every request of the trace has one row."""
    ids = [row.request_id for row in seen.run.rows]
    found = [] if ids == list(range(len(seen.trace))) else [f"rows {ids}"]
    arrivals, finishes = (sorted(getattr(row, name) for row in served(seen)) for name in ("arrival", "finish"))
    for step in seen.steps:
        inside = bisect_right(arrivals, step.start) - bisect_right(finishes, step.start)
        if inside != step.num_waiting + step.num_running:
            found.append(f"{step.start}: {inside} inside, {step.num_waiting} wait and {step.num_running} run")
    return found


def tokens_are_conserved(seen: Observed) -> list[str]:
    """Computed in steps = computed for requests = each token of a request once, and what was lost again."""
    found = []
    for row in served(seen):
        once = row.num_prompt_tokens + row.num_output_tokens - 1
        if row.num_computed_tokens - row.num_recomputed_tokens != once:
            found.append(f"request {row.request_id}: {once} tokens, {row.num_computed_tokens} computed")
        if row.status == "finished" and row.num_output_tokens != seen.trace.num_output_tokens[row.request_id]:
            found.append(f"request {row.request_id}: {row.num_output_tokens} tokens came out")
    by_step, by_row = sum(s.num_new_tokens for s in seen.steps), sum(r.num_computed_tokens for r in served(seen))
    emitted = sum(segment[at.EMITTED] for segment in seen.run.recorder.integrals.segments())
    if by_step != by_row or emitted != sum(row.num_output_tokens for row in served(seen)):
        found.append(f"{by_step} tokens in steps, {by_row} for requests, {emitted} emitted")
    return found


def blocks_are_conserved(seen: Observed) -> list[str]:
    """Free + held = all, in every step; no block has two owners; all are free in the end."""
    capacity = seen.run.allocator.capacity_blocks
    found = []
    for step in seen.steps:
        if step.num_free + step.num_referenced != capacity:
            found.append(f"{step.start}: {step.num_free} free, {step.num_referenced} held of {capacity}")
        if len(set(step.table)) != len(step.table):
            found.append(f"{step.start}: a block is in two tables")
        if not len(step.table) <= step.num_referenced:
            found.append(f"{step.start}: {len(step.table)} in tables, {step.num_referenced} held")
    if seen.run.allocator.stats().num_free != capacity:
        found.append(f"{seen.run.allocator.stats().num_free} of {capacity} free in the end")
    return found


def the_clock_is_monotone(seen: Observed) -> list[str]:
    """Steps follow each other, take time, and end with the run."""
    found, last = [], 0
    for step in seen.steps:
        if not last <= step.start < step.stop:
            found.append(f"a step from {step.start} to {step.stop} after {last}")
        last = step.stop
    return found if last == seen.run.makespan else [*found, f"the last step ends at {last}, not {seen.run.makespan}"]


def causes_come_first(seen: Observed) -> list[str]:
    """Nobody runs before arriving or is served outside a step, and tokens come a step apart."""
    starts, stops = {step.start for step in seen.steps}, {step.stop for step in seen.steps}
    found = []
    for row in served(seen):
        if not row.arrival <= row.first_scheduled < row.first_token <= row.finish:
            found.append(f"{row.request_id}: {row.arrival}, {row.first_scheduled}, {row.first_token}, {row.finish}")
        if row.first_scheduled not in starts or not {row.first_token, row.finish} <= stops:
            found.append(f"{row.request_id}: scheduled or served between steps")
        if row.finish - row.first_token < (row.num_output_tokens - 1) * US:
            found.append(f"{row.request_id}: {row.num_output_tokens} tokens from {row.first_token} to {row.finish}")
    return found


def the_server_never_idles_over_work(seen: Observed) -> list[str]:
    """Between steps there is a pause only while nobody is inside, and it ends with an arrival."""
    arrivals, finishes = (sorted(getattr(row, name) for row in served(seen)) for name in ("arrival", "finish"))
    found, last = [], 0
    for step in seen.steps:
        if step.start > last:
            left = bisect_right(arrivals, step.start - 1) - bisect_right(finishes, step.start - 1)
            if left or step.start not in arrivals:
                found.append(f"idle from {last} to {step.start} with {left} inside")
        last = step.stop
    return found


def littles_law_holds(seen: Observed) -> list[str]:
    """Time integral of those inside = sum of their times inside: L = lambda W, exactly over a whole run."""
    whole = [sum(column) for column in zip(*seen.run.recorder.integrals.segments(), strict=True)]
    waiting = seen.run.backlog.until(seen.run.makespan + 1)
    inside = whole[at.SEQS] + waiting
    times = sum(row.finish - row.arrival for row in served(seen))
    by_steps = sum((step.stop - step.start) * step.num_running for step in seen.steps)
    found = [] if inside == times else [f"integral {inside}, times {times}"]
    return found if by_steps == whole[at.SEQS] else [*found, f"running {whole[at.SEQS]}, by steps {by_steps}"]


LAWS: dict[str, Callable[[Observed], list[str]]] = {
    law.__name__: law
    for law in (
        requests_are_conserved,
        tokens_are_conserved,
        blocks_are_conserved,
        the_clock_is_monotone,
        causes_come_first,
        the_server_never_idles_over_work,
        littles_law_holds,
    )
}
