"""Empty slots at the end of last blocks, followed without looking at every request in every step.

A paged request's blocks fill one after the other, so the only slots it will never fill are those behind its last token,
from the step on in which it takes its last block. That step is known when it begins to decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


class LastBlocks:
    """`empty_slots`: slots behind the last token in blocks that are held now."""

    __slots__ = ("_block_size", "_final_tokens", "_tails", "calendar", "empty_slots")

    def __init__(self, block_size: int, final_tokens: Callable[[Request], int]) -> None:
        self._block_size = block_size
        self._final_tokens = final_tokens
        self._tails: dict[Request, int] = {}
        self.calendar: dict[int, list[Request]] = {}
        """Decoding requests by the decode clock at which they take their last block; stale entries are harmless."""
        self.empty_slots = 0

    def _from(self, request: Request) -> tuple[int, int]:
        """Computed tokens from which the request holds its last block, and the slots of it that stay empty."""
        size, final = self._block_size, self._final_tokens(request)
        blocks = -(-final // size)
        return (blocks - 1) * size + 1, blocks * size - final

    def scheduled(self, batch: Batch) -> None:
        """Last blocks taken in this step; those that decoding will take later go into the calendar."""
        for chunk in batch.chunks:
            request = chunk.request
            start, tail = self._from(request)
            if request.computed >= start and request not in self._tails:
                self._begin(request, tail)
        for request in batch.joined:
            if request not in self._tails:
                start, _ = self._from(request)
                self.calendar.setdefault(max(start - request.base, batch.clock), []).append(request)
        if batch.clock in self.calendar:
            self._take_due(batch.decodes, batch.clock)

    def run(self, batch: Batch, steps: int) -> Sequence[int]:
        """Slots that begin to be empty with each further step of a run; () for none."""
        calendar, first = self.calendar, batch.clock + 1
        due = [clock for clock in range(first, first + steps - 1) if clock in calendar] if calendar else ()
        if not due:
            return ()
        begun = [0] * (steps - 1)
        for clock in due:
            begun[clock - first] = self._take_due(batch.decodes, clock)
        return begun

    def drop(self, request: Request) -> None:
        """The request lets go of its blocks."""
        self.empty_slots -= self._tails.pop(request, 0)

    def _begin(self, request: Request, tail: int) -> None:
        self._tails[request] = tail
        self.empty_slots += tail

    def _take_due(self, decodes: DecodeSet, clock: int) -> int:
        """Requests that take their last block when the decode clock reaches `clock`; the slots that stay empty."""
        before = self.empty_slots
        for request in self.calendar.pop(clock):
            start, tail = self._from(request)
            reached = request.decoding is decodes and start - request.base <= clock
            if reached and request not in self._tails:
                self._begin(request, tail)
        return self.empty_slots - before
