"""The step without a clock: schedule, submit, update. The simulator puts simulated time around it, the engine none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from engine.core.batch import StepResult

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.executor import Executor
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler

Cut = Callable[[int], int]
"""Shortens a run of equal steps: from the longest that is worth asking for to any number from 1 to it."""


def never_skip(num_steps: int) -> int:
    """Stepping: the case 'cut everywhere'."""
    return 1


class Stepped(NamedTuple):
    """One turn of the loop: a batch, run for one or more equal steps."""

    batch: Batch
    result: StepResult
    finished: list[Request]


def horizon(
    scheduler: Scheduler,
    executor: Executor,
    until: int | None = None,
    end: int | None = None,
    cut: Cut | None = None,
) -> int:
    """How many equal steps the next batch may stand for, should it turn out to be pure decoding.

    The executor knows lengths and time; whether the batch is steady and memory lasts, `schedule` finds out.
    """
    if cut is never_skip or not scheduler.decodes.members:
        return 1
    steps = executor.horizon(scheduler.decodes, until, end)
    return steps if cut is None or steps == 1 else max(1, min(steps, cut(steps)))


NOTHING = StepResult(0, 0)
"""Of a batch in which nobody runs: everybody was preempted, and the next one admits again."""


def execute(scheduler: Scheduler, executor: Executor, batch: Batch) -> StepResult:
    """Runs a batch; while it runs elsewhere, the scheduler does what the next ones would do first."""
    pending = executor.submit(batch)
    if isinstance(pending, StepResult):
        return pending
    if pending.running:
        scheduler.look_ahead()
    return pending.result()


def step(scheduler: Scheduler, executor: Executor, *, until: int | None = None, cut: Cut | None = None) -> Stepped:
    """One whole turn, for loops that need no look between its parts."""
    batch = scheduler.schedule(horizon(scheduler, executor, until=until, cut=cut))
    if not batch.num_seqs:
        return Stepped(batch, NOTHING, [])
    result = execute(scheduler, executor, batch)
    return Stepped(batch, result, scheduler.update(batch, result))
