"""Exact integrals of step-wise constant state over simulated time, cut at fixed edges.

Everything is an integer: slots x picoseconds. A run of equal steps is added in closed form; a run that an edge falls
into is added step by step, the step in which the edge lies split exactly. So the sums are the same whether a run was
taken at once, cut anywhere, or stepped. Turns are logged as they come and summed by the thousand (`sim.turn_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.progression import steps_until

STATE = ("seqs", "tokens", "used", "internal", "extra", "asked", "true_total", "hole", "short", "spare", "largest")
"""State variables, slots but for `seqs` (running requests).

tokens: computed tokens of all running requests, this step's included; used: slots of referenced blocks; internal: slots
of those that will never be filled; extra: slots counted more than once in `tokens` because blocks are shared; asked:
slots that reservations asked for before rounding; true_total: prompt + output of the running requests, where anything
was asked for; hole, short: free slots while the head of the queue is refused for want of an extent, or of blocks;
spare: free slots without cached content, where anything is cached; largest: largest free extent, where adjacency
matters.
"""
SEQS, TOKENS, USED, INTERNAL, EXTRA, ASKED, TRUE_TOTAL, HOLE, SHORT, SPARE, LARGEST = range(len(STATE))
WIDTH = len(STATE)
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


class Integrals:
    """Sums per segment between edges. Segment i is [edges[i-1], edges[i]); the first begins at 0, the last is open."""

    def __init__(self, edges: Sequence[int], *, block_size: int, caches: bool) -> None:
        from sim.coast_log import CoastLog
        from sim.turn_log import TurnLog

        self.edges = sorted(set(edges))
        self._size = block_size
        self._rows = [[0] * COLUMNS for _ in range(len(self.edges) + 1)]
        self.segment = 0
        self.edge = self.edges[0] if self.edges else NO_EDGE
        self._log = TurnLog(self._rows, block_size)
        self.coasts = CoastLog(self._rows, block_size, caches=caches)

    def segments(self) -> list[list[int]]:
        """One row of sums a segment, all of them."""
        self._log.flush()
        self.coasts.flush()
        return [list(row) for row in self._rows]

    def add_idle(self, start: int, end: int, state: list[int]) -> None:
        """Time without steps."""
        while end >= self.edge:
            self._add(state, self.edge - start, 0)
            start = self.edge
            self._next_segment()
        self._add(state, end - start, 0)

    def add_step(self, start: int, duration: int, state: list[int], emitted: int, computed: int) -> None:
        """One step: `state` holds from its start to its end, `emitted` tokens appear at its end."""
        end = start + duration
        if end < self.edge:
            self._log.add(self.segment, duration, 0, 1, emitted, computed, state)
            return
        self._rows[self.segment][COMPUTED] += computed
        self._add(state, 0, 1)
        while end >= self.edge:
            self._add(state, self.edge - start, 0)
            start = self.edge
            self._next_segment()
        self._add(state, end - start, 0)
        self._rows[self.segment][EMITTED] += emitted

    def _add(self, state: list[int], duration: int, steps: int) -> None:
        """A state that lasts `duration` and begins `steps` steps, straight into the current row."""
        row = self._rows[self.segment]
        row[TIME] += duration
        row[STEPS] += steps
        for index, value in enumerate(state):
            if value:
                row[index] += value * duration
                row[WIDTH + index] += value * steps

    def _next_segment(self) -> None:
        self.segment += 1
        self.edge = self.edges[self.segment] if self.segment < len(self.edges) else NO_EDGE

    def add_coast(self, start: int, run: tuple[int, ...], taken: Sequence[int], begun: Sequence[int]) -> None:
        """A run of pure decode steps in the terms of `sim.coast_log`; those that no edge cuts go into `coasts`."""
        state, growth = self.coasts.expand(run, taken, begun)
        _, first, slope, steps = run[:4]
        self.add_progression(start, first, slope, steps, state, growth)

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
        """The same for durations in arithmetic progression, in closed form between edges."""
        end = start + steps * first + slope * (steps * (steps - 1) // 2)
        if end < self.edge:
            tokens = state[SEQS] * steps
            self._log.add(self.segment, first, slope, steps, tokens, tokens, state, growth)
            return
        before = steps_until(first, slope, self.edge - start, steps) - 1
        if before:
            part = Growth(*(changes[: before - 1] for changes in growth))
            self.add_progression(start, first, slope, before, list(state), part)
            for step in range(before):
                self._grow(state, growth, step)
            start += before * first + slope * (before * (before - 1) // 2)
            first += before * slope
        self.add_step(start, first, state, state[SEQS], state[SEQS])
        if before + 1 < steps:
            self._grow(state, growth, before)
            rest = Growth(*(changes[before + 1 :] for changes in growth))
            self.add_progression(start + first, first + slope, slope, steps - before - 1, state, rest)
