"""Exact integrals of step-wise constant state over simulated time, cut at fixed edges.

Everything is a Python integer: slots x picoseconds. A run of equal steps is added in closed form; a run that an edge
falls into is added step by step, the step in which the edge lies split exactly. So the sums are the same whether a
run was taken at once, cut anywhere, or stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        self._row = [0] * COLUMNS
        self._edge = self.edges[0] if self.edges else None

    def segments(self) -> list[list[int]]:
        """One row of sums a segment, all of them."""
        rows = [*self._rows, self._row]
        return rows + [[0] * COLUMNS for _ in range(len(self.edges) + 1 - len(rows))]

    def add_idle(self, start: int, end: int, state: list[int]) -> None:
        """Time without steps."""
        while self._edge is not None and end > self._edge:
            self._add_time(state, self._edge - start)
            start = self._edge
            self._next_segment()
        self._add_time(state, end - start)

    def add_step(self, start: int, duration: int, state: list[int], emitted: int, computed: int) -> None:
        """One step: `state` holds from its start to its end, `emitted` tokens appear at its end."""
        row = self._row
        row[STEPS] += 1
        row[COMPUTED] += computed
        for index, value in enumerate(state, WIDTH):
            row[index] += value
        end = start + duration
        while self._edge is not None and end >= self._edge:
            self._add_time(state, self._edge - start)
            start = self._edge
            self._next_segment()
        self._add_time(state, end - start)
        self._row[EMITTED] += emitted

    def _add_time(self, state: list[int], duration: int) -> None:
        if duration:
            row = self._row
            row[TIME] += duration
            for index, value in enumerate(state):
                row[index] += value * duration

    def _next_segment(self) -> None:
        self._rows.append(self._row)
        self._row = [0] * COLUMNS
        passed = len(self._rows)
        self._edge = self.edges[passed] if passed < len(self.edges) else None

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
        if self._edge is not None and start + duration >= self._edge:
            self.add_run(start, range(first, first + slope * steps, slope) if slope else [first] * steps, state, growth)
            return
        row = self._row
        for index, value in enumerate(state):
            if value:
                row[index] += value * duration
                row[WIDTH + index] += value * steps
        seqs = state[SEQS]
        row[TIME] += duration
        row[STEPS] += steps
        row[EMITTED] += seqs * steps
        row[COMPUTED] += seqs * steps
        # sum over steps of step x duration(step), and of step
        squares = pairs * (2 * steps - 1) // 3
        row[TOKENS] += seqs * (first * pairs + slope * squares)
        row[WIDTH + TOKENS] += seqs * pairs
        self._add_growth(row, first, slope, steps, duration, state, growth)

    def _add_growth(
        self, row: list[int], first: int, slope: int, steps: int, duration: int, state: list[int], growth: Growth
    ) -> None:
        """What begins with step i lasts for the rest of the run."""
        used_time = used_steps = 0
        for step, used in enumerate(growth.used, 1):
            if used:
                used_time += used * (duration - step * first - slope * (step * (step - 1) // 2))
                used_steps += used * (steps - step)
        signs = ((USED, 1), (FREE, -1), (SHORT, -1 if state[SHORT] else 0), (LARGEST, 0 if self._adjacency else -1))
        for index, sign in signs:
            row[index] += sign * used_time
            row[WIDTH + index] += sign * used_steps
        for index, sign, changes in ((INTERNAL, 1, growth.internal), (CACHED, -1, growth.evicted)):
            for step, change in enumerate(changes, 1):
                if change:
                    rest = duration - step * first - slope * (step * (step - 1) // 2)
                    row[index] += sign * change * rest
                    row[WIDTH + index] += sign * change * (steps - step)
