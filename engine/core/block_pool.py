"""The blocks of a paged pool: reference counts, free queue, and the map from content keys to cached blocks.

Follows vLLM 0.33: unhashed blocks return to the front of the free queue, hashed ones to the back, in release order. The
switch `freed_to="back"` is the older behaviour, where every freed block goes to the back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

from engine.core.allocator import check_pool
from engine.core.block_check import check_blocks
from engine.core.block_events import Event
from engine.core.free_queue import FINDABLE, NOTHING, UNFINDABLE, FreeQueue


class BlockPool:
    """`capacity` blocks with ids 1 to `capacity`; block 0 is the null block and never handed out."""

    __slots__ = (
        "_back",
        "_extra",
        "_keys",
        "_map",
        "capacity",
        "events",
        "num_evictions",
        "num_extra_references",
        "num_stored",
        "num_unhashed_back",
        "queue",
        "stale",
        "tells_uses",
    )

    def __init__(
        self, capacity: int, *, freed_to: Literal["front", "back"] = "front", record_events: bool = False
    ) -> None:
        check_pool(capacity, 1)
        self.capacity = capacity
        self.events: list[Event] | None = [] if record_events else None
        """What has happened, in order, for who empties it; None: nobody listens."""
        self.tells_uses = False
        """Whether hits and releases of cached blocks are events, too."""
        self.num_evictions = 0
        self.num_stored = 0
        self.num_extra_references = 0
        self.num_unhashed_back = 0
        """Queued blocks without content that lie behind cached ones: only with freed_to="back"."""
        self._back = freed_to == "back"
        self.queue = FreeQueue(capacity)
        self._extra: dict[int, int] = {}
        """References beyond the first, of the blocks that have any: most blocks never do."""
        self._keys: list[Hashable | None] = [None] * (capacity + 1)
        self.stale: list[int] = []
        """Blocks that were taken, whose old content nobody has looked for since: it is still under its keys."""
        self._map: dict[Hashable, int | dict[int, None]] = {}

    @property
    def num_free(self) -> int:
        """Blocks without references."""
        free = self.queue
        return len(free.stack) + free.num_at_back

    @property
    def num_cached_free(self) -> int:
        """Free blocks that hold cached content."""
        return self.queue.num_unfindable + self.queue.num_at_back - self.num_unhashed_back

    def ref_cnts(self) -> list[int]:
        """How many tables hold each block, by id (the null block: 0); O(capacity), for tests and pictures."""
        counts = [1] * (self.capacity + 1)
        for block_id in (0, *self.queue.order()):
            counts[block_id] = 0
        for block_id, others in self._extra.items():
            counts[block_id] += others
        return counts

    def is_cached(self, block_id: int) -> bool:
        """Whether the block can be found by content."""
        self.forget_stale()
        return self._keys[block_id] is not None

    def free_queue(self) -> list[int]:
        """Free ids in the order in which they will be handed out; O(free), for tests."""
        return self.queue.order()

    def cached_free(self) -> list[int]:
        """Free blocks that hold content; O(free), for pictures."""
        behind = [b for segment in self.queue.back() if segment.held is not NOTHING for b in segment.queue()]
        return self.queue.stack[: self.queue.num_unfindable] + behind

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """Blocks of the longest run of cached keys from the first on; the oldest copy of each. Touches nothing. What
        was given up must have been forgotten."""
        found: list[Any] = list(iter(map(self._map.get, keys).__next__, None))  # up to the first key that is missing
        if dict in map(type, found):
            return [entry if isinstance(entry, int) else next(iter(entry)) for entry in found]
        return found

    def finds(self, key: Hashable) -> bool:
        """Whether a block with this content may be found: it was there, and nobody has looked since."""
        return key in self._map

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """How many of these cached blocks lie in the free queue: taking them consumes free blocks, too."""
        return self.queue.count_findable(block_ids)

    def touch(self, block_ids: Iterable[int]) -> None:
        """Takes a reference to each cached block, out of the free queue where it lay there."""
        extra, block_ids = self._extra, list(block_ids)
        if self.tells_uses:
            self._tell("hit", block_ids)
        for block_id in self.queue.take_out(block_ids):
            extra[block_id] = extra.get(block_id, 0) + 1
            self.num_extra_references += 1

    def share(self, block_ids: Iterable[int], times: int) -> None:
        """Takes `times` more references to each of these blocks, which are in use."""
        if times:
            extra = self._extra
            for block_id in block_ids:
                extra[block_id] = extra.get(block_id, 0) + times
                self.num_extra_references += times

    def unshare(self, block_id: int) -> None:
        """Drops one of the references beyond the first."""
        self._drop_extra([block_id], 0)

    def extra_references(self, block_id: int) -> int:
        """References beyond the first."""
        return self._extra.get(block_id, 0)

    def take(self, count: int) -> list[int]:
        """`count` blocks from the head of the queue, each with one reference; gives up what they had cached."""
        free = self.queue
        stack = free.stack
        if len(stack) < count:
            free.refill(count)
        left = len(stack) - count if len(stack) > count else 0
        taken = stack[left:]
        taken.reverse()
        del stack[left:]
        if left < free.num_unfindable:
            self.num_evictions += free.num_unfindable - left
            free.num_unfindable = left
        if len(taken) < count:
            for blocks, held in free.pop_back(count - len(taken)):
                if held is FINDABLE:
                    self._give_up(blocks)
                elif held is UNFINDABLE:
                    self.num_evictions += len(blocks)
                else:
                    self.num_unhashed_back -= len(blocks)
                taken += blocks
        return taken

    def release(self, block_ids: list[int], num_full: int = 0) -> None:
        """Drops one reference from each block of a table, last block first (vLLM 1.2).

        The first `num_full` blocks hold content, under keys or (finished requests that share nothing) findable by
        nobody: both queue up at the back.
        """
        if self._extra:
            block_ids, num_full = self._drop_extra(block_ids, num_full)
        if num_full < len(block_ids):
            empty = block_ids[num_full:] if num_full else block_ids
            if self._back:
                self.num_unhashed_back += len(empty)
                self.queue.push_back(list(empty), NOTHING)
            else:
                self.queue.stack += empty  # as a group they become the head, last block first
        if num_full:
            if self._keys[block_ids[0]] is not None:
                self.forget_stale()  # perhaps it is the key of what this block held before
            keyed = self._keys[block_ids[0]] is not None
            if self.tells_uses:
                self._tell("freed", block_ids[:num_full])
            self.queue.push_back(block_ids[:num_full], FINDABLE if keyed else UNFINDABLE)

    def _drop_extra(self, block_ids: list[int], num_full: int) -> tuple[list[int], int]:
        """The blocks that nobody else holds, and how many of them are full."""
        extra = self._extra
        full: list[int] = []
        empty: list[int] = []
        for index, block_id in enumerate(block_ids):
            others = extra.get(block_id, 0)
            if not others:
                (full if index < num_full else empty).append(block_id)
                continue
            self.num_extra_references -= 1
            if others == 1:
                del extra[block_id]
            else:
                extra[block_id] = others - 1
        return full + empty, len(full)

    def commit(self, block_ids: Sequence[int], keys: Sequence[Hashable]) -> None:
        """Makes full blocks findable by content. Equal content in two blocks is kept twice: tables stay append-only."""
        self.forget_stale()
        self.num_stored += len(block_ids)
        block_keys, index = self._keys, self._map
        entries = map(index.setdefault, keys, block_ids)
        for block_id, key, entry in zip(block_ids, keys, entries, strict=True):
            block_keys[block_id] = key
            if entry is not block_id:
                if isinstance(entry, int):
                    index[key] = {entry: None, block_id: None}
                else:
                    entry[block_id] = None
        if self.events is not None:
            self._tell("stored", block_ids)

    def uncommit(self, block_ids: Sequence[int]) -> None:
        """Takes back the keys of blocks that will not be computed after all."""
        evictions = self.num_evictions
        self._forget(block_ids)
        self.num_evictions = evictions

    def reset(self) -> bool:
        """Forgets all cached content if no block is in use; else changes nothing and says False."""
        if self.num_free != self.capacity:
            return False
        self.forget_stale()
        for block_id in self.queue.forget_content():
            self._keys[block_id] = None
        self._map.clear()
        self.num_unhashed_back = 0
        if self.events is not None:
            self.events.append(Event("cleared", 0, None, 0))
        return True

    def _tell(self, kind: Literal["stored", "hit", "freed"], block_ids: Sequence[int]) -> None:
        """An event for each of these blocks that can be found."""
        if self.events is None:
            return
        for block_id in block_ids:
            key = self._keys[block_id]
            if key is not None:
                self.events.append(Event(kind, block_id, key, self._num_copies(key)))

    def _num_copies(self, key: Hashable) -> int:
        entry = self._map.get(key, {})
        return 1 if isinstance(entry, int) else len(entry)

    def _give_up(self, block_ids: list[int]) -> None:
        """What these blocks held cannot be found any more; with events, which have an order, it is gone at once."""
        if self.events is not None:
            self._forget(block_ids)
        else:
            self.num_evictions += len(block_ids)
            self.stale += block_ids

    def forget_stale(self) -> None:
        """Takes what was given up out of the map: before anybody could find it, or while nobody waits."""
        if self.stale:
            stale, evictions = self.stale, self.num_evictions
            self.stale = []
            self._forget(stale)
            self.num_evictions = evictions

    def _forget(self, block_ids: Sequence[int]) -> None:
        keys, index, events = self._keys, self._map, self.events
        pop = index.pop
        self.num_evictions += len(block_ids)
        for block_id in block_ids:
            key = keys[block_id]
            if key is None:
                continue
            keys[block_id] = None
            entry = pop(key)
            if entry is block_id and events is None:
                continue
            if not isinstance(entry, int):
                del entry[block_id]
                index[key] = next(iter(entry)) if len(entry) == 1 else entry
            if events is not None:
                events.append(Event("removed", block_id, key, self._num_copies(key)))

    def num_cached_keys(self) -> int:
        """Distinct contents that can be found."""
        self.forget_stale()
        return len(self._map)

    def check(self) -> None:
        """Invariants A to C of the vLLM semantics; AssertionError with both sides."""
        self.forget_stale()
        check_blocks(self, self._keys, self._map, self._extra)
