"""Watches a replay: one row a request, and the exact integrals that every memory metric is made from.

The recorder reads state after `schedule()` and is never called by scheduler or allocator. It is, with the executors,
the only reader of true output lengths: `reserved` means slots that this request will really fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.core.allocator import KVAllocator, Regions
from engine.core.group import members_of
from sim import integrals as at
from sim.away import Away
from sim.int_log import IntLog
from sim.integrals import NO_EDGE, Integrals
from sim.pool_state import PoolState
from sim.progression import boundary_after
from sim.row_store import RowStore
from sim.rows import Progress, num_sampled, stands_for_group, stopped_as

if TYPE_CHECKING:
    from engine.core.batch import Batch, Fork, StepResult
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from sim.residency import Residency


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
        residency: Residency | None = None,
    ) -> None:
        """`final_tokens`: tokens of a request's KV at its end (prompt + output - 1, or + output under `sosp23`).
        `residency` is told the time of what happens to cached blocks; only where every step is taken by itself."""
        self._scheduler = scheduler
        self._allocator: KVAllocator = scheduler.allocator
        self._block_size = self._allocator.block_size
        self._pool = self.pool = PoolState(scheduler, final_tokens)
        self._last_blocks = self._pool.last_blocks if self._pool.pages else None
        self.integrals = Integrals(edges, block_size=self._block_size, caches=self._pool.caches)
        self.rows = RowStore()
        self.wait_starts, self.wait_ends = IntLog(), IntLog()
        self.away = Away()
        self.preempted_at = self.away.starts
        self.blocked: list[tuple[int, int]] = []
        """Intervals in which a refused head kept at least one more request waiting."""
        self.num_turns = 0
        self.num_copied_blocks = 0
        self.num_swapped_out = self.num_swapped_in = 0
        """Blocks copied to host memory, and from there."""
        self.snapshots: list[Snapshot] = []
        self._snapshot_times = list(reversed(snapshot_times))
        self.snapshot_due = snapshot_times[0] if snapshot_times else NO_EDGE
        """The next picture's: the first step boundary at or after that, of a batch that is a single step."""
        self.steps: list[tuple[int, ...]] | None = [] if record_steps else None
        self.residency = residency
        self._progress: dict[Request, Progress] = {}

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
        if batch.forks:
            self._forked(now, batch.forks)
        for request, lost, swapped in batch.preempted:
            self._pool.drop(request)
            progress = self._progress[request]
            progress.recount(lost)
            progress.preempted_at = now
            if stands_for_group(request):
                self.away.leave(now, request, swapped=swapped)
                self.wait_starts.append(now)
        for request, hits, resumed in batch.admitted:
            self._take(now, request, hits, resumed)
        for request, num_tokens in batch.swapped_in:
            self._progress[request].resume(now, num_tokens)
            if stands_for_group(request):
                self.away.come_back(now, request)
                self.wait_ends.append(now)
        if batch.to_host or batch.to_device:
            self.num_swapped_out += len(batch.to_host)
            self.num_swapped_in += len(batch.to_device)

    def _forked(self, now: int, forks: Sequence[Fork]) -> None:
        for _, child, num_tokens in forks:
            if child not in self._progress:
                self._progress[child] = Progress(now)
                self._progress[child].start = num_tokens
            elif self._progress[child].preempted_at >= 0:
                self._progress[child].resume(now, num_tokens)
            if self._last_blocks is not None and child.decoding is None:  # the step's budget did not reach it
                self._last_blocks.share(child)

    def record(self, start: int, batch: Batch, result: StepResult, next_arrival: int) -> None:
        """A batch, from its schedule at `start` to its result; called before `scheduler.update`. `next_arrival`: when
        the next request will wait."""
        if not batch.steady:
            self.moved(start, batch)
        if self.residency is not None:
            self.residency.drain(start)
        last = self._last_blocks
        if last is not None and (batch.chunks or batch.joined or batch.clock >= last.next_clock):
            last.scheduled(batch)
        if start >= self.snapshot_due:
            self._snapshot(start)
        self.num_turns += 1
        if batch.copies:
            self.num_copied_blocks += len(batch.copies)
        self._add(start, batch, result)
        if batch.head_refusal is not None:
            self._block_head(start, batch, result, next_arrival)

    def coasted(self, start: int, first: int, slope: int, duration: int, taken: Sequence[int]) -> None:
        """Pure decode steps from `start` on while nobody waits: `taken` is the number of blocks taken in each."""
        decodes, pool, steps = self._scheduler.decodes, self._pool, len(taken)
        seqs, clock = len(decodes.members), decodes.clock - steps + 1
        before = pool.stats
        free, cached, referenced, _, extra, asked, largest, evictions, _ = pool.stats = self._allocator.stats()
        self.num_turns += 1
        begun: Sequence[int] = ()
        last = self._last_blocks
        if last is not None:
            if last.next_clock <= clock:
                last.reached(decodes, clock)
            internal, largest = last.empty_slots, 0
            if last.next_clock < clock + steps:
                begun = last.run(decodes, clock, steps)
        else:
            internal = pool.internal(referenced * self._block_size, extra)
        integrals = self.integrals
        run = (
            integrals.segment,
            first,
            slope,
            steps,
            seqs,
            decodes.sum_base + seqs * clock,
            referenced,
            internal,
            extra,
            asked,
            pool.true_sum if asked else 0,
            free - cached if pool.caches else 0,
            evictions - before.num_evictions,
            largest * self._block_size,
        )
        if start + duration < integrals.edge:
            integrals.coasts.add(run, taken, begun)
        else:
            integrals.add_coast(start, run, taken, begun)

    def _add(self, start: int, batch: Batch, result: StepResult) -> None:
        pool = self._pool
        if batch.num_steps == 1:
            state = pool.read_step(batch)
            emitted = len(batch.decodes.members)
            for request, _, _, completes in batch.chunks:
                if completes:
                    emitted += 1 if request.group is None else num_sampled(request.group)
            if self.steps is not None:
                self._record_step(start, batch, result, state)
            self.integrals.add_step(start, result.duration, state, emitted, batch.num_new_tokens)
            return
        state, growth = pool.read_run(batch)
        if result.durations is None:
            self.integrals.add_progression(start, result.first, result.slope, batch.num_steps, state, growth)
        else:
            self.integrals.add_run(start, result.durations, state, growth)

    def _take(self, now: int, request: Request, hits: int, resumed: bool) -> None:
        if resumed:
            self._progress[request].resume(now, hits)
            self.away.come_back(now, request)
        else:
            self._progress[request] = Progress(now, hits)
        if self._last_blocks is None:
            for member in members_of(request):
                self._pool.take(member)
        self.wait_ends.append(now)

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

    # time ---------------------------------------------------------------------------------------------------------

    def idle(self, start: int, end: int) -> None:
        """Nothing runs and nothing waits."""
        self.integrals.add_idle(start, end, self._pool.read_idle())

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
        last = self._last_blocks
        for request, _, _, completes in batch.chunks:
            if completes:
                progress = self._progress[request]
                if progress.first_token < 0:
                    progress.first_token = now
                if last is not None and request.decoding is not None:
                    last.follow(request)
        if finished:
            self.finished(now, finished)

    def finished(self, now: int, finished: Sequence[Request]) -> None:
        """Rows of requests that stopped at `now`."""
        if self.residency is not None:
            self.residency.drain(now)
        drop = self._pool.drop if self._last_blocks is None else self._last_blocks.drop
        for request in finished:
            drop(request)
            if request.group is None:
                progress = self._progress.pop(request)
                progress.recount(request.computed)
                self.rows.append(progress.row(request, stopped_as(request), now))
            elif request in self._progress:  # else it sampled its only token beside its leader's
                self._progress[request].recount(request.computed)
        for group in {request.group: None for request in finished if request.group is not None}:
            if not group.live():
                self._write(group.leader, stopped_as(group.leader), now)

    def _write(self, request: Request, status: str, finish: int) -> None:
        """The row of a request, or of the group that it leads."""
        for member in request.group.members[1:] if request.group else ():
            if member in self._progress:
                self._progress[request].absorb(self._progress.pop(member))
        self.rows.append(self._progress.pop(request).row(request, status, finish))

    def turn_away(self, request: Request, status: str) -> None:
        """A request that is not replayed keeps its row."""
        self.rows.append(Progress().row(request, status, -1))

    def close(self, now: int) -> None:
        """Rows for the requests still there when the run was cut."""
        if self.residency is not None:
            self.residency.close(now)
        for request in self._scheduler.waiting:
            if request not in self._progress:
                self.turn_away(request, "unfinished")
        for request, progress in self._progress.items():
            if request in self._scheduler.running:
                progress.recount(request.num_computed_tokens)
        for request in list(self._progress):
            if request.sample == 0:
                self._write(request, "unfinished", -1)
        self.rows.sort()
