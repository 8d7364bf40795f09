"""The executor protocol: what runs a batch, be it a cost model, a list of Python objects, a CPU tensor or a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.decode_set import DecodeSet


class Pending(Protocol):
    """A submitted batch."""

    @property
    def running(self) -> bool:
        """Whether it runs elsewhere and the caller has time meanwhile."""
        ...

    def result(self) -> StepResult:
        """Waits for the batch and returns what came of it."""
        ...


class Executor(Protocol):
    """Runs batches in the order in which they are submitted. It never calls the scheduler."""

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """Equal steps that these requests may decode from here on, at least 1: up to and including the first in which
        one of them stops (the executor alone knows the true lengths) or whose end is `until` or more away, and none,
        after the first, that would end beyond `end`. Both are times from now. Executors that touch every token answer
        1: they run a step at a time."""
        ...

    def submit(self, batch: Batch) -> Pending:
        """Runs the batch's `num_steps` steps, of which only the last may stop a request."""
        ...
