"""Empty slots at the end of last blocks, followed without looking at every request in every step.

A paged request's blocks fill one after the other, so the only slots it will never fill are those behind its last token,
from the step on in which it takes its last block. That step is known when it begins to decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


NEVER = 1 << 62
"""A decode clock beyond every run."""


class LastBlocks:
    """`empty_slots`: slots behind the last token in blocks that are held now."""

    __slots__ = ("_block_size", "_calendar", "_clocks", "_ends", "_final_tokens", "_tails", "empty_slots", "next_clock")

    def __init__(self, block_size: int, final_tokens: Callable[[Request], int]) -> None:
        self._block_size = block_size
        self._final_tokens = final_tokens
        self._tails: dict[Request, int] = {}
        self._ends: dict[Request, tuple[int, int]] = {}
        self._calendar: dict[int, list[tuple[Request, int, int]]] = {}
        """By the decode clock at which a decoding request takes its last block: the request, the computed tokens from
        which it holds it, the slots that stay empty; stale entries are harmless."""
        self._clocks: list[int] = []
        self.next_clock = NEVER
        """Earliest entry of the calendar."""
        self.empty_slots = 0

    def _from(self, request: Request) -> tuple[int, int]:
        """Computed tokens from which the request holds its last block, and the slots of it that stay empty."""
        known = self._ends.get(request)
        if known is None:
            size, final = self._block_size, self._final_tokens(request)
            blocks = -(-final // size)
            known = self._ends[request] = (blocks - 1) * size + 1, blocks * size - final
        return known

    def scheduled(self, batch: Batch) -> None:
        """Last blocks taken in the batch's first step."""
        for request, context, new, _ in batch.chunks:
            start, tail = self._from(request)
            if context + new >= start and request not in self._tails:
                self._begin(request, tail)
        for request in batch.joined:
            start, tail = self._from(request)
            if request.num_computed_tokens < start:
                self.follow(request)
            elif request not in self._tails:
                self._begin(request, tail)
        if self.next_clock <= batch.clock:
            self.reached(batch.decodes, batch.clock)

    def reached(self, decodes: DecodeSet, clock: int) -> None:
        """Last blocks taken by decoding requests in the step at `clock`."""
        while self.next_clock <= clock:
            self._take_due(decodes)

    def follow(self, request: Request) -> None:
        """The request decodes from the next step on: notes when it will take its last block."""
        if request in self._tails:
            return
        decodes = request.decoding
        assert decodes is not None
        start, tail = self._ends.get(request) or self._from(request)
        clock = start - request.base
        if clock <= decodes.clock:
            clock = decodes.clock + 1
        entries = self._calendar.get(clock)
        if entries is not None:
            entries.append((request, start, tail))
            return
        self._calendar[clock] = [(request, start, tail)]
        heappush(self._clocks, clock)
        self.next_clock = self._clocks[0]

    def run(self, decodes: DecodeSet, clock: int, steps: int) -> Sequence[int]:
        """Slots that begin to be empty with each further step of a run whose first is at `clock`; () for none."""
        end = clock + steps
        if self.next_clock >= end:
            return ()
        begun = [0] * (steps - 1)
        while self.next_clock < end:
            step = self.next_clock - clock - 1
            begun[step] = self._take_due(decodes)
        return begun

    def drop(self, request: Request) -> None:
        """The request lets go of its blocks."""
        self.empty_slots -= self._tails.pop(request, 0)
        self._ends.pop(request, None)

    def share(self, request: Request) -> None:
        """The request holds another one's last block, which counts there, until it writes."""
        self.empty_slots -= self._tails.pop(request, 0)

    def _begin(self, request: Request, tail: int) -> None:
        self._tails[request] = tail
        self.empty_slots += tail

    def _take_due(self, decodes: DecodeSet) -> int:
        """Requests that take their last block when the decode clock reaches `next_clock`; the slots left empty."""
        clock = heappop(self._clocks)
        self.next_clock = self._clocks[0] if self._clocks else NEVER
        before = self.empty_slots
        for request, start, tail in self._calendar.pop(clock):
            reached = request.decoding is decodes and start - request.base <= clock
            if reached and request not in self._tails:
                self._begin(request, tail)
        return self.empty_slots - before
