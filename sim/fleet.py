"""A fleet: replicas on one simulated clock behind a router.

Events in order of time: steps that end, then requests that arrive, then decisions. An arrival is an event for all
replicas, as any of them may get it: it ends a run of equal steps wherever it could be admitted or where the router
looks at memory. So a router sees the state of its instant whether steps are taken at once or one by one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from sim.int_log import IntLog
from sim.row_store import RowStore
from sim.rows import Progress
from sim.sessions import NEVER, After, Arrivals

if TYPE_CHECKING:
    from engine.core.request import Request
    from sim.replica import Replica
    from sim.router import Router

EVENTS_TO_TELL = 4_096
"""Events between two calls of `on_turn`."""


class Front:
    """Where requests reach the fleet: each is sent on, or turned away with a row."""

    def __init__(self, replicas: Sequence[Replica], router: Router) -> None:
        self._replicas = replicas
        self._router = router
        self.rows = RowStore()
        """Of requests that no replica saw."""
        self.wait_starts = IntLog()
        """Of requests that came after a cut."""
        self.sent: list[list[int]] = [[] for _ in replicas]
        """Ids by replica, in the order of sending."""
        self.woken: list[int] = []
        """Replicas that are due earlier than they were, as they got a request; whoever reads it empties it."""
        self.closed = False
        """Whether the run is over: nobody is sent anywhere any more."""

    def refuses_forever(self, request: Request) -> bool:
        """All replicas are alike."""
        return self._replicas[0].scheduler.refuses_forever(request)

    def arrive(self, request: Request) -> None:
        """A replica books it as it takes it from its inbox; after the end, nobody does."""
        if self.closed:
            self.wait_starts.append(request.arrival)

    def add(self, request: Request) -> None:
        """Asks the router and sends the request on."""
        if self.closed:
            self.turn_away(request, "unfinished")
            return
        index = self._router.choose(request, self._replicas)
        self.sent[index].append(request.request_id)
        if self._replicas[index].give(request):
            self.woken.append(index)

    def turn_away(self, request: Request, status: str) -> None:
        """A request that is not replayed keeps its row."""
        self.rows.append(Progress().row(request, status, -1))


class Fleet:
    """One trace through several replicas."""

    def __init__(
        self,
        requests: Iterable[Request],
        replicas: Sequence[Replica],
        router: Router,
        *,
        end: int = NEVER,
        on_turn: Callable[[int], None] | None = None,
        turns: Mapping[int, After] | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        """`end`: picosecond of the cut; `turns` and `max_concurrency`, of the whole fleet: see
        `sim.sessions.Arrivals`."""
        self.replicas = replicas
        self.front = Front(replicas, router)
        self._arrivals = Arrivals(requests, self.front, self.front, turns, max_concurrency)
        self._end = end
        self._on_turn = on_turn
        self._due: list[tuple[int, int]] = []
        """(time, replica): a heap of when busy replicas decide next."""

    def run(self) -> int:
        """Replays to the end and returns the last picosecond of simulated time."""
        collecting = gc.isenabled()
        gc.disable()  # as in `sim.replay`
        try:
            last = self._serve()
        finally:
            if collecting:
                gc.enable()
        final = last if self._end == NEVER else self._end
        self.front.closed = True
        self._arrivals.enqueue_until(final)
        self._arrivals.drain()
        for replica in self.replicas:
            replica.now = final
            replica.close(final)
        self.front.rows.sort()
        return final

    def _serve(self) -> int:
        """Event by event; when the last one was."""
        due, arrivals, end = self._due, self._arrivals, self._end
        now, events = 0, 0
        while True:
            while due and self.replicas[due[0][1]].due != due[0][0]:
                heappop(due)  # a request came before
            soonest = min(arrivals.next_time, due[0][0] if due else NEVER)
            if soonest > end or soonest == NEVER:
                return now
            now = max(now, soonest)
            ready = self._land(now)
            if now >= end:
                return now  # steps that end with the run are booked, and nothing begins
            if arrivals.next_time <= now:
                for replica in self.replicas:
                    replica.now = now
                arrivals.enqueue_until(now)
                ready = sorted({*ready, *self._woken(now)})
            self._decide(ready, now)
            events += 1
            if self._on_turn is not None and events % EVENTS_TO_TELL == 0:
                self._on_turn(now)

    def _woken(self, now: int) -> list[int]:
        """Those that decide now as a request came; others are noted for when they will."""
        ready = []
        for index in self.front.woken:
            time = self.replicas[index].due
            if time == now:
                ready.append(index)
            else:
                heappush(self._due, (time, index))
        self.front.woken.clear()
        return ready

    def _land(self, now: int) -> list[int]:
        """Steps that end now; whose they were, in order."""
        due, ready = self._due, []
        while due and due[0][0] <= now:
            time, index = heappop(due)
            replica = self.replicas[index]
            if replica.due != time or index in ready:
                continue  # noted before a request came
            ready.append(index)
            replica.now = now
            finished = replica.land()
            if finished and self._arrivals.follows_service:
                self._arrivals.ended(now, finished)
        return ready

    def _decide(self, ready: Sequence[int], now: int) -> None:
        """The next steps of those whose last one has ended, or who were idle."""
        due, arrivals = self._due, self._arrivals
        for place, index in enumerate(ready):
            until = arrivals.next_time
            if arrivals.follows_service:
                # Somebody may arrive as soon as a step ends anywhere; of who decides after this one nothing is known.
                until = min(until, now if place + 1 < len(ready) else due[0][0] if due else NEVER)
            replica = self.replicas[index]
            replica.decide(until)
            if replica.due < NEVER:
                heappush(due, (replica.due, index))
