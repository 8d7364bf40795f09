"""Extents of contiguous memory, and those that have been left but are still copied from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine.core.placement import Placement


class Extent(NamedTuple):
    """One allocation: address (block id - 1), blocks granted, token slots asked for before rounding up."""

    start: int
    granted: int
    asked_slots: int

    @property
    def blocks(self) -> range:
        """The block table: adjacent ids."""
        return range(self.start + 1, self.start + 1 + self.granted)

    @property
    def end(self) -> int:
        """Address behind the last block."""
        return self.start + self.granted


class Departures:
    """What copies that have not settled read, by the first block of the extent that it was; who leaves such an extent,
    or a part of it, leaves it here."""

    __slots__ = ("_left", "_readers", "_space")

    def __init__(self, space: Placement) -> None:
        self._space = space
        self._readers: dict[int, int] = {}
        self._left: dict[int, list[tuple[int, int]]] = {}

    def read(self, copies: Sequence[tuple[int, int]]) -> None:
        """The copies of one grant, all out of one extent."""
        if copies:
            first = copies[0][0]
            self._readers[first] = self._readers.get(first, 0) + 1

    def reads(self, first: int) -> bool:
        """Whether the extent that begins there is being copied from."""
        return first in self._readers

    def leave(self, first: int, start: int, units: int) -> None:
        """Returns units to the pool, at once or when the last copy out of the extent that began at `first` settles."""
        if units <= 0:
            return
        if self.reads(first):
            self._left.setdefault(first, []).append((start, units))
        else:
            self._space.give(start, units)

    def settle(self, copies: Sequence[tuple[int, int]]) -> int:
        """These have run, or will not; the first block of the extent that they read."""
        first = copies[0][0]
        self._readers[first] -= 1
        if not self._readers[first]:
            del self._readers[first]
            for start, units in self._left.pop(first, ()):
                self.leave(start + 1, start, units)  # an extent that slid may have been copied from, too
        return first

    def kept(self) -> list[tuple[int, int]]:
        """(start, units) that nobody owns and that are not free."""
        return [part for parts in self._left.values() for part in parts]
