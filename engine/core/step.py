"""The step without a clock: schedule, submit, update. The simulator puts simulated time around it, the engine none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.executor import Executor
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler

Cut = Callable[[int], int]
"""Shortens a run of equal steps: from the longest legal number of steps to any number from 1 to it."""


def never_skip(num_steps: int) -> int:
    """Stepping: the case 'cut everywhere'."""
    return 1


class Stepped(NamedTuple):
    """One turn of the loop: a batch, run for one or more equal steps."""

    batch: Batch
    result: StepResult
    finished: list[Request]


def longest_run(scheduler: Scheduler, executor: Executor, batch: Batch, cut: Cut | None = None) -> int:
    """Steps that this batch may stand for: up to the next stop (the executor's knowledge) and the next decision of
    the scheduler, whichever is first."""
    if executor.max_steps == 1 or not batch.steady:
        return 1
    limit = scheduler.steady_limit(batch, min(executor.steps_to_stop(batch), executor.max_steps))
    return limit if cut is None or limit == 1 else max(1, min(limit, cut(limit)))


def step(scheduler: Scheduler, executor: Executor, *, until: int | None = None, cut: Cut | None = None) -> Stepped:
    """One whole turn, for loops that need no look between its parts."""
    batch = scheduler.schedule()
    result = executor.submit(batch, longest_run(scheduler, executor, batch, cut), until).result()
    return Stepped(batch, result, scheduler.update(batch, result))
