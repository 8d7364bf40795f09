"""Exact integrals of step-wise constant state over simulated time, cut at fixed edges.

Everything is a Python integer: slots x picoseconds. A run of equal steps is added in closed form; a run that an edge
falls into is added step by step, the step in which the edge lies split exactly. So the sums are the same whether a
run was taken at once, cut anywhere, or stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count
from operator import mul
from typing import NamedTuple

STATE = ("seqs", "tokens", "used", "internal", "extra", "asked", "true_total", "hole", "short", "spare", "largest")
"""State variables, slots but for `seqs` (running requests).

tokens: computed tokens of all running requests, this step's included; used: slots of referenced blocks; internal: slots
of those that will never be filled; extra: slots counted more than once in `tokens` because blocks are shared; asked:
slots that reservations asked for before rounding; true_total: prompt + output of the running requests, where anything
was asked for; hole, short: free slots while the head of the queue is refused for want of an extent, or of blocks; spare:
free slots without cached content, where anything is cached; largest: largest free extent, where adjacency matters.
"""
SEQS, TOKENS, USED, INTERNAL, EXTRA, ASKED, TRUE_TOTAL, HOLE, SHORT, SPARE, LARGEST = range(len(STATE))
WIDTH = len(STATE)
RARE = range(EXTRA, WIDTH)
"""Variables that are zero in most runs."""
TIME, STEPS, EMITTED, COMPUTED = 2 * WIDTH, 2 * WIDTH + 1, 2 * WIDTH + 2, 2 * WIDTH + 3
"""After the time integrals and the per-step sums: duration, steps begun, tokens emitted, tokens computed."""
COLUMNS = 2 * WIDTH + 4

NO_EDGE = 1 << 200
"""Beyond all simulated time."""


class Growth(NamedTuple):
    """How a run of decode steps changes the state after its first step: one entry a further step, or () for none."""

    used: Sequence[int] = ()
    """Blocks newly referenced before this step."""
    internal: Sequence[int] = ()
    """Slots of `internal` newly in use."""
    unspared: Sequence[int] = ()
    """Blocks that were free without content and are so no more."""


NO_GROWTH = Growth()


class _Triangles:
    """0, 1, 3, 6, ...: pairs of steps, kept so that sums over a run multiply small integers only."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def first(self, num: int) -> list[int]:
        """At least `num` of them; callers zip with something shorter."""
        if num > len(self._values):
            self._values = list(accumulate(range(2 * num)))
        return self._values


class Integrals:
    """Sums per segment between edges. Segment i is [edges[i-1], edges[i]); the first begins at 0, the last is open."""

    def __init__(self, edges: Sequence[int], *, block_size: int) -> None:
        self.edges = sorted(set(edges))
        self._size = block_size
        self._triangles = _Triangles()
        self._rows: list[list[int]] = []
        self._edge = self.edges[0] if self.edges else NO_EDGE
        self._open_row()

    def _open_row(self) -> None:
        self._areas = [0] * WIDTH
        self._sums = [0] * WIDTH
        self._duration = self._steps = self._emitted = self._computed = 0

    def _row(self) -> list[int]:
        return [*self._areas, *self._sums, self._duration, self._steps, self._emitted, self._computed]

    def segments(self) -> list[list[int]]:
        """One row of sums a segment, all of them."""
        rows = [*self._rows, self._row()]
        return rows + [[0] * COLUMNS for _ in range(len(self.edges) + 1 - len(rows))]

    def add_idle(self, start: int, end: int, state: list[int]) -> None:
        """Time without steps."""
        while end >= self._edge:
            self._add_time(state, self._edge - start)
            start = self._edge
            self._next_segment()
        self._add_time(state, end - start)

    def add_step(self, start: int, duration: int, state: list[int], emitted: int, computed: int) -> None:
        """One step: `state` holds from its start to its end, `emitted` tokens appear at its end."""
        end = start + duration
        if end >= self._edge:
            self._add_split_step(start, end, state, emitted, computed)
            return
        self._add_constant(state, duration, 1)
        self._emitted += emitted
        self._computed += computed

    def _add_split_step(self, start: int, end: int, state: list[int], emitted: int, computed: int) -> None:
        self._computed += computed
        self._add_constant(state, 0, 1)
        while end >= self._edge:
            self._add_time(state, self._edge - start)
            start = self._edge
            self._next_segment()
        self._add_time(state, end - start)
        self._emitted += emitted

    def _add_time(self, state: list[int], duration: int) -> None:
        if duration:
            self._add_constant(state, duration, 0)

    def _add_constant(self, state: list[int], duration: int, steps: int) -> None:
        """A state that lasts `duration` and begins `steps` steps."""
        areas, sums = self._areas, self._sums
        seqs, tokens, used, internal = state[:4]
        self._duration += duration
        self._steps += steps
        areas[SEQS] += seqs * duration
        areas[TOKENS] += tokens * duration
        areas[USED] += used * duration
        areas[INTERNAL] += internal * duration
        sums[SEQS] += seqs * steps
        sums[TOKENS] += tokens * steps
        sums[USED] += used * steps
        sums[INTERNAL] += internal * steps
        for index in RARE:
            value = state[index]
            if value:
                areas[index] += value * duration
                sums[index] += value * steps

    def _next_segment(self) -> None:
        self._rows.append(self._row())
        self._open_row()
        passed = len(self._rows)
        self._edge = self.edges[passed] if passed < len(self.edges) else NO_EDGE

    def add_run(self, start: int, durations: Sequence[int], state: list[int], growth: Growth) -> None:
        """A run of decode steps: each sequence gains a token a step, blocks as `growth` says. `state` is consumed."""
        seqs = state[SEQS]
        for step, duration in enumerate(durations):
            if step:
                self._grow(state, growth, step - 1)
            self.add_step(start, duration, state, seqs, seqs)
            start += duration

    def _grow(self, state: list[int], growth: Growth, index: int) -> None:
        state[TOKENS] += state[SEQS]
        if growth.internal:
            state[INTERNAL] += growth.internal[index]
        if growth.unspared:
            state[SPARE] -= growth.unspared[index] * self._size
        used = growth.used[index] * self._size if growth.used else 0
        state[USED] += used
        if state[SHORT]:
            state[SHORT] -= used

    def add_progression(self, start: int, first: int, slope: int, steps: int, state: list[int], growth: Growth) -> None:
        """The same for durations in arithmetic progression; closed form where no edge falls into the run."""
        pairs = steps * (steps - 1) // 2
        duration = steps * first + slope * pairs
        if start + duration >= self._edge:
            self.add_run(start, range(first, first + slope * steps, slope) if slope else [first] * steps, state, growth)
            return
        self._add_constant(state, duration, steps)
        seqs = state[SEQS]
        # Sums over the steps of their index, and of index x duration.
        self._areas[TOKENS] += seqs * (first * pairs + slope * (pairs * (2 * steps - 1) // 3))
        self._sums[TOKENS] += seqs * pairs
        self._emitted += seqs * steps
        self._computed += seqs * steps
        used, internal, unspared = growth
        if used:
            area, total = self._tail(used, first, slope, steps, duration)
            area *= self._size
            total *= self._size
            self._areas[USED] += area
            self._sums[USED] += total
            if state[SHORT]:
                self._areas[SHORT] -= area
                self._sums[SHORT] -= total
        if internal:
            area, total = self._tail(internal, first, slope, steps, duration)
            self._areas[INTERNAL] += area
            self._sums[INTERNAL] += total
        if unspared:
            area, total = self._tail(unspared, first, slope, steps, duration)
            self._areas[SPARE] -= area * self._size
            self._sums[SPARE] -= total * self._size

    def _tail(self, changes: Sequence[int], first: int, slope: int, steps: int, duration: int) -> tuple[int, int]:
        """Time integral and per-step sum of changes that each last from their step to the end of the run.

        Step i begins i x first + slope x i (i - 1) / 2 after the run does."""
        whole = sum(changes)
        by_index = sum(map(mul, changes, count(1)))
        by_pairs = sum(map(mul, changes, self._triangles.first(steps))) if slope else 0
        return whole * duration - first * by_index - slope * by_pairs, whole * steps - by_index
