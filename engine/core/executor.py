"""The executor protocol: what runs a batch, be it a cost model, a list of Python objects, a CPU tensor or a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult


class Pending(Protocol):
    """A submitted batch."""

    def result(self) -> StepResult:
        """Waits for the batch and returns what came of it."""
        ...


class Executor(Protocol):
    """Runs batches in the order in which they are submitted. It never calls the scheduler."""

    max_steps: int
    """Most steps it can run in one submission; 1 for executors that touch every token."""

    def submit(self, batch: Batch, max_steps: int = 1, until: int | None = None) -> Pending:
        """Runs 1 to `max_steps` steps; ends with the first step in which a request stops, or whose end is `until` or
        more after the batch's start. It alone knows the true output lengths (or samples until it meets a stop)."""
        ...

    def steps_to_stop(self, batch: Batch) -> int:
        """Steps of this batch up to and including the first in which a request stops; at least 1."""
        ...
