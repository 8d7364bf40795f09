"""The pool as it stands in a step, as the state vector of `sim.integrals`; read after `schedule()`, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.core.allocator import AllocatorStats, KVAllocator, Reason, new_tuple
from sim import integrals as at
from sim.integrals import NO_GROWTH, Growth
from sim.last_blocks import LastBlocks

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler


class PoolState:
    """Counters of the pool, and what they leave out: slots that no request will ever fill."""

    __slots__ = (
        "_allocator",
        "_block_size",
        "_final_sum",
        "_final_tokens",
        "_scheduler",
        "_whole",
        "caches",
        "last_blocks",
        "pages",
        "stats",
        "true_sum",
    )

    def __init__(self, scheduler: Scheduler, final_tokens: Callable[[Request], int]) -> None:
        """`final_tokens`: tokens of a request's KV at its end."""
        self._scheduler = scheduler
        self._allocator: KVAllocator = scheduler.allocator
        self._block_size = self._allocator.block_size
        self._final_tokens = final_tokens
        growth = self._allocator.growth_tokens
        self.pages = growth == self._block_size and not getattr(self._allocator, "contiguous", False)
        """Whether memory comes block by block from anywhere in the pool."""
        self._whole = growth == 0
        self.caches = bool(getattr(self._allocator, "enable_caching", False))
        self.last_blocks = LastBlocks(self._block_size, final_tokens)
        self._final_sum = 0
        self.true_sum = 0
        """Prompt and output tokens of the running requests."""
        self.stats: AllocatorStats = self._allocator.stats()
        """The counters as of the last turn."""

    # requests -----------------------------------------------------------------------------------------------------

    def take(self, request: Request) -> None:
        """The request runs. Where memory comes block by block, its last block is all that counts."""
        self._final_sum += self._final_tokens(request)
        self.true_sum += request.num_prompt_tokens + request.num_stop_tokens

    def drop(self, request: Request) -> None:
        """The request has let go of its memory, or is about to."""
        if self.pages:
            self.last_blocks.drop(request)
            return
        self._final_sum -= self._final_tokens(request)
        self.true_sum -= request.num_prompt_tokens + request.num_stop_tokens

    # state --------------------------------------------------------------------------------------------------------

    def read_step(self, batch: Batch) -> list[int]:
        """A batch that is a single step."""
        stats = self.stats = self._allocator.stats()
        return self._read(batch, 0, stats.num_free - stats.num_cached_free)

    def read_run(self, batch: Batch) -> tuple[list[int], Growth]:
        """The state in a run's first step, and what its further steps add; the pool holds all of them already."""
        before, stats = self.stats, self._allocator.stats()
        self.stats = stats
        spare = stats.num_free - stats.num_cached_free
        if not self.pages:
            return self._read(batch, 0, spare), NO_GROWTH
        evicted = stats.num_evictions - before.num_evictions
        later, spare, unspared = later_in_run(batch.growth, spare, evicted if self.caches else None)
        state = self._read(batch, later, spare)
        begun = self.last_blocks.run(batch.decodes, batch.clock, batch.num_steps)
        return state, new_tuple(Growth, (batch.growth[1:], begun, unspared))

    def _read(self, batch: Batch, later: int, spare: int) -> list[int]:
        """`later` of the referenced blocks are not taken yet in the batch's first step, `spare` blocks are free and
        empty in it."""
        free, _, referenced, _, extra, asked, largest, _, _ = self.stats
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
            self.last_blocks.empty_slots if self.pages else self.internal(used, extra),
            extra,
            asked,
            self.true_sum if asked else 0,
            hole,
            short,
            spare * size if self.caches else 0,
            0 if self.pages else largest * size,
        ]

    def read_idle(self) -> list[int]:
        """Nothing runs and nothing waits."""
        stats, size = self._allocator.stats(), self._block_size
        state = [0] * at.WIDTH
        state[at.SPARE] = (stats.num_free - stats.num_cached_free) * size if self.caches else 0
        state[at.LARGEST] = 0 if self.pages else stats.largest_free_extent * size
        return state

    def _idle_tokens(self, batch: Batch) -> int:
        """Computed tokens of running requests that got nothing in this step (the budget ran out)."""
        given = {chunk.request for chunk in batch.chunks}
        return sum(r.computed for r in self._scheduler.running if r.decoding is None and r not in given)

    def internal(self, used: int, extra: int) -> int:
        """Slots that will never be filled, where memory does not come block by block."""
        if self._whole:
            return used - self._final_sum
        size = self._block_size
        held = ((self._final_tokens(r), len(self._allocator.block_table(r)) * size) for r in self._scheduler.running)
        return used + extra - sum(min(final, slots) for final, slots in held)


def later_in_run(taken: Sequence[int], spare: int, num_evicted: int | None) -> tuple[int, int, Sequence[int]]:
    """Of a run: blocks not taken yet in its first step, spare blocks then, how many of those each further step takes.

    `taken`: blocks by step, the first included; `spare`: free blocks without content after the run; `num_evicted`:
    blocks that gave up content in it, None without caching. Empty blocks go first, so evictions tell how many of the
    blocks taken were empty ones.
    """
    first, further = taken[0], taken[1:]
    later = sum(further)
    unspared: Sequence[int] = ()
    if num_evicted is not None:
        empty = first + later - num_evicted
        spare += empty - min(first, empty)
        if spare:
            unspared = _first_come(further, spare)
    return later, spare, unspared


def _first_come(counts: Sequence[int], amount: int) -> Sequence[int]:
    """What each gets of `amount`, first come first served."""
    if amount >= sum(counts):
        return counts
    shares = []
    for count in counts:
        shares.append(min(count, amount))
        amount -= shares[-1]
    return shares
