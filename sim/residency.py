"""How long cached blocks stay, and how long nobody wanted them before they went: a consumer of a pool's events.

The pool has no clock: whoever does calls `drain(now)` after each decision. Times are picoseconds. A block's life begins
when it becomes findable and ends when its content is given up; it lies idle while nobody holds it. Blocks whose step
was taken back before it ran (see `PagedAllocator.free`) never held anything and are counted apart.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool

HELD: Final = -1
"""Idle since: never, somebody holds the block."""


class Residency:
    """Lives of the cached blocks of one pool, from their events."""

    def __init__(self, pool: BlockPool) -> None:
        """Makes the pool tell all there is to tell; only before anything is cached."""
        assert not pool.num_stored, f"{pool.num_stored} blocks were cached before anybody watched"
        pool.events = []
        pool.tells_uses = True
        self._events = pool.events
        self._stored: dict[int, int] = {}
        """When each cached block became findable."""
        self._idle_since: dict[int, int] = {}
        self.lifetimes = array("q")
        """Of each evicted block, in the order of evictions."""
        self.idle_times = array("q")
        """Of each evicted block: from when the last request let go of it to its end."""
        self.gaps = array("q")
        """From when the last request let go of a block to the next hit on it."""
        self.num_stored = 0
        self.num_hits = 0
        """Blocks found, held by others at that time or not."""
        self.num_taken_back = 0
        self.num_cleared = 0
        """Blocks that a reset emptied."""
        self._idle_at_end = 0

    @property
    def num_cached(self) -> int:
        """Blocks that can be found now."""
        return len(self._stored)

    @property
    def idle_total(self) -> int:
        """Block-picoseconds that cached blocks lay idle up to the end: those of the pool's cached-free blocks."""
        return sum(self.idle_times) + sum(self.gaps) + self._idle_at_end

    def drain(self, now: int) -> None:
        """Books what has happened since the last call as of `now`."""
        for kind, block_id, _, _ in self._events:
            if kind == "stored":
                self.num_stored += 1
                self._stored[block_id] = now
                self._idle_since[block_id] = HELD
            elif kind == "freed":
                self._idle_since[block_id] = now
            elif kind == "hit":
                self._hit(block_id, now)
            elif kind == "removed":
                self._remove(block_id, now)
            else:
                self._clear(now)
        self._events.clear()

    def _hit(self, block_id: int, now: int) -> None:
        self.num_hits += 1
        since = self._idle_since[block_id]
        if since != HELD:
            self.gaps.append(now - since)
            self._idle_since[block_id] = HELD

    def _remove(self, block_id: int, now: int) -> None:
        stored, since = self._stored.pop(block_id), self._idle_since.pop(block_id)
        if since == HELD:
            self.num_taken_back += 1
            return
        self.lifetimes.append(now - stored)
        self.idle_times.append(now - since)

    def _clear(self, now: int) -> None:
        self.num_cleared += len(self._stored)
        self._idle_at_end += sum(now - since for since in self._idle_since.values())
        self._stored.clear()
        self._idle_since.clear()

    def close(self, now: int) -> None:
        """The end of the run: what still lies idle has done so until now."""
        self.drain(now)
        self._idle_at_end += sum(now - since for since in self._idle_since.values() if since != HELD)
