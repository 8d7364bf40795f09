"""Contiguous virtual and paged physical memory, after vAttention (Prabhu et al., ASPLOS 2025).

The K tensor and the V tensor of each layer reserve virtual addresses for every request slot, `max_model_len` tokens
each, so that a kernel sees one extent a request. Physical pages are mapped behind them as the request grows: the same
page of all tensors at once, a page group, which is a block here. Nothing is adjacent in physical memory, so that what a
request wastes is the tail of its last page in every tensor.

Reclamation is deferred: the pages of a request that has left stay mapped in its slot. They count as free; the next
request in that slot has them without a call to the driver, and who finds no unmapped page takes them away.

As in vAttention a page holds whole tokens (its bytes over those of a token, rounded down), free slots are chosen best
fit, and surplus is reclaimed from the last slot down. Unlike there, a request that finds no slot with enough pages gets
the one with most, and pages are mapped when they are needed, not a step ahead in the background. Pages are not shared:
no prefix cache, no forks, no swaps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.core.allocator import (
    EMPTY_GRANT,
    FREE,
    NO_HIT,
    NULL,
    AllocatorStats,
    Grant,
    Hit,
    Reason,
    Refusal,
    Regions,
    check_pool,
    holds_nothing,
    regions_of,
)

if TYPE_CHECKING:
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


class Slot:
    """Virtual addresses for one request: pages in use, and behind them pages that are only mapped still."""

    __slots__ = ("index", "spare", "table")

    def __init__(self, index: int) -> None:
        self.index = index
        self.table: list[int] = []
        """Physical page groups in use, in virtual order."""
        self.spare: list[int] = []
        """Mapped behind those, the nearest one last."""


class VirtualAllocator:
    """Page groups on demand, mapped into contiguous virtual address ranges."""

    enable_caching = False
    contiguous = False
    """Physical pages may lie anywhere: free extents do not matter."""

    def __init__(
        self,
        capacity_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        watermark: float = 0.0,
        one_free_each: bool = False,
        deferred: bool = True,
    ) -> None:
        """`block_size`: tokens of a page group. `watermark` and `one_free_each`: as for `PagedAllocator`.
        `deferred`: whether pages stay mapped when their request leaves."""
        check_pool(capacity_blocks, block_size)
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"watermark must lie in [0, 1), got {watermark}")
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.num_blocks = capacity_blocks + 1
        self.growth_tokens: int | None = block_size
        self.watermark_blocks = int(watermark * self.num_blocks)
        self.one_free_each = one_free_each
        self.pages_per_slot = -(-max_model_len // block_size)
        """Virtual pages of a slot in each tensor."""
        self.num_maps = 0
        """Page groups mapped so far: so many calls to the driver for each tensor."""
        self._max_model_len = max_model_len
        self._deferred = deferred
        self._unmapped = list(range(capacity_blocks, 0, -1))
        self._num_spare = 0
        self._slots: list[Slot] = []
        self._idle: list[Slot] = []
        self._seats: dict[Request, Slot] = {}

    # questions ----------------------------------------------------------------------------------------------------

    @property
    def _num_free(self) -> int:
        return len(self._unmapped) + self._num_spare

    def _pages(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self._max_model_len) // self.block_size)

    def refuses_forever(self, request: Request) -> Refusal | None:
        """The whole request, its last token excepted (it never gets a slot), must fit an empty pool."""
        needed = self._pages(request.num_prompt_tokens + request.max_tokens - 1)
        return Refusal(Reason.NEVER, needed, self.capacity_blocks) if needed > self.capacity_blocks else None

    def lookup(self, request: Request) -> Hit:
        """Nothing is cached."""
        return NO_HIT

    def free_run(self, requests: DecodeSet, limit: int, watch: Hashable = None) -> int:
        """Steps until the crossings outrun the free pages, mapped or not."""
        return requests.steps_within(self._num_free - self.one_free_each, limit)

    # actions ------------------------------------------------------------------------------------------------------

    def admit(
        self, request: Request, num_tokens: int, hit: Hit = NO_HIT, *, whole: int = 0, others_running: bool = False
    ) -> Grant | Refusal:
        """Seats the request in the slot whose mapped pages fit best, and maps what is missing."""
        if request in self._seats:
            raise ValueError(f"request {request.request_id!r} is admitted already")
        if num_tokens < 1:
            raise ValueError(f"num_tokens={num_tokens} must be positive")
        needed, free = self._pages(num_tokens), self._num_free
        usable = free - (self.watermark_blocks if others_running else 0)
        if needed > usable:
            return Refusal(Reason.WATERMARK if needed <= free else Reason.NO_FREE_BLOCKS, needed, free)
        if whole and self._pages(whole) > usable:
            return Refusal(Reason.FULL_SEQUENCE, self._pages(whole), free)
        slot = self._seats[request] = self._seat(needed)
        request.blocks = slot.table
        return Grant((self._take(slot, needed),))

    def _seat(self, needed: int) -> Slot:
        """The idle slot with fewest pages that suffice, else with most; a new one if none is idle."""
        if not self._idle:
            self._slots.append(Slot(len(self._slots)))
            return self._slots[-1]
        sizes = [(len(slot.spare), slot.index) for slot in self._idle]
        enough = [size for size in sizes if size[0] >= needed]
        chosen = min(enough) if enough else max(sizes, key=lambda size: (size[0], -size[1]))
        return self._idle.pop(sizes.index(chosen))

    def _take(self, slot: Slot, count: int) -> list[int]:
        """Makes the slot `count` pages longer; they must be free."""
        spare, unmapped = slot.spare, self._unmapped
        reused = min(count, len(spare))
        pages = [spare.pop() for _ in range(reused)]
        self._num_spare -= reused
        missing = count - reused
        if missing:
            self._reclaim(missing)
            pages += [unmapped.pop() for _ in range(missing)]
            self.num_maps += missing
        slot.table += pages
        return pages

    def _reclaim(self, count: int) -> None:
        """Unmaps surplus, slot by slot from the last one, until so many pages are unmapped."""
        for slot in reversed(self._slots):
            if len(self._unmapped) >= count:
                return
            if slot.spare:
                self._unmap(slot)

    def _unmap(self, slot: Slot) -> None:
        self._num_spare -= len(slot.spare)
        self._unmapped += slot.spare
        slot.spare.clear()

    def extend(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, num_lookahead: int = 0
    ) -> Grant | Refusal:
        """Maps what is missing for all requests together, or nothing."""
        slots = [self._seat_of(request) for request in requests]
        needs = [
            max(self._pages(total + num_lookahead) - len(slot.table), 0)
            for slot, total in zip(slots, num_tokens, strict=True)
        ]
        needed, free = sum(needs), self._num_free
        if needed > free:
            return Refusal(Reason.NO_FREE_BLOCKS, needed, free)
        if self.one_free_each and free < len(requests) and self._seats.keys() - set(requests):
            return Refusal(Reason.NO_FREE_BLOCKS, len(requests), free)
        return Grant([self._take(slot, need) for slot, need in zip(slots, needs, strict=True)])

    def advance(self, requests: DecodeSet, num_steps: int) -> Grant:
        """Maps one page group a crossing, in (step, running order)."""
        taken = [self._take(self._seats[request], 1)[0] for request in requests.growing_in(num_steps)]
        return Grant((taken,)) if taken else EMPTY_GRANT

    def settle(self, grant: Grant) -> None:
        """Nothing is ever copied."""

    def free(self, request: Request) -> None:
        """Leaves the slot; its pages stay mapped there."""
        slot = self._seat_of(request)
        slot.spare += reversed(slot.table)
        self._num_spare += len(slot.table)
        slot.table = []
        if not self._deferred:
            self._unmap(slot)
        self._idle.append(slot)
        del self._seats[request]
        request.blocks = None

    # state --------------------------------------------------------------------------------------------------------

    def _seat_of(self, request: Request) -> Slot:
        try:
            return self._seats[request]
        except KeyError:
            raise holds_nothing(request) from None

    def block_table(self, request: Request) -> Sequence[int]:
        """Physical page groups in virtual order; the list grows as the request does."""
        return self._seat_of(request).table

    def virtual_pages(self, request: Request) -> range:
        """The request's pages by number in every tensor's virtual address range: adjacent, and never moved."""
        slot = self._seat_of(request)
        first = slot.index * self.pages_per_slot
        return range(first, first + len(slot.table))

    @property
    def num_slots(self) -> int:
        """Virtual address ranges of `max_model_len` tokens in use so far, in each tensor."""
        return len(self._slots)

    def stats(self) -> AllocatorStats:
        """Counters; surplus that is still mapped is free, and any free page serves any request."""
        free = self._num_free
        return AllocatorStats(free, 0, self.capacity_blocks - free, 0, 0, 0, free, 0, 0)

    def regions(self) -> Regions:
        """Owners by physical address."""
        owner = np.full(self.num_blocks, FREE, dtype=np.int64)
        owner[0] = NULL
        for request, slot in self._seats.items():
            owner[slot.table] = request.row
        return regions_of(owner)

    def check(self) -> None:
        """Every page group is unmapped or mapped once; no slot overruns its addresses; counters agree."""
        mapped = [page for slot in self._slots for page in (*slot.table, *slot.spare)]
        pages = sorted(mapped + self._unmapped)
        assert pages == list(range(1, self.num_blocks)), f"pages are lost or mapped twice: {pages}"
        spare = sum(len(slot.spare) for slot in self._slots)
        assert spare == self._num_spare, f"{self._num_spare} spare pages are counted, slots have {spare}"
        for index, slot in enumerate(self._slots):
            held = len(slot.table) + len(slot.spare)
            assert slot.index == index, f"slot {index} calls itself {slot.index}"
            assert held <= self.pages_per_slot, f"slot {index} has {held} pages in {self.pages_per_slot} addresses"
        seated, idle = list(self._seats.values()), self._idle
        assert sorted(s.index for s in seated + idle) == list(range(len(self._slots))), "a slot is lost or shared"
        assert not any(slot.table for slot in idle), "an idle slot has pages in use"
        for request, slot in self._seats.items():
            assert request.blocks is slot.table, f"{request} does not know its table"
