"""The blocks of a paged pool: reference counts, free queue, and the map from content keys to cached blocks.

Follows vLLM 0.33. Its free queue is one list that serves from the head: unhashed blocks return to the front, hashed
ones to the back. Here that is a stack of unhashed ids (top = head) followed by an ordered map of hashed ids (first =
next to go): the concatenation is vLLM's queue, id by id. The switch `freed_to="back"` is the older behaviour, where
every freed block goes to the back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from engine.core.allocator import check_pool


class Event(NamedTuple):
    """A cached block that appeared or was given up (vLLM's BlockStored and BlockRemoved)."""

    kind: Literal["stored", "removed"]
    block_id: int
    key: Hashable


class BlockPool:
    """`capacity` blocks with ids 1 to `capacity`; block 0 is the null block and never handed out."""

    __slots__ = (
        "_back",
        "_keys",
        "_lru",
        "_map",
        "_num_unhashed_back",
        "_ref_cnt",
        "_stack",
        "capacity",
        "events",
        "num_evictions",
        "num_extra_references",
        "num_stored",
    )

    def __init__(
        self, capacity: int, *, freed_to: Literal["front", "back"] = "front", record_events: bool = False
    ) -> None:
        check_pool(capacity, 1)
        self.capacity = capacity
        self.events: list[Event] | None = [] if record_events else None
        self.num_evictions = 0
        self.num_stored = 0
        self.num_extra_references = 0
        self._back = freed_to == "back"
        self._stack = list(range(capacity, 0, -1))
        self._lru: OrderedDict[int, None] = OrderedDict()
        self._num_unhashed_back = 0  # blocks in `_lru` without content: only with freed_to="back"
        self._ref_cnt = [0] * (capacity + 1)
        self._keys: list[Hashable | None] = [None] * (capacity + 1)
        self._map: dict[Hashable, int | dict[int, None]] = {}

    @property
    def num_free(self) -> int:
        """Blocks without references."""
        return len(self._stack) + len(self._lru)

    @property
    def num_unhashed_free(self) -> int:
        """Free blocks that are handed out before any cached one."""
        return len(self._stack)

    @property
    def num_cached_free(self) -> int:
        """Free blocks that hold a cached prefix."""
        return len(self._lru) - self._num_unhashed_back

    def ref_cnt(self, block_id: int) -> int:
        """Number of tables that hold the block."""
        return self._ref_cnt[block_id]

    def is_cached(self, block_id: int) -> bool:
        """Whether the block can be found by content."""
        return self._keys[block_id] is not None

    def free_queue(self) -> list[int]:
        """Free ids in the order in which they will be handed out; O(free), for tests."""
        return self._stack[::-1] + list(self._lru)

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """Blocks of the longest run of cached keys from the first on; the oldest copy of each. Touches nothing."""
        found = []
        get = self._map.get
        for key in keys:
            entry = get(key)
            if entry is None:
                break
            found.append(entry if isinstance(entry, int) else next(iter(entry)))
        return found

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks lie in the free queue: taking them consumes free blocks, too."""
        ref_cnt = self._ref_cnt
        return sum(not ref_cnt[block_id] for block_id in block_ids)

    def touch(self, block_ids: Iterable[int]) -> None:
        """Takes a reference to each cached block, out of the free queue where it lay there."""
        ref_cnt = self._ref_cnt
        for block_id in block_ids:
            if ref_cnt[block_id]:
                self.num_extra_references += 1
            else:
                del self._lru[block_id]
            ref_cnt[block_id] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks from the head of the queue, each with one reference; gives up what they had cached."""
        stack = self._stack
        if count <= len(stack):
            taken = stack[: -count - 1 : -1] if count else []
            del stack[len(stack) - count :]
        else:
            taken = stack[::-1]
            stack.clear()
            pop = self._lru.popitem
            rest = [pop(last=False)[0] for _ in range(count - len(taken))]
            self._forget(rest)
            taken += rest
        ref_cnt = self._ref_cnt
        for block_id in taken:
            ref_cnt[block_id] = 1
        return taken

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops one reference from each block of a table, last block first (vLLM 1.2)."""
        ref_cnt, keys, lru = self._ref_cnt, self._keys, self._lru
        loose = []
        for block_id in reversed(block_ids):
            if ref_cnt[block_id] > 1:
                ref_cnt[block_id] -= 1
                self.num_extra_references -= 1
                continue
            ref_cnt[block_id] = 0
            if keys[block_id] is not None:
                lru[block_id] = None
            elif self._back:
                lru[block_id] = None
                self._num_unhashed_back += 1
            else:
                loose.append(block_id)
        # The released ids become the head as a group, in release order.
        loose.reverse()
        self._stack += loose

    def commit(self, block_ids: Sequence[int], keys: Sequence[Hashable]) -> None:
        """Makes full blocks findable by content. Equal content in two blocks is kept twice: tables stay append-only."""
        self.num_stored += len(block_ids)
        block_keys, index = self._keys, self._map
        for block_id, key in zip(block_ids, keys, strict=True):
            block_keys[block_id] = key
            entry = index.setdefault(key, block_id)
            if entry is not block_id:
                if type(entry) is int:
                    index[key] = {entry: None, block_id: None}
                else:
                    entry[block_id] = None  # type: ignore[index]
        if self.events is not None:
            self.events.extend(Event("stored", b, k) for b, k in zip(block_ids, keys, strict=True))

    def reset(self) -> bool:
        """Forgets all cached content if no block is in use; else changes nothing and says False."""
        if self.num_free != self.capacity:
            return False
        for block_id in self._lru:
            self._keys[block_id] = None
        self._map.clear()
        if self._back:
            self._num_unhashed_back = len(self._lru)
        else:
            # The queue keeps its order: what were cached blocks lie behind the unhashed ones.
            self._stack[:0] = reversed(self._lru)
            self._lru.clear()
        return True

    def _forget(self, block_ids: Iterable[int]) -> None:
        keys, index = self._keys, self._map
        for block_id in block_ids:
            key = keys[block_id]
            if key is None:
                self._num_unhashed_back -= 1
                continue
            keys[block_id] = None
            entry = index.pop(key)
            if type(entry) is not int:
                del entry[block_id]  # type: ignore[union-attr]
                index[key] = next(iter(entry)) if len(entry) == 1 else entry  # type: ignore[arg-type]
            self.num_evictions += 1
            if self.events is not None:
                self.events.append(Event("removed", block_id, key))

    def num_cached_keys(self) -> int:
        """Distinct contents that can be found."""
        return len(self._map)

    def check(self) -> None:
        """Invariants A to C of the vLLM semantics; AssertionError with both sides."""
        queue = self.free_queue()
        unreferenced = {b for b in range(1, self.capacity + 1) if self._ref_cnt[b] == 0}
        assert len(queue) == len(set(queue)), f"a block is queued twice: {sorted(queue)}"
        assert set(queue) == unreferenced, f"free queue {sorted(queue)} != unreferenced {sorted(unreferenced)}"
        assert self._ref_cnt[0] == 0 and self._keys[0] is None, "the null block is in use"
        by_key: dict[Hashable, set[int]] = {}
        for block_id, key in enumerate(self._keys):
            if key is not None:
                by_key.setdefault(key, set()).add(block_id)
        mapped = {k: {e} if isinstance(e, int) else set(e) for k, e in self._map.items()}
        assert mapped == by_key, f"map {mapped} != keys of the blocks {by_key}"
        unhashed = [b for b in self._lru if self._keys[b] is None]
        wrong = [b for b in self._stack if self._keys[b] is not None] + ([] if self._back else unhashed)
        assert not wrong, f"blocks on the wrong side of the free queue: {wrong}"
        counted = self._num_unhashed_back
        assert len(unhashed) == counted, f"unhashed blocks at the back {unhashed} != counted {counted}"
        extra = sum(count - 1 for count in islice(self._ref_cnt, 1, None) if count)
        assert extra == self.num_extra_references, f"extra references {self.num_extra_references} != counted {extra}"
