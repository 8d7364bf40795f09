"""What can be seen of a paged pool: tables, counters, the map of it, and whether all of that agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.core.allocator import (
    CACHED,
    FREE,
    LEAVING,
    NULL,
    SHARED,
    AllocatorStats,
    Regions,
    holds_nothing,
    new_tuple,
    regions_of,
)

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool
    from engine.core.copy_on_write import CopyOnWrite
    from engine.core.host_blocks import HostBlocks
    from engine.core.request import Request


class PagedState:
    """The questions about a `PagedAllocator` that no decision needs; they change nothing."""

    block_size: int
    capacity_blocks: int
    num_blocks: int
    enable_caching: bool
    pool: BlockPool
    _host: HostBlocks
    _tables: dict[Request, list[int]]
    _writes: CopyOnWrite

    def _table(self, request: Request) -> list[int]:
        try:
            return self._tables[request]
        except KeyError:
            raise holds_nothing(request) from None

    def block_table(self, request: Request) -> Sequence[int]:
        """The request's block ids; the list grows as the request does."""
        return self._table(request)

    def stats(self) -> AllocatorStats:
        """Counters of the pool; any free block serves any request, so all of them are one extent."""
        pool, writes = self.pool, self._writes
        queue, extra = pool.queue, pool.num_extra_references
        at_back = queue.num_at_back
        free = len(queue.stack) + at_back
        cached = queue.num_unfindable + at_back - pool.num_unhashed_back
        used, shared = self.capacity_blocks - free, extra and extra * self.block_size
        if writes.open:
            shared -= writes.missing_slots(self.block_size)
        counters = (free, cached, used, extra, shared, 0, free, pool.num_evictions, writes.num_copies)
        return new_tuple(AllocatorStats, counters)

    def regions(self) -> Regions:
        """Owners by address; blocks of several tables are SHARED."""
        owner = np.full(self.num_blocks, FREE, dtype=np.int64)
        owner[0] = NULL
        owner[self.pool.cached_free()] = CACHED
        for request, table in self._tables.items():
            owner[table] = request.row
        owner[self._writes.left()] = LEAVING
        if self.pool.num_extra_references:
            owner[np.asarray(self.pool.ref_cnts()) > 1] = SHARED
        return regions_of(owner)

    def check(self) -> None:
        """The pool's invariants, and invariants A and D: a block is in the free queue or in as many tables as it has
        references."""
        self.pool.check()
        counts = [0] * self.num_blocks
        for request, table in self._tables.items():
            assert request.blocks is table, f"{request} does not know its table"
            assert len(set(table)) == len(table), f"{request} holds a block twice: {table}"
            for block_id in table:
                counts[block_id] += 1
        assert counts[0] == 0, "the null block is in a table"
        self._writes.check(counts)
        self._host.check()
        kept = self.pool.ref_cnts()
        assert counts == kept, f"tables hold {counts}, reference counts say {kept}"
