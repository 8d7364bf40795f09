"""The replay loop: simulated time around the step. The only place with a clock.

At boundary t all arrivals with time <= t join the queue in trace order, then the scheduler decides. State is constant
from one boundary to the next and is the state after `schedule()`. Arrivals are pulled from the trace, so event order
inside SimPy decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import simpy

from engine.core.step import Cut, longest_run

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.executor import Executor
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from sim.recorder import Recorder

MAX_FRUITLESS_PREEMPTIONS = 1_000
"""Preemptions of one request without a new token in between that count as livelock."""


class Livelock(RuntimeError):
    """The loop makes no progress: a bug of a scheduler or an allocator, reported instead of spinning."""


class Arrivals:
    """The requests of a trace in order of arrival; those that can never be served get a row and are passed over."""

    def __init__(self, requests: Iterable[Request], scheduler: Scheduler, recorder: Recorder) -> None:
        self._requests: Iterator[Request] = iter(requests)
        self._scheduler = scheduler
        self._recorder = recorder
        self._next: Request | None = None
        self.next_time: int | None = None
        """When the next request arrives; None after the last."""
        self._pull()

    def _pull(self) -> None:
        self._next = self.next_time = None
        for request in self._requests:
            if not self._scheduler.refuses_forever(request):
                self._next, self.next_time = request, request.arrival
                return
            self._recorder.turn_away(request, "rejected")

    def enqueue_until(self, now: int) -> None:
        """Queues everything that has arrived."""
        while self._next is not None and self._next.arrival <= now:
            self._recorder.arrive(self._next)
            self._scheduler.add(self._next)
            self._pull()

    def drain(self) -> None:
        """Queues the rest, so that a run that is cut accounts for every request."""
        while self._next is not None:
            self.enqueue_until(self._next.arrival)


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
    ) -> None:
        """`end`: picosecond at which the run is cut; None drains. `cut` shortens runs of equal steps (see
        `engine.core.step`). `on_turn` is told the simulated time now and then, for progress bars."""
        self._scheduler = scheduler
        self._executor = executor
        self._recorder = recorder
        self._end = end
        self._cut = cut
        self._on_turn = on_turn
        self._arrivals = Arrivals(requests, scheduler, recorder)
        self._stuck = 0
        self._fruitless: dict[Request, tuple[int, int]] = {}

    def run(self) -> int:
        """Replays to the end and returns the last picosecond of simulated time."""
        env = simpy.Environment()
        server = env.process(self._serve(env))
        env.run(until=server)
        now = int(env.now) if self._end is None else min(int(env.now), self._end)
        self._arrivals.drain()
        self._recorder.close(now)
        return now

    def _serve(self, env: simpy.Environment) -> Generator[simpy.Event, object, None]:
        scheduler, recorder, arrivals = self._scheduler, self._recorder, self._arrivals
        turns = 0
        while True:
            now = int(env.now)
            if self._end is not None and now >= self._end:
                return
            due = arrivals.next_time
            if due is not None and due <= now:
                arrivals.enqueue_until(now)
            if not scheduler.running and not scheduler.waiting:
                wake = self._wake(arrivals.next_time)
                if wake is None:
                    return
                recorder.idle(now, wake)
                yield env.timeout(wake - now)
                continue
            batch = scheduler.schedule()
            recorder.scheduled(now, batch)
            if batch.preempted or not batch.num_seqs:
                self._watch_progress(batch)
                if not batch.num_seqs:
                    continue
            self._stuck = 0
            result = self._submit(now, batch)
            recorder.elapsed(now, batch, result, arrivals.next_time)
            turns += 1
            if self._on_turn is not None and not turns & 1023:
                self._on_turn(now)
            yield env.timeout(result.duration)
            if self._end is not None and now + result.duration > self._end:
                return
            finished = scheduler.update(batch, result)
            recorder.updated(now + result.duration, batch, finished)

    def _wake(self, arrival: int | None) -> int | None:
        if arrival is None or self._end is None:
            return self._end if arrival is None and self._end is not None else arrival
        return min(arrival, self._end)

    def _submit(self, now: int, batch: Batch) -> StepResult:
        """Runs the batch up to the next arrival that may matter, or up to the cut."""
        until: int | None = None
        if self._scheduler.arrival_matters():
            until = self._arrivals.next_time
        if self._end is not None:
            until = self._end if until is None else min(until, self._end)
        pictured = self._recorder.next_snapshot
        if pictured is not None and (until is None or pictured < until):
            until = pictured
        relative = None if until is None else until - now
        steps = longest_run(self._scheduler, self._executor, batch, self._cut)
        result = self._executor.submit(batch, steps, relative).result()
        if self._end is not None and result.num_steps > 1 and now + result.duration > self._end:
            return _without_last_step(result)
        return result

    def _watch_progress(self, batch: Batch) -> None:
        """Raises where a broken scheduler or allocator would spin for ever."""
        if not batch.num_seqs:
            self._stuck += 1
            if self._stuck > 2:
                head = self._scheduler.waiting.head()
                raise Livelock(f"nothing runs and {head} is refused for ever: {batch.head_refusal}")
        for request, _ in batch.preempted:
            tokens, count = self._fruitless.get(request, (-1, 0))
            count = count + 1 if tokens == request.num_tokens else 1
            self._fruitless[request] = (request.num_tokens, count)
            if count > MAX_FRUITLESS_PREEMPTIONS:
                raise Livelock(f"{request} was preempted {count} times without a new token")


def _without_last_step(result: StepResult) -> StepResult:
    """The run up to the step that a cut falls into; that one is decided again, alone."""
    steps = result.num_steps - 1
    last = result.durations[steps] if result.durations is not None else result.first + result.slope * steps
    durations = None if result.durations is None else result.durations[:steps]
    return result._replace(num_steps=steps, duration=result.duration - last, stopped=(), durations=durations)
