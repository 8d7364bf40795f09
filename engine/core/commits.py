"""When a full block becomes findable by its content: as it is scheduled to fill, or as soon as anybody could notice.

Blocks that decoding fills are referenced by their owner, so that nothing but a lookup (or the record of events) sees
whether they are in the map: they are noted, in order, and committed before somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool
    from engine.core.request import Request


class Commits:
    """What of the requests' tables is in the pool's map, and what will be."""

    __slots__ = ("_behind", "_block_size", "_pool")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._behind: list[tuple[Request, int]] = []
        """(request, full blocks) in the order in which they were filled."""

    def later(self, request: Request, num_full: int) -> None:
        """The request's first `num_full` blocks are full; nobody has looked yet."""
        self._behind.append((request, num_full))

    def catch_up(self) -> None:
        """Commits what was put off, in its order: of equal blocks the first one is found."""
        behind = self._behind
        if behind:
            for request, full in dict(behind).items():
                request.content.keys(full - 1, full, self._block_size)  # all of a request's hashes in one go
            for request, full in behind:
                self.now(request, request.blocks, full)  # type: ignore[arg-type]
            behind.clear()

    def now(self, request: Request, table: Sequence[int], num_full: int) -> None:
        """Makes blocks findable as they are scheduled to fill; private ones only count, until they are let go of."""
        done = request.num_hashed
        if num_full > done:
            request.num_hashed = num_full
            if request.content.shares_prompt or self._pool.events is not None:
                self._pool.commit(table[done:num_full], request.content.keys(done, num_full, self._block_size))

    def private(self, request: Request, table: Sequence[int], num_full: int) -> None:
        """A request that lets go of its blocks without having finished may come back for them."""
        pool = self._pool
        done = next((i for i in range(num_full) if not pool.is_cached(table[i])), num_full)
        if done < num_full:
            pool.commit(table[done:num_full], request.content.keys(done, num_full, self._block_size))
