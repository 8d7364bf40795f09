"""Runs of pure decode steps, logged as the counters stand at their end and summed by the thousand.

The same sums as those of `sim.turn_log`, for runs with nobody waiting: what a run's first step and its further ones
look like is worked out for all runs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.integrals import INTERNAL, SPARE, USED, Growth
from sim.pool_state import later_in_run
from sim.turn_log import FLUSH_TURNS, Flush, arrays, int64s

RUN = (
    "segment",
    "first",
    "slope",
    "steps",
    "seqs",
    "tokens",
    "referenced",
    "internal",
    "extra",
    "asked",
    "true_total",
    "spare",
    "evicted",
    "largest",
)
"""One run: durations in arithmetic progression; running requests; their computed tokens in the first step; blocks
referenced at the end; slots never filled in the first step; shared and asked slots; blocks free and without content at
the end, and how many gave up content; largest free extent in slots."""
_WIDTH = len(RUN)
_FULL = FLUSH_TURNS * _WIDTH


class CoastLog:
    """Adds runs to `rows`, one row of sums a segment, when flushed."""

    def __init__(self, rows: list[list[int]], block_size: int, *, caches: bool) -> None:
        self._rows = rows
        self._size = block_size
        self._caches = caches
        self._runs: list[int] = []
        self._taken: list[int] = []
        self._begun: tuple[list[int], list[int], list[int]] = ([], [], [])

    def add(self, run: tuple[int, ...], taken: Sequence[int], begun: Sequence[int]) -> None:
        """One run in the order of `RUN`; blocks taken in each of its steps, and slots newly never filled in each step
        after the first, or ()."""
        runs = self._runs
        if begun:
            at, lengths, values = self._begun
            at.append(len(runs) // _WIDTH)
            lengths.append(len(begun))
            values += begun
        runs += run
        self._taken += taken
        if len(runs) > _FULL:
            self.flush()

    def expand(self, run: tuple[int, ...], taken: Sequence[int], begun: Sequence[int]) -> tuple[list[int], Growth]:
        """The state in the run's first step and what further ones add: what `flush` works out for many."""
        size = self._size
        _, _, _, _, seqs, tokens, referenced, internal, extra, asked, true_total, spare, evicted, largest = run
        later, spare, unspared = later_in_run(taken, spare, evicted if self._caches else None)
        used = (referenced - later) * size
        state = [seqs, tokens, used, internal, extra, asked, true_total, 0, 0, spare * size, largest]
        return state, Growth(taken[1:], begun, unspared)

    def flush(self) -> None:
        """Sums what is logged into the rows."""
        if not self._runs:
            return
        runs, taken = int64s(self._runs).reshape(-1, _WIDTH), int64s(self._taken)
        turns, changes = self._worked_out(runs, taken)
        if self._begun[0]:
            changes[INTERNAL] = arrays(self._begun)
        Flush(turns, self._rows).sum(changes, self._size)
        for part in (self._runs, self._taken, *self._begun):
            part.clear()

    def _worked_out(self, runs: Any, taken: Any) -> tuple[Any, dict[int, tuple[Any, Any, Any]]]:
        """Columns as in `sim.turn_log`, and the changes in each run's further steps."""
        (
            segment,
            first,
            slope,
            steps,
            seqs,
            tokens,
            referenced,
            internal,
            extra,
            asked,
            true_total,
            spare,
            evicted,
            big,
        ) = runs.T
        begins = np.cumsum(steps) - steps
        in_first = taken[begins]
        later = np.add.reduceat(taken, begins) - in_first
        longer = np.flatnonzero(steps > 1)
        lengths = steps[longer] - 1
        further = np.delete(taken, begins)
        changes = {USED: (longer, lengths, further)}
        if self._caches:
            empty = in_first + later - evicted
            spare = spare + empty - np.minimum(in_first, empty)
            before = np.cumsum(further) - further
            before -= np.repeat(before[np.cumsum(lengths) - lengths], lengths)
            changes[SPARE] = (longer, lengths, np.clip(np.repeat(spare[longer], lengths) - before, 0, further))
        if not len(longer):
            changes = {}
        given = seqs * steps
        none = np.zeros_like(seqs)
        used, free = (referenced - later) * self._size, spare * self._size
        columns = (seqs, tokens, used, internal, extra, asked, true_total, none, none, free, big)
        return np.stack((segment, first, slope, steps, given, given, *columns), axis=1), changes
