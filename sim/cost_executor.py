"""The executor that answers with a duration: runs of equal steps end where the first request stops."""

from __future__ import annotations

from heapq import heappop, heappush
from math import isqrt
from typing import TYPE_CHECKING

from engine.core.batch import StepResult
from sim.cost import Features, StepModel, features_of

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.request import Request


NEVER = 1 << 62
"""A decode clock beyond every run."""


def num_stop_computed(request: Request) -> int:
    """Computed tokens at which a request samples its last token: that one never gets a slot."""
    return request.num_prompt_tokens + request.num_stop_tokens - 1


def total(first: int, slope: int, num_steps: int) -> int:
    """Duration of `num_steps` steps in arithmetic progression."""
    return num_steps * first + slope * (num_steps * (num_steps - 1) // 2)


def steps_until(first: int, slope: int, duration: int, most: int) -> int:
    """Smallest number of steps, 1 to `most`, that together last `duration` or more; `most` if none does."""
    if most * first + slope * (most * (most - 1) // 2) < duration:
        return most
    if first >= duration:
        return 1
    if not slope:
        return -(-duration // first)
    # slope/2 k^2 + (first - slope/2) k >= duration, solved in integers and corrected by at most one step.
    b = 2 * first - slope
    k = (isqrt(b * b + 8 * slope * duration) - b) // (2 * slope)
    if k * first + slope * (k * (k - 1) // 2) < duration:
        k += 1
    elif (k - 1) * first + slope * ((k - 1) * (k - 2) // 2) >= duration:
        k -= 1
    return k


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
        self._stop_clock = NEVER

    def _note(self, batch: Batch) -> None:
        """Books the stops of requests that began to decode, and finds the next stop."""
        self._noted = batch
        for request in batch.joined:
            heappush(self._stops, (num_stop_computed(request) - request.base, request.order, request))
        self._stop_clock = self._next_stop()

    def _next_stop(self) -> int:
        """Decode clock at which the first decoding request stops; far away if none decodes."""
        stops = self._stops
        while stops:
            clock, order, request = stops[0]
            if request.decoding is not None and order == request.order:
                if clock == num_stop_computed(request) - request.base:
                    return clock
            heappop(stops)
        return NEVER

    def steps_to_stop(self, batch: Batch) -> int:
        """O(log n) amortised."""
        if self._noted is not batch:
            self._note(batch)
        return self._stop_clock - batch.clock + 1

    def submit(self, batch: Batch, max_steps: int = 1, until: int | None = None) -> StepResult:
        """Answers at once."""
        if self._noted is not batch:
            self._note(batch)
        features = features_of(batch)
        first = self._model.duration(features)
        if batch.copies:
            first += self._copy_block_ps * len(batch.copies)
        if max_steps == 1:
            return StepResult(1, first, self._stopped(batch, 1), first)
        slope = self._model.slope(features)
        if slope is None:
            durations = self._durations(features, first, max_steps, until)
            steps = len(durations)
            return StepResult(steps, sum(durations), self._stopped(batch, steps), first, 0, durations)
        steps = max_steps if until is None else steps_until(first, slope, until, max_steps)
        return StepResult(steps, total(first, slope, steps), self._stopped(batch, steps), first, slope)

    def _durations(self, features: Features, first: int, max_steps: int, until: int | None) -> list[int]:
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
        stopped = []
        for request, _, _, completes in batch.chunks:
            if completes and request.computed == num_stop_computed(request):
                stopped.append(request)
        last = batch.clock + steps - 1
        while self._stop_clock == last:
            stopped.append(heappop(self._stops)[2])
            self._stop_clock = self._next_stop()
        return stopped
