"""Who comes when, by the naive reference: lists that are scanned and sorted again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.naive_request import NaiveRequest


class NaiveArrivals:
    """Requests outside: those whose time is known, those that wait for another's end."""

    def __init__(
        self, trace: Any, made: list[NaiveRequest], most: int | None, refused: Callable[[NaiveRequest], bool]
    ) -> None:
        self.most, self.room_since = most, 0
        self.known: list[NaiveRequest] = []
        self.later: list[tuple[int, int, NaiveRequest]] = []
        """(parent, delay, turn)."""
        self.rejected: list[NaiveRequest] = []
        served = set()
        for request in made:
            row = request.request_id
            parent, delay = int(trace.parent[row]), int(trace.delay_ns[row]) * 1_000
            if (delay >= 0 and parent not in served) or refused(request):
                self.rejected.append(request)
                continue
            served.add(row)
            if delay < 0:
                self.known.append(request)
            else:
                self.later.append((parent, delay, request))

    @property
    def outside(self) -> list[NaiveRequest]:
        return self.known + [turn for _, _, turn in self.later]

    def full(self, inside: int) -> bool:
        return self.most is not None and inside >= self.most

    def pop(self, until: int | None, inside: int) -> NaiveRequest | None:
        """The next that is sent by then; None: at all."""
        if not self.known or self.full(inside) or (until is not None and self.known[0].arrival > until):
            return None
        request = self.known.pop(0)
        request.arrival = max(request.arrival, self.room_since)
        return request

    def ended(self, now: int, request: NaiveRequest, inside: int) -> None:
        """`inside`: with it."""
        if self.full(inside):
            self.room_since = now
        for parent, delay, turn in self.later:
            if parent == request.request_id:
                turn.arrival = max(turn.arrival, now + delay)
                self.known.append(turn)
        self.later = [one for one in self.later if one[0] != request.request_id]
        self.known.sort(key=lambda r: (r.arrival, r.request_id))
