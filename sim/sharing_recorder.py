"""A recorder that also counts what sequences share: blocks of block tables against blocks of memory, step by step.

The PagedAttention paper's artifact averages that ratio over iterations, each with the same weight. A ratio is no
integral of the state, so it is added up here, in units of 2^-32 and rounded down a step: the same sum however runs of
equal steps are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sim.progression import total
from sim.recorder import Recorder

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult

UNIT = 1 << 32
"""One, in the sum of ratios."""


class SharingRecorder(Recorder):
    """Counts over the steps that begin in [start, stop) picoseconds."""

    def __init__(self, *arguments: Any, start: int = 0, stop: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._start, self._stop = start, stop
        self.num_forks = 0
        """Sequences that started, or started again, with another one's blocks; over the whole run."""
        self.num_steps_counted = 0
        self.extra_ratio = 0
        """Sum over those steps of (logical - physical) / physical blocks, in `UNIT`s."""
        self.logical_blocks = 0
        """Sum over those steps: entries of the block tables of the running sequences."""
        self.physical_blocks = 0
        """Sum over those steps: blocks with an owner, each once."""

    def moved(self, now: int, batch: Batch) -> None:
        """Counts forks, too."""
        super().moved(now, batch)
        self.num_forks += len(batch.forks)

    def record(self, start: int, batch: Batch, result: StepResult, next_arrival: int) -> None:
        """A batch; see `Recorder.record`."""
        super().record(start, batch, result, next_arrival)
        stats = self._pool.stats
        extra = stats.num_extra_references
        if batch.num_steps == 1:
            self._count(start, stats.num_referenced, extra)
            return
        durations = result.durations
        growth = batch.growth or [0] * batch.num_steps
        self._count_run(start, result.first, result.slope, growth, stats.num_referenced, extra, durations)

    def coasted(self, start: int, first: int, slope: int, duration: int, taken: Sequence[int]) -> None:
        """Steps without a batch; see `Recorder.coasted`."""
        super().coasted(start, first, slope, duration, taken)
        stats = self._pool.stats
        self._count_run(start, first, slope, taken, stats.num_referenced, stats.num_extra_references, None)

    def _count(self, start: int, physical: int, extra: int) -> None:
        if start < self._start or (self._stop is not None and start >= self._stop):
            return
        self.num_steps_counted += 1
        self.physical_blocks += physical
        self.logical_blocks += physical + extra
        if extra:
            self.extra_ratio += extra * UNIT // physical

    def _count_run(
        self,
        start: int,
        first: int,
        slope: int,
        taken: Sequence[int],
        physical: int,
        extra: int,
        durations: Sequence[int] | None,
    ) -> None:
        """Steps that take `taken` blocks each, of which the pool holds `physical` after the last one."""
        physical -= sum(taken[1:])
        for step in range(len(taken)):
            if step:
                physical += taken[step]
            begun = start + (sum(durations[:step]) if durations is not None else total(first, slope, step))
            self._count(begun, physical, extra)
