"""The replay loop: simulated time around the step. The only place with a clock.

At boundary t all arrivals with time <= t join the queue in trace order, then the scheduler decides. State is constant
from one boundary to the next and is the state after `schedule()`. Arrivals are pulled from the trace, so event order
inside SimPy decides nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING

import simpy

from engine.core.progress import Progress
from engine.core.step import Cut, execute, horizon
from sim.coast import Coast
from sim.cost_executor import CostExecutor
from sim.sessions import NEVER, Arrivals

if TYPE_CHECKING:
    from engine.core.executor import Executor
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from sim.recorder import Recorder
    from sim.sessions import After

TURNS_TO_TELL = 1_024
"""Turns between two calls of `on_turn`, at least."""


class Replay:
    """One trace through one scheduler, one allocator and one executor."""

    def __init__(
        self,
        requests: Iterable[Request],
        scheduler: Scheduler,
        executor: Executor,
        recorder: Recorder,
        *,
        end: int | None = None,
        cut: Cut | None = None,
        on_turn: Callable[[int], None] | None = None,
        turns: Mapping[int, After] | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        """`end`: picosecond at which the run is cut; None drains. `cut` shortens runs of equal steps (see
        `engine.core.step`). `on_turn` is told the simulated time now and then, for progress bars. `turns` and
        `max_concurrency`: see `sim.sessions.Arrivals`."""
        self._scheduler = scheduler
        self._executor = executor
        self._recorder = recorder
        self._end = NEVER if end is None else end
        self._cut = cut
        self._on_turn = on_turn
        self._arrivals = Arrivals(requests, scheduler, recorder, turns, max_concurrency)
        self._coast: Coast | None = None
        if cut is None and isinstance(executor, CostExecutor):
            self._coast = Coast(scheduler, executor, recorder, self._arrivals)
        self._progress = Progress(scheduler)

    def run(self) -> int:
        """Replays to the end and returns the last picosecond of simulated time."""
        env = simpy.Environment()
        server = env.process(self._serve(env))
        collecting = gc.isenabled()
        gc.disable()  # a replay makes no cycles, and hundreds of thousands of objects that live to its end
        try:
            now: int = env.run(until=server)  # type: ignore[assignment]
        finally:
            if collecting:
                gc.enable()
        self._arrivals.enqueue_until(now)  # sent while the last step ran
        self._arrivals.drain()
        self._recorder.close(now)
        return now

    def _serve(self, env: simpy.Environment) -> Generator[simpy.Event, object, int]:
        """The server: its own time runs ahead of the environment's while no other event is due before it."""
        scheduler, recorder, arrivals, end = self._scheduler, self._recorder, self._arrivals, self._end
        on_turn, tell = self._on_turn, TURNS_TO_TELL
        coast = self._coast
        due = _next_event(env)  # nobody can schedule an event before this process yields
        now = int(env.now)
        while True:  # not `while now < end`: CPython 3.11 specialises a loop by its unconditional jumps back
            if now >= end:
                return now
            if arrivals.next_time <= now:
                asks = bool(scheduler.waiting)  # who finds nobody in front is admitted, as a rule: no run to ask for
                arrivals.enqueue_until(now)
            else:
                asks = True
            if not scheduler.running and not scheduler.has_work:
                wake = min(arrivals.next_time, end)
                if wake == NEVER:
                    return now
                recorder.idle(now, wake)
                now = wake
            elif (
                coast is not None
                and not scheduler.waiting
                and scheduler.may_coast
                and (ahead := coast.run(now, min(arrivals.next_time, recorder.snapshot_due, due), end)) > now
            ):
                now = ahead
            else:
                now = self._turn(now, self._horizon(now, end) if asks else 1)
            if on_turn is not None and recorder.num_turns >= tell:
                tell = recorder.num_turns + TURNS_TO_TELL
                on_turn(now)
            if due <= now:
                yield env.timeout(now - int(env.now))
                due = _next_event(env)

    def _turn(self, now: int, horizon: int) -> int:
        """One batch that begins at `now`: when it ends. At once where all in it were preempted; with the run where it
        would go on beyond that, and nothing comes of it."""
        scheduler, recorder, arrivals = self._scheduler, self._recorder, self._arrivals
        batch = scheduler.schedule(horizon)
        if batch.preempted or not batch.num_seqs:
            self._progress.watch(batch)
            if not batch.num_seqs:
                recorder.moved(now, batch)
                return now
        result = execute(scheduler, self._executor, batch)
        recorder.record(now, batch, result, arrivals.next_time)
        now += result.duration
        if now > self._end:
            return self._end
        finished = scheduler.update(batch, result)
        recorder.updated(now, batch, finished)
        if finished and arrivals.follows_service:
            arrivals.ended(now, finished)
        return now

    def _horizon(self, now: int, end: int) -> int:
        """How many equal steps to ask for: up to the next arrival that may matter, the next picture, or the cut."""
        scheduler = self._scheduler
        if not scheduler.may_run_on:
            return 1
        until = self._arrivals.next_time if scheduler.arrival_matters() else NEVER
        if self._recorder.snapshot_due < until:
            until = self._recorder.snapshot_due
            if until <= now:
                return 1
        away = None if until == NEVER else until - now
        return horizon(scheduler, self._executor, away, None if end == NEVER else end - now, self._cut)


def _next_event(env: simpy.Environment) -> int:
    """When somebody else's next event is due."""
    due = env.peek()
    return NEVER if due == float("inf") else int(due)
