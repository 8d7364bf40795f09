"""The executor that answers with a duration: runs of equal steps end where the first request stops."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from engine.core.allocator import new_tuple
from engine.core.batch import StepResult
from sim.ancestry import Ancestry
from sim.cost import StepModel, decode_features, features_of
from sim.progression import steps_until, total

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


NEVER = 1 << 62
"""A decode clock beyond every run."""


def num_stop_computed(request: Request) -> int:
    """Computed tokens at which a request samples its last token: that one never gets a slot."""
    return request.num_prompt_tokens + request.num_stop_tokens - 1


class CostExecutor:
    """Answers from a step-time model, with forced output lengths. Time is integer picoseconds."""

    def __init__(
        self,
        model: StepModel,
        *,
        copy_block_ps: int = 0,
        swap_block_ps: int = 0,
        ancestry: Ancestry | None = None,
    ) -> None:
        """`copy_block_ps`: time to copy one block on the device, added to the step that needs it; `swap_block_ps`: to
        host memory or back. `ancestry` says which beams of a search live on; None: all of them."""
        self._model = model
        self._copy_block_ps = copy_block_ps
        self._swap_block_ps = swap_block_ps
        self._ancestry = ancestry
        self._stops: list[tuple[int, int, int, Request]] = []
        """(decode clock at the last step, order, base, request); entries of requests that left are dropped on sight."""
        self._turn: Callable[[int], int] | None = getattr(model, "turn", None)
        """What a decode step takes more if other sequences decoded before it; None: nothing."""
        self._turned = True
        self._ahead: tuple[int, int, int, int | None, list[int] | None] = (-1, 0, 0, None, None)
        """What `horizon` found for the next step: its decode clock, sequences, first duration, slope, durations."""

    def _next_stop(self) -> int:
        """Decode clock at which the first decoding request stops; far away if none decodes."""
        stops = self._stops
        while stops:
            clock, order, base, request = stops[0]
            if request.decoding is not None and order == request.order and base == request.base:
                return clock
            heappop(stops)
        return NEVER

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """O(log n) amortised, plus one evaluation of the model (one a step where it has knees)."""
        steps = self._next_stop() - decodes.clock
        seqs = len(decodes.members)
        kv = decodes.sum_base + seqs * (decodes.clock + 1)
        first, slope = self._model.decode_line(seqs, kv)
        if self._turn is not None and self._turned:
            first += self._turn(seqs)
        durations = None
        if slope is None:
            durations = self._durations(seqs, kv, first, steps, until, end)
            steps = len(durations)
        else:
            if until is not None:
                steps = steps_until(first, slope, until, steps)
            if end is not None and total(first, slope, steps) > end:
                steps = max(steps_until(first, slope, end + 1, steps) - 1, 1)
        self._ahead = decodes.clock + 1, seqs, first, slope, durations
        return steps

    def line(self, decodes: DecodeSet) -> tuple[int, int, int | None]:
        """Decode clock of the next stop, duration of the next step and by how much each one outlasts the one before."""
        seqs = len(decodes.members)
        first, slope = self._model.decode_line(seqs, decodes.sum_base + seqs * (decodes.clock + 1))
        clock, order, base, request = self._stops[0]
        if request.decoding is None or order != request.order or base != request.base:
            clock = self._next_stop()
        return clock, first, slope

    def stopped_at(self, clock: int) -> list[Request]:
        """Requests whose last step is the one at decode clock `clock`, the next stop."""
        stops = self._stops
        stopped = []
        while stops and stops[0][0] <= clock:
            _, order, base, request = heappop(stops)
            if request.decoding is not None and order == request.order and base == request.base:
                stopped.append(request)
        return stopped

    def submit(self, batch: Batch) -> StepResult:
        """Answers at once."""
        steps, stops = batch.num_steps, self._stops
        for request in batch.joined:
            heappush(stops, (num_stop_computed(request) - request.base, request.order, request.base, request))
        last = batch.clock + steps - 1
        stopped = self.stopped_at(last) if stops and stops[0][0] <= last else []
        if batch.chunks:
            self._note(batch, stopped)
        clock, seqs, first, slope, durations = self._ahead
        if not (batch.steady and batch.clock == clock and batch.num_seqs == seqs):
            assert steps == 1, f"a run of {steps} steps that nobody asked for"
            first = self._model.duration(features_of(batch))
            turned = self._turned or batch.preempted or batch.joined
            if turned and self._turn is not None and not batch.chunks:
                first += self._turn(batch.num_seqs)
            if batch.copies:
                first += self._copy_block_ps * len(batch.copies)
            if batch.to_host or batch.to_device:
                first += self._swap_block_ps * (len(batch.to_host) + len(batch.to_device))
        self._turned = bool(stopped or batch.chunks)
        if steps == 1:
            beams = () if self._ancestry is None else self._ancestry.select(batch, stopped)
            return new_tuple(StepResult, (1, first, stopped, first, 0, None, None, beams))
        if durations is not None:
            return StepResult(steps, sum(durations[:steps]), stopped, first, 0, durations[:steps])
        assert slope is not None
        return new_tuple(StepResult, (steps, total(first, slope, steps), stopped, first, slope, None, None, ()))

    def _note(self, batch: Batch, stopped: list[Request]) -> None:
        """Requests that sampled their first token, or one after a pause, decode from the next step on; those whose only
        token it was join the stopped."""
        for request, context, new, completes in batch.chunks:
            if completes:
                base = context + new - batch.clock
                stop = num_stop_computed(request) - base
                if stop > batch.clock:
                    heappush(self._stops, (stop, request.order, base, request))
                elif request.group is not None and not request.group.forked:
                    stopped += request.group.members
                else:
                    stopped.append(request)

    def _durations(self, seqs: int, kv: int, first: int, steps: int, until: int | None, end: int | None) -> list[int]:
        """Step by step, as far as `horizon` goes."""
        durations, elapsed = [first], first
        for step in range(1, steps):
            if until is not None and elapsed >= until:
                break
            duration = self._model.duration(decode_features(seqs, kv + step * seqs))
            elapsed += duration
            if end is not None and elapsed > end:
                break
            durations.append(duration)
        return durations
