"""What arrives when: by its stamp (open loop), some time after another request's end, or when a client is free.

A turn of a conversation comes `delay` after the end of the turn before it, and never before its own stamp. A turn is
rejected where the turn before it was turned away (it too long, or without output): nobody would have sent it. At a cut,
turns whose turn before is not done are unfinished, as what is in the queue. A cap on concurrency keeps requests with
their clients, in order of their times, until fewer are inside; what is measured begins when they are sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import numpy as np

from engine.core.group import over
from sim.arrivals import PS_PER_NS

if TYPE_CHECKING:
    from engine.core.request import Request
    from workloads import Trace

NEVER: Final = 1 << 100
"""A picosecond that does not come."""

Loop = Literal["open", "partly open", "closed"]


class Door(Protocol):
    """Where requests join: a scheduler, or the front of a fleet."""

    def refuses_forever(self, request: Request) -> bool:
        """Whether it can never be served."""
        ...

    def add(self, request: Request) -> None:
        """It has arrived."""
        ...


class Book(Protocol):
    """Who writes down what becomes of requests that nobody serves, and when the others began to wait."""

    def arrive(self, request: Request) -> None:
        """It is about to be added."""
        ...

    def turn_away(self, request: Request, status: str) -> None:
        """It is not served: a row of this status."""
        ...


class After(NamedTuple):
    """What a turn waits for: its parent's end, and then so long in picoseconds."""

    parent: int
    delay: int


def turns_of(trace: Trace) -> dict[int, After]:
    """The rows that come after others, by row."""
    rows = np.flatnonzero(trace.delay_ns >= 0)
    parents, delays = trace.parent[rows].tolist(), trace.delay_ns[rows].tolist()
    return {
        row: After(parent, delay * PS_PER_NS) for row, parent, delay in zip(rows.tolist(), parents, delays, strict=True)
    }


def loop_of(trace: Trace, max_concurrency: int | None) -> Loop:
    """open: arrivals do not depend on service. partly open: conversations begin by their stamps, their turns depend on
    service (Schroeder et al., NSDI'06). closed: all conversations begin at once, or a cap sends by completions."""
    if max_concurrency is not None:
        return "closed"
    first = trace.arrival_ns[trace.delay_ns < 0]
    if len(first) == len(trace):
        return "open"
    return "partly open" if first[-1] > first[0] else "closed"


def last_arrival_ps(trace: Trace) -> int:
    """Of all rows, replayed or not: the same for every allocator. Where turns wait for others, the earliest that is
    possible: as if all requests were served in no time."""
    turns = turns_of(trace)
    if not turns:
        return int(trace.arrival_ns[-1]) * PS_PER_NS if len(trace) else 0
    arrivals: list[int] = trace.arrival_ns.tolist()
    for row, (parent, delay) in turns.items():
        arrivals[row] = max(arrivals[row], arrivals[parent] + delay // PS_PER_NS)
    return max(arrivals) * PS_PER_NS


class Arrivals:
    """The requests of a trace in order of arrival, ties in trace order; those that can never be served get a row and
    are passed over."""

    def __init__(
        self,
        requests: Iterable[Request],
        scheduler: Door,
        recorder: Book,
        turns: Mapping[int, After] | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        """`turns`: who comes after whom, by request id; a turn after the one it waits for, and none before a stamped
        request of its time. `max_concurrency`: most requests inside at once."""
        self._requests: Iterator[Request] = iter(requests)
        self._scheduler = scheduler
        self._recorder = recorder
        self._turns = turns or {}
        self._ends = dict.fromkeys((turn.parent for turn in self._turns.values()), NEVER)
        """When those ended that others wait for; NEVER: not yet."""
        self._seen: set[int] = set()
        """Those of them that were not turned away."""
        self._held: dict[int, list[Request]] = {}
        """Turns, by the request whose end they wait for."""
        self._due: list[tuple[int, int, Request]] = []
        """(arrival, id, turn) of those whose time is known: a heap."""
        self._capped = max_concurrency is not None
        self._room = NEVER if max_concurrency is None else max_concurrency
        self._room_since = 0
        self._next: Request | None = None
        self.follows_service = bool(self._turns) or self._capped
        """Whether somebody's end can bring an arrival: `ended` must be told."""
        self.next_time: int = NEVER
        """When the next request arrives, as far as is known; NEVER: not before somebody's end, or not at all."""
        self._pull()

    def _pull(self) -> None:
        """Finds the next stamped request; turns on the way to it are put aside."""
        self._next = None
        for request in self._requests:
            turn = self._turns.get(request.request_id)
            lost = turn is not None and turn.parent not in self._seen
            if lost or self._scheduler.refuses_forever(request):
                self._recorder.turn_away(request, "rejected")
                continue
            if request.request_id in self._ends:
                self._seen.add(request.request_id)
            if turn is None:
                self._next = request
                break
            if self._ends[turn.parent] == NEVER:
                self._held.setdefault(turn.parent, []).append(request)
            else:
                self._release(request, self._ends[turn.parent] + turn.delay)
        self._look()

    def _release(self, request: Request, time: int) -> None:
        request.arrival = max(request.arrival, time)
        heapq.heappush(self._due, (request.arrival, request.request_id, request))

    def _look(self) -> None:
        """Sets `next_time`."""
        stamped = NEVER if self._next is None else self._next.arrival
        due = self._due[0][0] if self._due else NEVER
        self.next_time = min(stamped, due) if self._room else NEVER

    def enqueue_until(self, now: int) -> None:
        """Queues everything that has arrived."""
        if not self.follows_service:
            self._enqueue_stamped(now)
            return
        while self.next_time <= now:
            request = self._take()
            request.arrival = max(request.arrival, self._room_since)
            self._room -= 1
            self._recorder.arrive(request)
            self._scheduler.add(request)
            self._look()

    def _enqueue_stamped(self, now: int) -> None:
        """The same where stamps are all there is: the loop of most replays, once a request."""
        scheduler, recorder = self._scheduler, self._recorder
        while self.next_time <= now:
            request = self._next
            assert request is not None
            recorder.arrive(request)
            scheduler.add(request)
            self._next, self.next_time = None, NEVER
            for request in self._requests:
                if not scheduler.refuses_forever(request):
                    self._next, self.next_time = request, request.arrival
                    break
                recorder.turn_away(request, "rejected")

    def _take(self) -> Request:
        """The first by time, then by id."""
        request = self._next
        if request is None or (self._due and self._due[0][:2] < (request.arrival, request.request_id)):
            return heapq.heappop(self._due)[2]
        self._pull()
        return request

    def ended(self, now: int, finished: Sequence[Request]) -> int:
        """Requests have left at `now`; the answer is `next_time`. Only needed where arrivals follow service."""
        if self._capped:
            self.enqueue_until(now - 1)  # sent before, while the step ran: they took their room first
            if not self._room:
                self._room_since = now
        done = over(finished)
        self._room += len(done)
        for request in done:
            if request.request_id in self._ends:
                self._ends[request.request_id] = now
                for turn in self._held.pop(request.request_id, ()):
                    self._release(turn, now + self._turns[turn.request_id].delay)
        self._look()
        return self.next_time

    def drain(self) -> None:
        """Queues or books the rest, so that a run that is cut accounts for every request."""
        capped, self._room = self._capped, NEVER
        self._look()
        while self.next_time < NEVER:
            if capped:  # still with its client, whatever its time
                self._recorder.turn_away(self._take(), "unfinished")
                self._look()
            else:
                self.enqueue_until(self.next_time)
        for turns in self._held.values():
            for turn in turns:
                self._recorder.turn_away(turn, "unfinished")
        self._held.clear()
