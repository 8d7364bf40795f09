"""The executor that answers with a duration: runs of equal steps end where the first request stops."""

from __future__ import annotations

from heapq import heappop, heappush
from math import isqrt
from typing import TYPE_CHECKING

from engine.core.batch import StepResult
from sim.cost import StepModel, features_of

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.request import Request


def num_stop_computed(request: Request) -> int:
    """Computed tokens at which a request samples its last token: that one never gets a slot."""
    return request.num_prompt_tokens + request.num_stop_tokens - 1


def total(first: int, slope: int, num_steps: int) -> int:
    """Duration of `num_steps` steps in arithmetic progression."""
    return num_steps * first + slope * (num_steps * (num_steps - 1) // 2)


def steps_until(first: int, slope: int, duration: int, most: int) -> int:
    """Smallest number of steps, 1 to `most`, that together last `duration` or more; `most` if none does."""
    if total(first, slope, most) < duration:
        return most
    if not slope:
        return max(-(-duration // first), 1)
    # slope/2 k^2 + (first - slope/2) k >= duration, solved in integers and corrected by at most one step.
    b = 2 * first - slope
    k = max((isqrt(b * b + 8 * slope * duration) - b) // (2 * slope), 1)
    while k > 1 and total(first, slope, k - 1) >= duration:
        k -= 1
    while total(first, slope, k) < duration:
        k += 1
    return min(k, most)


class CostExecutor:
    """Answers from a step-time model, with forced output lengths. Time is integer picoseconds."""

    max_steps = 1 << 40

    def __init__(self, model: StepModel, *, copy_block_ps: int = 0) -> None:
        """`copy_block_ps`: time to copy one block on the device, added to the step that needs it."""
        self._model = model
        self._copy_block_ps = copy_block_ps
        self._stops: list[tuple[int, int, Request]] = []
        """(decode clock at the last step, order, request); entries of requests that left are dropped on sight."""
        self._noted: Batch | None = None

    def _note(self, batch: Batch) -> None:
        if self._noted is not batch:
            self._noted = batch
            for request in batch.joined:
                heappush(self._stops, (num_stop_computed(request) - request.base, request.order, request))

    def _next_stop(self, batch: Batch) -> int:
        """Decode clock at which the first decoding request stops; far away if none decodes."""
        stops = self._stops
        while stops:
            clock, order, request = stops[0]
            if request.decoding is not None and order == request.order and clock == num_stop_computed(request) - request.base:
                return clock
            heappop(stops)
        return batch.clock + self.max_steps

    def steps_to_stop(self, batch: Batch) -> int:
        """O(log n) amortised."""
        self._note(batch)
        return self._next_stop(batch) - batch.clock + 1

    def submit(self, batch: Batch, max_steps: int = 1, until: int | None = None) -> StepResult:
        """Answers at once."""
        self._note(batch)
        features = features_of(batch)
        first = self._model.duration(features) + self._copy_block_ps * len(batch.copies)
        steps, slope, durations = 1, 0, None
        if max_steps > 1:
            step_slope = self._model.slope(features)
            if step_slope is None:
                durations = self._durations(batch, first, max_steps, until)
                steps = len(durations)
            else:
                slope = step_slope
                steps = max_steps if until is None else steps_until(first, slope, until, max_steps)
        duration = sum(durations) if durations is not None else total(first, slope, steps)
        return StepResult(steps, duration, self._stopped(batch, steps), first, slope, durations)

    def _durations(self, batch: Batch, first: int, max_steps: int, until: int | None) -> list[int]:
        features = features_of(batch)
        seqs = features.num_seqs
        durations, elapsed = [first], first
        for step in range(1, max_steps):
            if until is not None and elapsed >= until:
                break
            grown = features._replace(
                num_kv_tokens=features.num_kv_tokens + step * seqs,
                num_attended_pairs=features.num_attended_pairs + step * seqs,
            )
            durations.append(self._model.duration(grown))
            elapsed += durations[-1]
        return durations

    def _stopped(self, batch: Batch, steps: int) -> list[Request]:
        stopped = [c.request for c in batch.chunks if c.completes and c.request.computed == num_stop_computed(c.request)]
        last = batch.clock + steps - 1
        while self._next_stop(batch) == last:
            stopped.append(heappop(self._stops)[2])
        return stopped
