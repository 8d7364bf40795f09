"""One replica of a fleet: a scheduler, an allocator, an executor and what watches them, moved from event to event.

In the order of an instant: steps that end there land, requests that arrive there are routed, and then the replica
decides its next step. What a step did is booked as it lands, so that between events the replica shows the state of the
step that is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.core.group import over
from engine.core.progress import Progress
from engine.core.step import Cut, execute, horizon
from sim.coast import Coast
from sim.cost_executor import CostExecutor
from sim.sessions import NEVER

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.executor import Executor
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from sim.recorder import Recorder


class _NobodyFollows:
    """For coasting: arrivals that no end brings about."""

    follows_service = False

    def ended(self, now: int, finished: Sequence[Request]) -> int:
        """Never asked."""
        raise AssertionError("a replica that coasts has arrivals that follow service")


class Replica:
    """A server that does nothing by itself: the fleet tells it when."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        recorder: Recorder,
        *,
        end: int,
        cut: Cut | None,
        reads_memory: bool,
        follows_service: bool,
    ) -> None:
        """`end`: picosecond of the cut, or NEVER. `reads_memory`: the router looks at blocks, so that runs of equal
        steps end with each arrival. `follows_service`: an end here may bring an arrival anywhere."""
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.now = 0
        """The instant up to which the fleet has come."""
        self.due = NEVER
        """When it decides next; NEVER while it is idle."""
        self.num_sent = 0
        self._end = end
        self._cut = cut
        self._reads_memory = reads_memory
        self._inbox: deque[Request] = deque()
        """Arrived, and not yet seen by the scheduler: it looks at step boundaries."""
        self._flight: tuple[int, Batch, StepResult] | None = None
        self._idle_since = 0
        self._done: deque[int] = deque()
        """When requests ended that still count as inside."""
        self._num_done = 0
        self._progress = Progress(scheduler)
        self._coast: Coast | None = None
        self._coasts_from = -1
        """Where a run of pure decoding began that nobody has looked at yet: it goes on to its first end, which is
        `due`, unless a request comes before; -1: none."""
        if cut is None and isinstance(executor, CostExecutor) and not (reads_memory or follows_service):
            self._coast = Coast(scheduler, executor, self, _NobodyFollows())

    # what a router sees -------------------------------------------------------------------------------------------

    @property
    def num_inside(self) -> int:
        """Requests queued and running now."""
        done = self._done
        while done and done[0] <= self.now:
            done.popleft()
            self._num_done += 1
        return self.num_sent - self._num_done

    @property
    def num_blocks_used(self) -> int:
        """Blocks that running requests hold."""
        return self.scheduler.allocator.stats().num_referenced

    def num_held(self, request: Request) -> int:
        """Tokens of its prompt that could be taken from the cache here."""
        return self.scheduler.allocator.lookup(request).num_tokens

    # events -------------------------------------------------------------------------------------------------------

    def give(self, request: Request) -> bool:
        """A request for this replica; whether it is due earlier now."""
        self.num_sent += 1
        self._inbox.append(request)
        before = self.due
        if before == NEVER:
            self.due = self.now
            self.recorder.idle(self._idle_since, self.now)
        elif self._coasts_from >= 0:
            self._drift(self.now)
        return self.due != before

    def _drift(self, until: int) -> None:
        """Makes good the run of pure decoding, up to its first step boundary at or after `until`."""
        assert self._coast is not None
        start, self._coasts_from = self._coasts_from, -1
        self.due = self._coast.run(start, until, self._end)

    def land(self) -> list[Request]:
        """The step under way ends now; who finished."""
        if self._coasts_from >= 0:
            self._drift(self.now)
        if self._flight is None:
            return []
        batch, result = self._book()
        finished = self.scheduler.update(batch, result)
        self.recorder.updated(self.now, batch, finished)
        self._ended(self.now, finished)
        return finished

    def _book(self) -> tuple[Batch, StepResult]:
        assert self._flight is not None
        start, batch, result = self._flight
        self._flight = None
        self.recorder.record(start, batch, result, self._inbox[0].arrival if self._inbox else NEVER)
        return batch, result

    def decide(self, until: int) -> None:
        """The next step or run of equal steps, from now on; `until`: when the next request may arrive anywhere."""
        scheduler, now = self.scheduler, self.now
        asks = not self._inbox or bool(scheduler.waiting)
        self._enqueue()
        while True:
            if not scheduler.running and not scheduler.has_work:
                self.due, self._idle_since = NEVER, now
                return
            if self._coast is not None and scheduler.may_coast:
                self.due = self._coast.next_end(now, min(self._end, self.recorder.snapshot_due))
                if self.due > now:
                    self._coasts_from = now
                    return
                self.due = self._coast.run(now, min(until, self.recorder.snapshot_due), self._end)
                if self.due > now:
                    return
            batch = scheduler.schedule(self._horizon(until) if asks else 1)
            if batch.preempted or not batch.num_seqs:
                self._progress.watch(batch)
            if batch.num_seqs:
                break
            self.recorder.moved(now, batch)
            asks = True
        result = execute(scheduler, self.executor, batch)
        self._flight = now, batch, result
        self.due = now + result.duration

    def _enqueue(self) -> None:
        while self._inbox:
            request = self._inbox.popleft()
            self.recorder.arrive(request)
            self.scheduler.add(request)

    def _horizon(self, until: int) -> int:
        """As in `sim.replay`; a router that reads memory wants every arrival to be an edge."""
        scheduler, now = self.scheduler, self.now
        if not scheduler.may_run_on:
            return 1
        stop = until if self._reads_memory or scheduler.arrival_matters() else NEVER
        stop = min(stop, self.recorder.snapshot_due)
        if stop <= now:
            return 1
        away = None if stop == NEVER else stop - now
        left = None if self._end == NEVER else self._end - now
        return horizon(scheduler, self.executor, away, left, self._cut)

    # coasting: the recorder, and an ear for who ends ----------------------------------------------------------------

    def coasted(self, start: int, first: int, slope: int, duration: int, taken: Sequence[int]) -> None:
        """See `Recorder.coasted`."""
        self.recorder.coasted(start, first, slope, duration, taken)

    def finished(self, now: int, finished: Sequence[Request]) -> None:
        """Requests that stopped at `now`, which may lie ahead."""
        self.recorder.finished(now, finished)
        self._ended(now, finished)

    def _ended(self, now: int, finished: Sequence[Request]) -> None:
        self._done.extend(now for _ in over(finished))

    # the end ------------------------------------------------------------------------------------------------------

    def close(self, final: int) -> None:
        """The run ends at `final`: what is under way is booked as far as it came."""
        if self._flight is not None:
            self._book()
        elif self.due == NEVER and self._idle_since < final:
            self.recorder.idle(self._idle_since, final)
        self._enqueue()
        self.recorder.close(final)
