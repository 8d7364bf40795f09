"""Watches a replay: one row a request, and the exact integrals that every memory metric is made from.

The recorder reads state after `schedule()` and is never called by scheduler or allocator. It is, with the executors,
the only reader of true output lengths: `reserved` means slots that this request will really fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.core.allocator import AllocatorStats, KVAllocator, Reason, Regions
from sim import integrals as at
from sim.integrals import NO_EDGE, NO_GROWTH, Growth, Integrals
from sim.last_blocks import LastBlocks
from sim.progression import boundary_after
from sim.rows import Progress, RequestRow

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler


class Snapshot(NamedTuple):
    """The pool at one instant, by address; owners are request ids (negative: FREE, CACHED, SHARED, ...)."""

    time: int
    regions: Regions


class Recorder:
    """Gathers rows and integrals of one replay."""

    def __init__(
        self,
        scheduler: Scheduler,
        edges: Sequence[int],
        *,
        final_tokens: Callable[[Request], int],
        snapshot_times: Sequence[int] = (),
        record_steps: bool = False,
    ) -> None:
        """`final_tokens`: tokens of a request's KV at its end (prompt + output - 1, or + output under `sosp23`)."""
        self._scheduler = scheduler
        self._allocator: KVAllocator = scheduler.allocator
        self._block_size = self._allocator.block_size
        self._final_tokens = final_tokens
        growth = self._allocator.growth_tokens
        self._pages = growth == self._block_size and not getattr(self._allocator, "contiguous", False)
        self._whole = growth == 0
        self._caches = bool(getattr(self._allocator, "enable_caching", False))
        self.integrals = Integrals(edges, block_size=self._block_size)
        self.rows: list[RequestRow] = []
        self.wait_starts: list[int] = []
        self.wait_ends: list[int] = []
        self.blocked: list[tuple[int, int]] = []
        """Intervals in which a refused head kept at least one more request waiting."""
        self.num_turns = 0
        self.num_copied_blocks = 0
        self.snapshots: list[Snapshot] = []
        self._snapshot_times = list(reversed(snapshot_times))
        self.snapshot_due = snapshot_times[0] if snapshot_times else NO_EDGE
        """When the next picture is due: at the first step boundary at or after that, of a batch that is a single
        step."""
        self.steps: list[tuple[int, ...]] | None = [] if record_steps else None
        self._progress: dict[Request, Progress] = {}
        self._final_sum = 0
        self._true_sum = 0
        self._last_blocks = LastBlocks(self._block_size, final_tokens)
        self._stats: AllocatorStats = self._allocator.stats()

    @property
    def num_steps(self) -> int:
        """Steps replayed."""
        return sum(row[at.STEPS] for row in self.integrals.segments())

    # events -------------------------------------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        """The request has joined the queue."""
        self.wait_starts.append(request.arrival)

    def moved(self, now: int, batch: Batch) -> None:
        """Requests that left or joined the running ones in a batch."""
        for request, lost in batch.preempted:
            self._drop(request)
            progress = self._progress[request]
            progress.recount(lost)
            progress.preempted_at = now
            self.wait_starts.append(now)
        for request, hits, resumed in batch.admitted:
            self._take(now, request, hits, resumed)

    def record(self, start: int, batch: Batch, result: StepResult, next_arrival: int) -> None:
        """A batch, from its schedule at `start` to its result; called before `scheduler.update`. `next_arrival`: when
        the next request will wait."""
        if batch.preempted or batch.admitted:
            self.moved(start, batch)
        if self._pages and (batch.chunks or batch.clock >= self._last_blocks.next_clock):
            self._last_blocks.scheduled(batch)
        if start >= self.snapshot_due:
            self._snapshot(start)
        self.num_turns += 1
        if batch.copies:
            self.num_copied_blocks += len(batch.copies)
        self._add(start, batch, result)
        if batch.head_refusal is not None:
            self._block_head(start, batch, result, next_arrival)

    def _add(self, start: int, batch: Batch, result: StepResult) -> None:
        before, stats = self._stats, self._allocator.stats()
        self._stats = stats
        if batch.num_steps == 1:
            state = self._read(batch, stats, 0, stats.num_free - stats.num_cached_free)
            emitted = len(batch.decodes.members)
            for chunk in batch.chunks:
                emitted += chunk.completes
            if self.steps is not None:
                self._record_step(start, batch, result, state)
            self.integrals.add_step(start, result.duration, state, emitted, batch.num_new_tokens)
            return
        state, growth = self._read_run(batch, before, stats)
        if result.durations is None:
            self.integrals.add_progression(start, result.first, result.slope, batch.num_steps, state, growth)
        else:
            self.integrals.add_run(start, result.durations, state, growth)

    def _read_run(self, batch: Batch, before: AllocatorStats, stats: AllocatorStats) -> tuple[list[int], Growth]:
        """The state in a run's first step, and what its further steps add; the pool holds all of them already."""
        spare = stats.num_free - stats.num_cached_free
        if not self._pages:
            return self._read(batch, stats, 0, spare), NO_GROWTH
        first, further = batch.growth[0], batch.growth[1:]
        later = sum(further)
        unspared: Sequence[int] = ()
        if self._caches:
            # Empty blocks go first, so evictions tell how many of the blocks taken were empty ones.
            empty = first + later - (stats.num_evictions - before.num_evictions)
            spare += empty - min(first, empty)
            if spare:
                unspared = _first_come(further, spare)
        state = self._read(batch, stats, later, spare)
        return state, Growth(further, self._last_blocks.run(batch, batch.num_steps), unspared)

    def _take(self, now: int, request: Request, hits: int, resumed: bool) -> None:
        if resumed:
            progress = self._progress[request]
            progress.preempted += now - progress.preempted_at
        else:
            progress = self._progress[request] = Progress()
            progress.first_scheduled = now
            progress.hits = hits
        progress.start = hits
        self._final_sum += self._final_tokens(request)
        self._true_sum += request.num_prompt_tokens + request.num_stop_tokens
        self.wait_ends.append(now)

    def _drop(self, request: Request) -> None:
        self._final_sum -= self._final_tokens(request)
        self._true_sum -= request.num_prompt_tokens + request.num_stop_tokens
        self._last_blocks.drop(request)

    def _snapshot(self, now: int) -> None:
        while self._snapshot_times and now >= self._snapshot_times[-1]:
            self._snapshot_times.pop()
        self.snapshot_due = self._snapshot_times[-1] if self._snapshot_times else NO_EDGE
        regions = self._allocator.regions()
        ids = {request.row: int(request.request_id) for request in self._scheduler.running}
        owner = regions.owner.copy()
        for index, row in enumerate(owner):
            if row >= 0:
                owner[index] = ids[int(row)]
        self.snapshots.append(Snapshot(now, regions._replace(owner=owner)))

    # state --------------------------------------------------------------------------------------------------------

    def _read(self, batch: Batch, stats: AllocatorStats, later: int, spare: int) -> list[int]:
        """The state vector in the order of `sim.integrals.STATE`; `later` of the referenced blocks are not taken yet
        in the batch's first step, `spare` blocks are free and empty in it."""
        free, _, referenced, _, extra, asked, largest, _, _ = stats
        size, num_running = self._block_size, len(self._scheduler.running)
        tokens = batch.num_context_tokens + batch.num_new_tokens
        if num_running != batch.num_seqs:
            tokens += self._idle_tokens(batch)
        used = (referenced - later) * size
        hole = short = 0
        if batch.head_refusal is not None:
            hole = free * size if batch.head_refusal.reason is Reason.NO_HOLE else 0
            short = 0 if hole else (free + later) * size
        return [
            num_running,
            tokens,
            used,
            self._last_blocks.empty_slots if self._pages else self._internal(used, extra),
            extra,
            asked,
            self._true_sum if asked else 0,
            hole,
            short,
            spare * size if self._caches else 0,
            0 if self._pages else largest * size,
        ]

    def _idle_tokens(self, batch: Batch) -> int:
        """Computed tokens of running requests that got nothing in this step (the budget ran out)."""
        given = {chunk.request for chunk in batch.chunks}
        return sum(r.computed for r in self._scheduler.running if r.decoding is None and r not in given)

    def _internal(self, used: int, extra: int) -> int:
        """Slots that will never be filled, where memory does not come block by block."""
        if self._whole:
            return used - self._final_sum
        size = self._block_size
        held = ((self._final_tokens(r), len(self._allocator.block_table(r)) * size) for r in self._scheduler.running)
        return used + extra - sum(min(final, slots) for final, slots in held)

    # time ---------------------------------------------------------------------------------------------------------

    def idle(self, start: int, end: int) -> None:
        """Nothing runs and nothing waits."""
        stats, size = self._allocator.stats(), self._block_size
        state = [0] * at.WIDTH
        state[at.SPARE] = (stats.num_free - stats.num_cached_free) * size if self._caches else 0
        state[at.LARGEST] = 0 if self._pages else stats.largest_free_extent * size
        self.integrals.add_idle(start, end, state)

    def _block_head(self, start: int, batch: Batch, result: StepResult, next_arrival: int) -> None:
        end = start + result.duration
        if batch.num_waiting < 2:
            if next_arrival >= end:
                return
            start += boundary_after(result, next_arrival - start)
        if start < end:
            if self.blocked and self.blocked[-1][1] == start:
                start = self.blocked.pop()[0]
            self.blocked.append((start, end))

    def _record_step(self, start: int, batch: Batch, result: StepResult, state: list[int]) -> None:
        assert self.steps is not None
        refused = -1 if batch.head_refusal is None else int(batch.head_refusal.reason)
        self.steps.append(
            (start, result.duration, batch.num_new_tokens, batch.num_waiting, len(batch.preempted), refused, *state)
        )

    # ends ---------------------------------------------------------------------------------------------------------

    def updated(self, now: int, batch: Batch, finished: Sequence[Request]) -> None:
        """First tokens and finishes at `now`, the end of the step; called after `scheduler.update`."""
        for request, _, _, completes in batch.chunks:
            if completes:
                progress = self._progress[request]
                if progress.first_token < 0:
                    progress.first_token = now
                if self._pages and request.decoding is not None:
                    self._last_blocks.follow(request)
        for request in finished:
            self._drop(request)
            progress = self._progress.pop(request)
            progress.recount(request.computed)
            truncated = request.max_tokens < request.oracle_output_tokens
            self.rows.append(progress.row(request, "truncated" if truncated else "finished", now))

    def turn_away(self, request: Request, status: str) -> None:
        """A request that is not replayed keeps its row."""
        self.rows.append(Progress().row(request, status, -1))

    def close(self, now: int) -> None:
        """Rows for the requests still there when the run was cut."""
        for request, progress in self._progress.items():
            if request in self._scheduler.running:
                progress.recount(request.num_computed_tokens)
            self.rows.append(progress.row(request, "unfinished", -1))
        for request in self._scheduler.waiting:
            if request not in self._progress:
                self.turn_away(request, "unfinished")
        self.rows.sort()


def _first_come(counts: Sequence[int], amount: int) -> Sequence[int]:
    """What each gets of `amount`, first come first served."""
    if amount >= sum(counts):
        return counts
    shares = []
    for count in counts:
        shares.append(min(count, amount))
        amount -= shares[-1]
    return shares
