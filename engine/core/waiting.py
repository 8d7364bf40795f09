"""The waiting requests, first come first served or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from engine.core.request import Request


class WaitingQueue(Protocol):
    """Requests that hold no memory, in the order in which they will be admitted."""

    def append(self, request: Request) -> None:
        """A new arrival."""
        ...

    def put_back(self, request: Request) -> None:
        """A preempted request."""
        ...

    def head(self) -> Request:
        """The next to be admitted."""
        ...

    def pop_head(self) -> Request:
        """Removes and returns the head."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue(deque["Request"]):
    """Arrival order; preempted requests return to the front. A deque, so that asking for its length costs nothing."""

    put_back = deque.appendleft
    pop_head = deque.popleft

    def head(self) -> Request:
        """O(1)."""
        return self[0]


class PriorityQueue:
    """Smallest (priority, arrival, request id) first; preempted requests return to their place in that order."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any, Request]] = []

    def append(self, request: Request) -> None:
        """O(log n)."""
        heapq.heappush(self._heap, (request.priority, request.arrival, request.request_id, request))

    put_back = append

    def head(self) -> Request:
        """O(1)."""
        return self._heap[0][3]

    def pop_head(self) -> Request:
        """O(log n)."""
        return heapq.heappop(self._heap)[3]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap, key=lambda entry: entry[:3]))
