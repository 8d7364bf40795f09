"""Coasting: nobody waits and all that run decode, so the replay goes from stop to stop without a batch.

Until the next arrival nothing is decided. All that happens is that requests take blocks and stop, in an order that
the decode set and the executor know beforehand. Any turn that is not plain (memory may run short, a step model with
knees, a picture due, the end of the run) is left to the scheduler, which decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sim.progression import reach, total

if TYPE_CHECKING:
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from sim.cost_executor import CostExecutor


class Watching(Protocol):
    """Who is told what happens on the way: a recorder, or a replica in front of its own."""

    def coasted(self, start: int, first: int, slope: int, duration: int, taken: Sequence[int]) -> None:
        """See `Recorder.coasted`."""
        ...

    def finished(self, now: int, finished: Sequence[Request]) -> None:
        """Requests that stopped at `now`."""
        ...


class Following(Protocol):
    """Who may have somebody arrive when somebody ends."""

    follows_service: bool

    def ended(self, now: int, finished: Sequence[Request]) -> int:
        """See `Arrivals.ended`."""
        ...


class Coast:
    """Turns of pure decoding, for executors that know lengths and time by themselves."""

    def __init__(self, scheduler: Scheduler, executor: CostExecutor, recorder: Watching, arrivals: Following) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._recorder = recorder
        self._arrivals = arrivals

    def next_end(self, now: int, end: int) -> int:
        """When the first of them stops, if nobody arrives before; `now` itself where that cannot be said, or is beyond
        `end`. Changes nothing."""
        decodes = self._scheduler.decodes
        if not decodes.members:
            return now
        stop, first, slope = self._executor.line(decodes)
        if slope is None:
            return now
        steps = stop - decodes.clock
        then = now + total(first, slope, steps)
        return then if then <= end and self._scheduler.lasts(steps) else now

    def run(self, now: int, until: int, end: int) -> int:
        """From the step boundary `now` to the first one at or after `until`, or to where the scheduler must decide.

        Only where the scheduler `may_coast`; the answer is `now` itself if it must decide at once. A step that would
        run beyond `end` is left alone.
        """
        scheduler, executor, recorder = self._scheduler, self._executor, self._recorder
        decodes = scheduler.decodes
        while now < until and decodes.members:
            stop, first, slope = executor.line(decodes)
            if slope is None:
                break
            steps = most = stop - decodes.clock
            duration = steps * first + slope * (steps * (steps - 1) // 2)
            if now + duration > until:
                steps, duration = reach(first, slope, until - now)
            growth = scheduler.coast(steps) if now + duration <= end else None
            if growth is None:
                break
            if len(growth) < steps:
                steps = len(growth)
                duration = total(first, slope, steps)
            recorder.coasted(now, first, slope, duration, growth)
            now += duration
            if steps == most:
                finished = scheduler.finish(executor.stopped_at(stop))
                recorder.finished(now, finished)
                if self._arrivals.follows_service:
                    until = min(until, self._arrivals.ended(now, finished))
        return now
