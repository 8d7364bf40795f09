"""Copy-on-write of last blocks (SOSP'23 section 4.4): who shares a partly filled block, and which copies are under way.

Full blocks are never written again, so sharing them needs nothing but a reference count. A block that several
sequences fill further is copied by each that writes, except the last one: it has the block to itself by then and writes
in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool


class CopyOnWrite:
    """The shared, partly filled blocks of one pool, and the sources of copies that have not run yet."""

    __slots__ = ("_left", "_pool", "_source", "num_copies", "open", "reading")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.open: dict[int, int] = {}
        """Blocks of several tables that are not full: how many tokens they hold."""
        self.num_copies = 0
        self.reading: dict[int, int] = {}
        """By source: copies out of it that have not run."""
        self._source: dict[int, int] = {}
        """By destination of those."""
        self._left: set[int] = set()
        """Sources without an owner: they return to the pool when the last copy out of them has run."""

    def share(self, table: Sequence[int], times: int, filled: int) -> None:
        """`times` more sequences hold these blocks; the last one holds `filled` tokens, 0 if it is full."""
        self._pool.share(table, times)
        if filled and times:
            self.open[table[-1]] = filled

    def missing_slots(self, block_size: int) -> int:
        """By how much the extra references of open blocks stand for fewer slots than those of full ones."""
        extra = self._pool.extra_references
        return sum(extra(block_id) * (block_size - filled) for block_id, filled in self.open.items())

    def num_needed(self, block_ids: Iterable[int]) -> int:
        """Copies that these writers need, one entry a writer: all but the last owner of each block."""
        writers: dict[int, int] = {}
        for block_id in block_ids:
            if block_id in self.open:
                writers[block_id] = writers.get(block_id, 0) + 1
        return sum(min(count, self._pool.extra_references(block_id)) for block_id, count in writers.items())

    def write(self, table: list[int], index: int) -> tuple[int, int] | None:
        """The table's owner is about to write its block `index`: (source, destination) if it gets one of its own."""
        source = table[index]
        if source not in self.open:
            return None
        (target,) = self._pool.take(1)
        table[index] = target
        self.reading[source] = self.reading.get(source, 0) + 1
        self._source[target] = source
        self.num_copies += 1
        self._let_go(source)
        return source, target

    def _let_go(self, block_id: int) -> None:
        """One of several owners is gone; the last one shares with nobody."""
        self._pool.unshare(block_id)
        if not self._pool.extra_references(block_id):
            del self.open[block_id]

    def release(self, table: list[int], num_full: int) -> None:
        """A sequence lets go of its blocks; those that a copy still reads are kept until it has run."""
        shared = next((block_id for block_id in reversed(table) if block_id in self.open), None)
        if shared is not None:
            self._let_go(shared)
            table = [block_id for block_id in table if block_id != shared]
        if self.reading:
            left = {b for b in table if b in self.reading and not self._pool.extra_references(b)}
            self._left |= left
            num_full -= sum(block_id in left for block_id in table[:num_full])
            table = [block_id for block_id in table if block_id not in left]
            for block_id in table:
                self._source.pop(block_id, None)
        if table:
            self._pool.release(table, num_full)

    def content_of(self, block_id: int) -> int:
        """Where the content of a block lies until the copies under way have run."""
        return self._source.get(block_id, block_id)

    def settle(self, copies: Iterable[tuple[int, int]]) -> None:
        """These copies have run, or will not: nobody reads their sources any more."""
        for source, target in copies:
            if self._source.get(target) == source:
                del self._source[target]
            self.reading[source] -= 1
            if not self.reading[source]:
                del self.reading[source]
                if source in self._left:
                    self._left.remove(source)
                    self._pool.release([source], int(self._pool.is_cached(source)))

    def left(self) -> list[int]:
        """Sources of copies that have not run, without an owner."""
        return sorted(self._left)

    def check(self, counts: list[int]) -> None:
        """`counts`: tables that hold each block. Adds the sources without an owner; AssertionError with both sides."""
        for block_id in self._left:
            assert not counts[block_id], f"block {block_id} has no owner, but {counts[block_id]} tables hold it"
            assert block_id in self.reading, f"block {block_id} is kept although no copy reads it"
            counts[block_id] = 1
        alone = [block_id for block_id in self.open if counts[block_id] < 2]
        assert not alone, f"blocks count as shared, but one table or none holds them: {alone}"
