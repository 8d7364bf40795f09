"""When a full block becomes findable by its content: as it is scheduled to fill, or as soon as anybody could notice.

Blocks that fill are referenced by their owner, so that nothing but a lookup (or the record of events) sees whether they
are in the map: they are noted, in order, and committed before somebody looks who could find one. The engine commits
them while a step runs, so that the device does not wait for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool
    from engine.core.request import Request


class Commits:
    """What of the requests' tables is in the pool's map, and what will be."""

    __slots__ = ("_behind", "_block_size", "_first_keys", "_pool")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._behind: list[tuple[Request, int]] = []
        """(request, full blocks) in the order in which they were filled."""
        self._first_keys: set[Hashable] = set()
        """Of those that begin with a first block."""

    def later(self, request: Request, num_full: int) -> None:
        """The request's first `num_full` blocks are full; nobody has looked yet. With events, which have an order, at
        once."""
        if self._pool.events is not None:
            self.catch_up()
            self.now(request, request.blocks, num_full)  # type: ignore[arg-type]
        elif not request.content.shares_prompt:
            request.num_hashed = max(request.num_hashed, num_full)
        elif num_full > request.num_hashed:
            if not request.num_hashed:
                self._first_keys.add(request.content.keys(0, 1, self._block_size)[0])
            self._behind.append((request, num_full))

    def all_later(self, filled: Sequence[tuple[Request, int]]) -> None:
        """`later` of each; those that have blocks that can be found already are but noted."""
        if self._pool.events is None and all(request.num_hashed for request, _ in filled):
            self._behind += filled
            return
        for request, num_full in filled:
            self.later(request, num_full)

    def may_find(self, first_key: Hashable) -> bool:
        """Whether somebody who looks for a run that begins with this key may find any; then all that there is can be
        found."""
        if first_key in self._first_keys or self._pool.finds(first_key):
            self.catch_up()
            return True
        return False

    def catch_up(self) -> None:
        """Does what was put off: content that was given up goes, and what was filled is committed, in its order: of
        equal blocks the first one is found."""
        if self._pool.stale:
            self._pool.forget_stale()
        behind = self._behind
        if behind:
            for request, full in dict(behind).items():
                request.content.keys(full - 1, full, self._block_size)  # all of a request's hashes in one go
            for request, full in behind:
                self.now(request, request.blocks, full)  # type: ignore[arg-type]
            behind.clear()
            self._first_keys.clear()

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
