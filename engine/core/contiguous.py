"""Contiguous allocation: one extent of adjacent blocks a request, as systems before paging kept their KV cache.

Reservation (how much) and placement (where) are independent. `orca-max`, `orca-pow2` and `orca-oracle` of the paper are
the reservations `max`, `pow2` and `oracle` placed by buddies. A `chunk(n)` allocation grows in place, else moves, else
slides to where its own extent and the free space beside it suffice, else is refused. Copies are counted, and what was
left stays referenced until the batch has run. Hence a request that is alone can always grow to what the pool can hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.core.allocator import (
    EMPTY_GRANT,
    FREE,
    LEAVING,
    NO_HIT,
    NULL,
    AllocatorStats,
    Grant,
    Hit,
    Reason,
    Refusal,
    Regions,
    check_fork,
    check_pool,
    holds_nothing,
    regions_of,
)
from engine.core.extents import Departures, Extent
from engine.core.group import members_of
from engine.core.placement import make_placement
from engine.core.reserve import parse_reserve

if TYPE_CHECKING:
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


class ContiguousAllocator:
    """One extent of adjacent blocks per request."""

    def __init__(
        self, capacity_blocks: int, block_size: int, *, max_model_len: int, reserve: str = "max", fit: str = "first-fit"
    ) -> None:
        """`reserve`: max | limit | pow2 | oracle | chunk(n); `fit`: first-fit | best-fit | buddy."""
        check_pool(capacity_blocks, block_size)
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.num_blocks = capacity_blocks + 1
        self._reserve = parse_reserve(reserve, block_size)
        self.growth_tokens: int | None = self._reserve.chunk_tokens
        self.contiguous = True
        self._max_model_len = max_model_len
        self._space = make_placement(fit, capacity_blocks, largest=-(-max_model_len // block_size))
        self._extents: dict[Request, Extent] = {}
        self._departures = Departures(self._space)
        self._slid: dict[Request, Extent] = {}
        """The old extents, partly under the new ones, of slides that are not settled."""
        self._asked_slots = 0
        self._num_copies = 0

    # questions ----------------------------------------------------------------------------------------------------

    def _asked(self, request: Request, num_tokens: int) -> int:
        """Token slots to reserve for `num_tokens` tokens; never fewer than those."""
        return max(self._reserve.ask(request, num_tokens, self._max_model_len), num_tokens)

    def _units(self, slots: int) -> int:
        return -(-slots // self.block_size)

    def refuses_forever(self, request: Request) -> Refusal | None:
        """The reservation of the whole request must fit the largest extent of the empty pool, and as many of them as a
        group has members. Reservations that grow serve no groups: forked memory that moves is nobody's baseline."""
        slots = min(request.num_prompt_tokens + request.max_tokens - 1, self._max_model_len)
        units = self._units(self._asked(request, slots))
        needed = self._space.round_up(units)
        largest = self._space.largest_ever()
        if needed > largest:
            return Refusal(Reason.NEVER, needed, largest)
        width = 1 if request.group is None else len(request.group.members)
        if width > 1 and (self.growth_tokens or self._space.most_ever(units) < width):
            return Refusal(Reason.NEVER, width * needed, self.capacity_blocks)
        return None

    def lookup(self, request: Request) -> Hit:
        """Contiguous memory shares nothing."""
        return NO_HIT

    def free_run(self, requests: DecodeSet, limit: int, watch: Hashable = None) -> int:
        """Everything for reservations that never grow; for chunks, up to the next growth, which may move."""
        if not self.growth_tokens:
            return limit
        return next((s for s in range(min(limit, self.growth_tokens)) if requests.growing(s)), limit)

    def _refuse(self, units: int) -> Refusal:
        free = self._space.num_free
        return Refusal(Reason.NO_HOLE if units <= free else Reason.NO_FREE_BLOCKS, units, free)

    # actions ------------------------------------------------------------------------------------------------------

    def admit(
        self, request: Request, num_tokens: int, hit: Hit = NO_HIT, *, whole: int = 0, others_running: bool = False
    ) -> Grant | Refusal:
        """Reserves one extent; with `whole`, for the sequence as it stands even if the first chunk is shorter. Of a
        group, one for each member: their memory is not shared, and none of them shall be refused later."""
        if request in self._extents:
            raise ValueError(f"request {request.request_id!r} is admitted already")
        if num_tokens < 1:
            raise ValueError(f"num_tokens={num_tokens} must be positive")
        asked = self._asked(request, max(num_tokens, whole))
        units = self._units(asked)
        members = members_of(request)
        if len(members) > 1 and self._space.most_now(units) < len(members):
            return self._refuse(len(members) * self._space.round_up(units))
        taken = self._space.take(units)
        if taken is None:
            return self._refuse(self._space.round_up(units))
        self._hold(request, Extent(*taken, asked))
        for member in members:
            if member is not request:
                self._hold(member, self._one_more(units, asked))
        return Grant((self._extents[request].blocks,))

    def fork(self, parent: Request, children: Sequence[Request], num_tokens: int | None = None) -> Grant | Refusal:
        """Copies the parent's first blocks into the children's own extents; one that has none, or one that is too
        short, gets one as long as the parent's, or the fork is refused."""
        extent = self._extent(parent)
        held = self._units(check_fork(parent, children, num_tokens, self.block_size))
        new = [child for child in children if child not in self._extents or self._extents[child].granted < held]
        units = self._units(extent.asked_slots)
        if self._space.most_now(units) < len(new):
            return self._refuse(len(new) * self._space.round_up(units))
        for child in new:
            if child in self._extents:
                self.free(child)
            self._hold(child, self._one_more(units, extent.asked_slots))
        source = extent.blocks[:held]
        copies = [pair for child in children for pair in zip(source, self._extents[child].blocks[:held], strict=True)]
        self._num_copies += len(copies)
        self._departures.read(copies)
        return Grant([self._extents[child].blocks if child in new else () for child in children], copies=copies)

    def _one_more(self, units: int, asked: int) -> Extent:
        """An extent that is known to be there."""
        taken = self._space.take(units)
        assert taken is not None, f"no extent of {units} blocks, although they were counted"
        return Extent(*taken, asked)

    def _hold(self, request: Request, extent: Extent) -> None:
        before = self._extents.get(request)
        self._asked_slots += extent.asked_slots - (before.asked_slots if before else 0)
        self._extents[request] = extent
        request.blocks = extent.blocks

    def extend(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, num_lookahead: int = 0
    ) -> Grant | Refusal:
        """Grows in place, else moves, else refuses. Several requests at once only if all already have the room."""
        extents = [self._extent(request) for request in requests]
        asks = [
            max(extent.asked_slots, self._asked(request, min(total + num_lookahead, self._max_model_len)))
            for request, extent, total in zip(requests, extents, num_tokens, strict=True)
        ]
        pairs = zip(extents, asks, strict=True)
        short = [units for extent, asked in pairs if (units := self._units(asked)) > extent.granted]
        if short and len(requests) > 1:
            # All or nothing over several moves needs a plan; callers may grow one request at a time.
            return self._refuse(sum(short))
        if short:
            return self._grow(requests[0], asks[0])
        # Asked for even where rounding up has granted it: chunks then grow at multiples of the chunk only.
        for request, extent, asked in zip(requests, extents, asks, strict=True):
            self._hold(request, extent._replace(asked_slots=asked))
        return Grant([()] * len(requests))

    def _grow(self, request: Request, asked: int) -> Grant | Refusal:
        old = self._extents[request]
        units = self._units(asked)
        grown = self._space.grow(old.start, old.granted, units)
        if grown is not None:
            self._hold(request, Extent(old.start, grown, asked))
            return Grant((self._extents[request].blocks[old.granted :],))
        return self._move(request, old, asked)

    def _move(self, request: Request, old: Extent, asked: int) -> Grant | Refusal:
        """To free space elsewhere; where there is not enough, to a place that the old extent is a part of."""
        units = self._units(asked)
        slides = (taken := self._space.take(units)) is None
        if slides and request not in self._slid and not self._departures.reads(old.start + 1):
            taken = self._space.slide(old.start, old.granted, units)
        if taken is None:
            return self._refuse(self._space.round_up(units))
        new = Extent(*taken, asked)
        self._hold(request, new)
        held = self._units(request.num_computed_tokens)
        copies = list(zip(old.blocks[:held], new.blocks[:held], strict=True))
        self._num_copies += len(copies)
        start = max(old.start, new.end) if slides else old.start
        self._departures.read(copies)
        self._departures.leave(old.start + 1, start, old.end - start)
        if slides and copies:
            self._slid[request] = old
        return Grant((new.blocks,), moved=(request,), copies=copies)

    def advance(self, requests: DecodeSet, num_steps: int) -> Grant:
        """Nothing to take: `free_run` ends before any growth."""
        return EMPTY_GRANT

    def settle(self, grant: Grant) -> None:
        """Returns what was left behind and is read by no other copy."""
        if grant.copies:
            first = self._departures.settle(grant.copies)
            for request in grant.moved:
                if request in self._slid and self._slid[request].start + 1 == first:
                    del self._slid[request]

    def free(self, request: Request) -> None:
        """Returns the extent, or has it returned with the copies that still read some of it."""
        extent = self._extent(request)
        read = self._slid.pop(request, extent)
        self._departures.leave(read.start + 1, extent.start, extent.granted)
        self._asked_slots -= extent.asked_slots
        del self._extents[request]
        request.blocks = None

    # state --------------------------------------------------------------------------------------------------------

    def _extent(self, request: Request) -> Extent:
        try:
            return self._extents[request]
        except KeyError:
            raise holds_nothing(request) from None

    def block_table(self, request: Request) -> Sequence[int]:
        """Adjacent ids, as a range."""
        return self._extent(request).blocks

    def stats(self) -> AllocatorStats:
        """Counters; the largest extent is found among the holes, which are fewer than the requests."""
        free = self._space.num_free
        return AllocatorStats(
            num_free=free,
            num_cached_free=0,
            num_referenced=self.capacity_blocks - free,
            num_extra_references=0,
            num_extra_slots=0,
            num_asked_slots=self._asked_slots,
            largest_free_extent=self._space.largest(),
            num_evictions=0,
            num_copies=self._num_copies,
        )

    def regions(self) -> Regions:
        """Owners by address; an extent that is being left still belongs to nobody else and shows as LEAVING."""
        owner = np.full(self.num_blocks, FREE, dtype=np.int64)
        owner[0] = NULL
        for start, units in self._departures.kept():
            owner[start + 1 : start + 1 + units] = LEAVING
        for request, extent in self._extents.items():
            owner[extent.start + 1 : extent.start + 1 + extent.granted] = request.row
        return regions_of(owner)

    def check(self) -> None:
        """Extents and holes tile the pool without overlap; counters agree."""
        used = [(extent.start, extent.granted) for extent in self._extents.values()] + self._departures.kept()
        holes = self._space.holes()
        position = 0
        for start, units in sorted(used + holes):
            assert start == position, f"extent at {start}, expected {position}: overlap or gap"
            position = start + units
        assert position == self.capacity_blocks, f"extents end at {position}, pool at {self.capacity_blocks}"
        free = sum(units for _, units in holes)
        assert free == self._space.num_free, f"num_free={self._space.num_free}, holes sum to {free}"
        largest = max((units for _, units in holes), default=0)
        assert largest == self._space.largest(), f"largest()={self._space.largest()}, holes say {largest}"
        asked = sum(e.asked_slots for e in self._extents.values())
        assert asked == self._asked_slots, f"asked slots {self._asked_slots}, extents sum to {asked}"
