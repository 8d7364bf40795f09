"""Turns of the replay, logged as rows of integers and summed by the thousand.

A turn is a state that lasts one or more steps whose durations are in arithmetic progression. Summing a few thousand of
them at once in NumPy costs a fraction of doing it one by one in Python; the sums are exact all the same: products that
might not fit 64 bits are split or, if even that is not enough, taken in Python integers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.integrals import (
    COMPUTED,
    EMITTED,
    INTERNAL,
    NO_GROWTH,
    SEQS,
    SHORT,
    SPARE,
    STEPS,
    TIME,
    TOKENS,
    USED,
    WIDTH,
    Growth,
)

FLUSH_TURNS = 1_024
LARGE = float(1 << 61)
"""Sums that may come near this are not left to 64 bits."""
SPLIT_BITS = 22
"""Durations are split here, so that each half times any number of slots fits."""
_FIXED = 6
"""Columns of a logged turn before its state: segment, first, slope, steps, emitted, computed."""
_FULL = FLUSH_TURNS * (_FIXED + WIDTH)


class TurnLog:
    """Adds turns to `rows`, one row of sums (see `sim.integrals`) a segment, when flushed."""

    def __init__(self, rows: list[list[int]], block_size: int) -> None:
        self._rows = rows
        self._size = block_size
        self._turns: list[int] = []
        self._changes: dict[int, tuple[list[int], list[int], list[int]]] = {
            column: ([], [], []) for column in (USED, INTERNAL, SPARE)
        }
        """By column: turns that change it, number of changes of each, and all changes in one list."""

    def add(
        self,
        segment: int,
        first: int,
        slope: int,
        steps: int,
        emitted: int,
        computed: int,
        state: Sequence[int],
        growth: Growth = NO_GROWTH,
    ) -> None:
        """One turn; `growth` has one entry for each step after the first, or none."""
        turns = self._turns
        turns += (segment, first, slope, steps, emitted, computed)
        turns += state
        if growth is not NO_GROWTH:
            used, internal, unspared = growth
            turn = len(turns) // (_FIXED + WIDTH) - 1
            if used:
                self._change(USED, turn, used)
            if internal:
                self._change(INTERNAL, turn, internal)
            if unspared:
                self._change(SPARE, turn, unspared)
        if len(turns) > _FULL:
            self.flush()

    def _change(self, column: int, turn: int, changes: Sequence[int]) -> None:
        at, lengths, values = self._changes[column]
        at.append(turn)
        lengths.append(len(changes))
        values += changes

    def flush(self) -> None:
        """Sums what is logged into the rows."""
        if self._turns:
            Flush(int64s(self._turns).reshape(-1, _FIXED + WIDTH), self._rows).sum(
                {column: arrays(parts) for column, parts in self._changes.items() if parts[0]}, self._size
            )
            self._turns.clear()
            for parts in self._changes.values():
                for part in parts:
                    part.clear()


def arrays(parts: tuple[list[int], list[int], list[int]]) -> tuple[Any, Any, Any]:
    """Turns, numbers of changes and changes."""
    at, lengths, values = map(int64s, parts)
    return at, lengths, values


def int64s(values: list[int]) -> Any:
    """An array of them; in half the time of NumPy's own, which first looks for what they are."""
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), dtype=np.int64)


class Flush:
    """The turns of one flush, in columns."""

    def __init__(self, turns: Any, rows: list[list[int]]) -> None:
        self._rows = rows
        segments = turns[:, 0]
        self._starts = np.flatnonzero(np.concatenate(([True], segments[1:] != segments[:-1])))
        self._segments = segments[self._starts].tolist()
        exact = turns.astype(object) if self._may_overflow(turns) else turns
        _, self._first, self._slope, self._steps, self._emitted, self._computed = exact[:, :_FIXED].T
        self._state = exact[:, _FIXED:]
        self._pairs = self._steps * (self._steps - 1) // 2
        self._duration = self._steps * self._first + self._slope * self._pairs

    @staticmethod
    def _may_overflow(turns: Any) -> bool:
        """A generous bound on every sum below, in floating point."""
        first, slope, steps = turns[:, 1:4].T.astype(float)
        duration = steps * (first + slope * steps)
        halves = duration / (1 << SPLIT_BITS) + (1 << SPLIT_BITS)
        slots = turns[:, _FIXED:].max(axis=1).astype(float)
        gained = turns[:, _FIXED + SEQS] * steps * duration
        return bool(max((halves * slots * steps).sum(), gained.sum(), duration.sum()) > LARGE)

    def sum(self, changes: dict[int, tuple[Any, Any, Any]], block_size: int) -> None:
        """All of it, by segment."""
        self._add(TIME, self._duration)
        self._add(STEPS, self._steps)
        self._add(EMITTED, self._emitted)
        self._add(COMPUTED, self._computed)
        low, high = self._duration & ((1 << SPLIT_BITS) - 1), self._duration >> SPLIT_BITS
        for column in range(WIDTH):
            values = self._state[:, column]
            if values.any():
                self._add(column, values * low)
                self._add(column, values * high, shift=SPLIT_BITS)
                self._add(WIDTH + column, values * self._steps)
        # Each sequence gains a token a step: sums over the steps of their index, and of index x duration.
        by_index = self._first * self._pairs + self._slope * (self._pairs * (2 * self._steps - 1) // 3)
        self._add(TOKENS, self._state[:, SEQS] * by_index)
        self._add(WIDTH + TOKENS, self._state[:, SEQS] * self._pairs)
        for column, (at, lengths, values) in changes.items():
            if not values.any():
                continue
            area, total = self._lasting(at, lengths, values)
            unit = 1 if column == INTERNAL else -block_size if column == SPARE else block_size
            self._add_at(at, column, area, unit)
            self._add_at(at, WIDTH + column, total, unit)
            if column == USED:
                short = (self._state[at, SHORT] > 0).astype(area.dtype)
                self._add_at(at, SHORT, area * short, -unit)
                self._add_at(at, WIDTH + SHORT, total * short, -unit)

    def _lasting(self, at: Any, lengths: Any, values: Any) -> tuple[Any, Any]:
        """Per turn: time integral and per-step sum of changes that each last from their step to the turn's end.

        Step i begins i x first + slope x i (i - 1) / 2 after the turn does, so sums of values, of values x i and of
        values x i (i - 1) / 2 are all that it takes."""
        begins = np.cumsum(lengths) - lengths
        index = np.arange(1, len(values) + 1) - np.repeat(begins, lengths)
        by_index = values * index
        plain, moment = np.add.reduceat(values, begins), np.add.reduceat(by_index, begins)
        pairs = np.add.reduceat(by_index * (index - 1), begins) // 2
        area = plain * self._duration[at] - moment * self._first[at] - pairs * self._slope[at]
        return area, plain * self._steps[at] - moment

    def _add(self, column: int, values: Any, shift: int = 0) -> None:
        for segment, total in zip(self._segments, np.add.reduceat(values, self._starts).tolist(), strict=True):
            self._rows[segment][column] += total << shift

    def _add_at(self, at: Any, column: int, values: Any, unit: int) -> None:
        whole = np.zeros(len(self._state), dtype=values.dtype)
        whole[at] = values * unit
        self._add(column, whole)
