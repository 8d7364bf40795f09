"""Block ids of very many rows, gathered piece by piece, and what may be said of an id wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.readers import arrow
from workloads.tables import NotPlainError

Int64s = NDArray[np.int64]

ROOM: Final = 1 << 16
COMPARED_AT_ONCE: Final = 1 << 20
"""Ids that are sorted at once; sorting takes five words for each."""


class Column:
    """An int64 column that grows in place: at most an eighth more than its values, and never a second copy."""

    def __init__(self) -> None:
        self._values = np.zeros(ROOM, np.int64)
        self._size = 0

    def add(self, values: Int64s) -> None:
        """Append. Amortised O(len(values))."""
        size = self._size + len(values)
        if size > len(self._values):
            self._values.resize(max(size, len(self._values) * 9 // 8), refcheck=False)
        self._values[self._size : size] = values
        self._size = size

    def take(self) -> Int64s:
        """The values, as an array that owns its memory; the column is empty after it."""
        values, self._values = self._values, np.zeros(ROOM, np.int64)
        values.resize(self._size, refcheck=False)
        self._size = 0
        return values


class IdLists:
    """The lists of all rows so far: an id for every `size` tokens of a prompt."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts, self._ids = Column(), Column()

    def add(self, column: Any, prompt: Int64s) -> None:
        """Some rows' lists; none where null. Raises NotPlainError unless one that is there covers its prompt."""
        offsets, ids = arrow.id_lists(column)
        counts = np.diff(offsets)
        if (arrow.present(column) & (counts != -(-prompt // self._size))).any() or (ids < 0).any():
            raise NotPlainError
        self._counts.add(counts)
        self._ids.add(ids)

    def take(self) -> tuple[Int64s, Int64s]:
        """(offsets, ids)."""
        return np.concatenate(([0], np.cumsum(self._counts.take()))), self._ids.take()


def cover_alike(prompt: Int64s, offsets: Int64s, ids: Int64s, size: int) -> bool:
    """Whether every id always stands for as many tokens: `size`, or fewer at the end of a prompt."""
    lasts, covers = _filled_ends(prompt, offsets, size)

    def covered(places: Int64s) -> Int64s:
        tokens = np.full(len(places), size)
        row = np.minimum(np.searchsorted(lasts, places), len(lasts) - 1)
        is_last = lasts[row] == places
        tokens[is_last] = covers[row[is_last]]
        return tokens

    return not len(ids) or _same_for_each(ids, covered)


def _filled_ends(prompt: Int64s, offsets: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """Places of the last ids of rows, and the tokens that each stands for."""
    counts = np.diff(offsets)
    rows = np.flatnonzero(counts)
    return offsets[1:][rows] - 1, prompt[rows] - (counts[rows] - 1) * size


def all_chained(offsets: Int64s, ids: Int64s) -> bool:
    """Whether every id always follows the same id, or always stands first."""
    firsts = offsets[:-1][np.diff(offsets) > 0]

    def before(places: Int64s) -> Int64s:
        previous = ids[places - 1]
        first = np.minimum(np.searchsorted(firsts, places), len(firsts) - 1)
        previous[firsts[first] == places] = -1
        return previous

    return not len(ids) or _same_for_each(ids, before)


def _same_for_each(ids: Int64s, value_at: Callable[[Int64s], Int64s]) -> bool:
    """Whether equal ids have equal values at all their places. Sorted in parts: O(part) memory beside the ids."""
    for places in _parts(ids):
        part = ids[places]
        order = np.argsort(part, kind="stable")
        part, places = part[order], places[order]
        again = np.flatnonzero(part[1:] == part[:-1])
        if (value_at(places[again]) != value_at(places[again + 1])).any():
            return False
    return True


def _parts(ids: Int64s) -> Iterator[Int64s]:
    """Places, in order, of ids with the same rest: equal ids are in one part."""
    num_parts = -(-len(ids) // COMPARED_AT_ONCE)
    if num_parts == 1:
        yield np.arange(len(ids))
        return
    rests = np.empty(len(ids), np.int16 if num_parts < 1 << 15 else np.int64)
    np.remainder(ids, num_parts, out=rests, casting="unsafe")
    for rest in range(num_parts):
        yield np.flatnonzero(rests == rest)
