"""When requests that had run held no memory: from each preemption to the resumption that followed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.int_log import IntLog

if TYPE_CHECKING:
    from engine.core.request import Request

NEVER: Final = -1


class Away:
    """Intervals by request, in the order in which they began; a group counts as one."""

    __slots__ = ("_open", "_stops", "requests", "starts", "swapped")

    def __init__(self) -> None:
        self.requests = IntLog()
        """Request ids."""
        self.starts = IntLog()
        self.swapped = IntLog()
        """1 where its tokens went to host memory, 0 where they were lost."""
        self._open: dict[int, int] = {}
        self._stops: dict[int, int] = {}

    def leave(self, now: int, request: Request, *, swapped: bool) -> None:
        """The request has been preempted."""
        row = int(request.request_id)
        self._open[row] = len(self.starts)
        self.requests.append(row)
        self.starts.append(now)
        self.swapped.append(int(swapped))

    def come_back(self, now: int, request: Request) -> None:
        """The request runs again."""
        index = self._open.pop(int(request.request_id), None)
        if index is not None:
            self._stops[index] = now

    def stops(self) -> list[int]:
        """Ends of the intervals; `NEVER` where the run was cut before."""
        return [self._stops.get(index, NEVER) for index in range(len(self.starts))]
