"""Exact integrals of step-wise constant state over simulated time, cut at fixed edges.

Everything is a Python integer: slots x picoseconds. A run of equal steps is added in closed form; a run that an edge
falls into is added step by step, the step in which the edge lies split exactly. So the sums are the same whether a
run was taken at once, cut anywhere, or stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import add, mul
from typing import NamedTuple

STATE = (
    "seqs",
    "tokens",
    "used",
    "internal",
    "extra",
    "asked",
    "true_total",
    "hole",
    "short",
    "cached",
    "largest",
    "free",
)
"""State variables, slots but for `seqs` (running requests).

tokens: computed tokens of all running requests, this step's included; used: slots of referenced blocks; internal: slots
of those that will never be filled; extra: slots counted more than once in `tokens` because blocks are shared; asked:
slots that reservations asked for before rounding; true_total: prompt + output of the running requests; hole, short:
free slots while the head of the queue is refused for want of an extent, or of blocks; cached: free slots that hold a
cached prefix; largest: largest free extent; free: slots without references.
"""
SEQS, TOKENS, USED, INTERNAL, EXTRA, ASKED, TRUE_TOTAL, HOLE, SHORT, CACHED, LARGEST, FREE = range(len(STATE))
WIDTH = len(STATE)
TIME, STEPS, EMITTED, COMPUTED = 2 * WIDTH, 2 * WIDTH + 1, 2 * WIDTH + 2, 2 * WIDTH + 3
"""After the time integrals and the per-step sums: duration, steps begun, tokens emitted, tokens computed."""
COLUMNS = 2 * WIDTH + 4

NO_EDGE = 1 << 200
"""Beyond all simulated time."""


class Growth(NamedTuple):
    """How a run of decode steps changes the state after its first step: one entry a further step, or () for none."""

    used: Sequence[int]
    """Slots newly referenced before this step."""
    internal: Sequence[int]
    """Slots of `internal` newly in use."""
    evicted: Sequence[int]
    """Cached free slots given up."""


NO_GROWTH = Growth((), (), ())


class Integrals:
    """Sums per segment between edges. Segment i is [edges[i-1], edges[i]); the first begins at 0, the last is open."""

    def __init__(self, edges: Sequence[int], *, adjacency_matters: bool) -> None:
        """`adjacency_matters`: the largest free extent is not simply everything that is free."""
        self.edges = sorted(set(edges))
        self._adjacency = adjacency_matters
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
        while end > self._edge:
            self._add_time(state, self._edge - start)
            start = self._edge
            self._next_segment()
        self._add_time(state, end - start)

    def add_step(self, start: int, duration: int, state: list[int], emitted: int, computed: int) -> None:
        """One step: `state` holds from its start to its end, `emitted` tokens appear at its end."""
        self._steps += 1
        self._computed += computed
        self._sums = list(map(add, self._sums, state))
        end = start + duration
        while end >= self._edge:
            self._add_time(state, self._edge - start)
            start = self._edge
            self._next_segment()
        self._add_time(state, end - start)
        self._emitted += emitted

    def _add_time(self, state: list[int], duration: int) -> None:
        if duration:
            self._duration += duration
            self._areas = [area + value * duration for area, value in zip(self._areas, state, strict=True)]

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
        if growth.evicted:
            state[CACHED] -= growth.evicted[index]
        used = growth.used[index] if growth.used else 0
        state[USED] += used
        state[FREE] -= used
        if state[SHORT]:
            state[SHORT] -= used
        if not self._adjacency:
            state[LARGEST] -= used

    def add_progression(self, start: int, first: int, slope: int, steps: int, state: list[int], growth: Growth) -> None:
        """The same for durations in arithmetic progression; closed form where no edge falls into the run."""
        pairs = steps * (steps - 1) // 2
        duration = steps * first + slope * pairs
        if start + duration >= self._edge:
            self.add_run(start, range(first, first + slope * steps, slope) if slope else [first] * steps, state, growth)
            return
        seqs = state[SEQS]
        areas = [area + value * duration for area, value in zip(self._areas, state, strict=True)]
        sums = [total + value * steps for total, value in zip(self._sums, state, strict=True)]
        # Sums over the steps of their index, and of index x duration.
        areas[TOKENS] += seqs * (first * pairs + slope * (pairs * (2 * steps - 1) // 3))
        sums[TOKENS] += seqs * pairs
        self._areas, self._sums = areas, sums
        self._duration += duration
        self._steps += steps
        self._emitted += seqs * steps
        self._computed += seqs * steps
        if growth.used:
            self._add_growth(first, slope, steps, duration, state, growth)

    def _add_growth(
        self, first: int, slope: int, steps: int, duration: int, state: list[int], growth: Growth
    ) -> None:
        """What begins with step i lasts for the rest of the run."""
        used, internal, evicted = growth
        # Elapsed time at the start of each further step.
        begins = list(accumulate(range(first, first + slope * (steps - 1), slope) if slope else [first] * (steps - 1)))
        area = _tail_area(used, begins, duration, steps)
        self._add(USED, area, 1)
        self._add(FREE, area, -1)
        if state[SHORT]:
            self._add(SHORT, area, -1)
        if not self._adjacency:
            self._add(LARGEST, area, -1)
        if internal:
            self._add(INTERNAL, _tail_area(internal, begins, duration, steps), 1)
        if evicted:
            self._add(CACHED, area if evicted is used else _tail_area(evicted, begins, duration, steps), -1)

    def _add(self, index: int, area: tuple[int, int], sign: int) -> None:
        self._areas[index] += sign * area[0]
        self._sums[index] += sign * area[1]


def _tail_area(changes: Sequence[int], begins: Sequence[int], duration: int, steps: int) -> tuple[int, int]:
    """Time integral and per-step sum of changes that each last from their step to the end of the run."""
    total = sum(changes)
    return (
        total * duration - sum(map(mul, changes, begins)),
        total * steps - sum(map(mul, changes, range(1, steps))),
    )
