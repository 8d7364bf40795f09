"""What an allocator is held against: KV memory as a plain list, and that all it says of itself agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.core.allocator import CACHED, FREE, NULL, SHARED

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.content import Content
    from engine.core.request import Request


class ContractViolation(AssertionError):  # noqa: N818
    """An allocator broke a rule of the contract; the message says which, and both sides."""


class ShadowMemory:
    """Slots by block, of those that were written: each token writes a value that identifies it and must be read back
    unchanged.

    The value is the token's content key at block size 1: equal for two requests just where they may share.
    """

    __slots__ = ("_contents", "_host", "block_size", "blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """`num_blocks` counts the null block, as an allocator's does."""
        self.block_size = block_size
        self.blocks: list[dict[int, Hashable]] = [{} for _ in range(num_blocks)]
        """What is written, by place in the block."""
        self._contents: dict[Request, Content] = {}
        self._host: dict[int, dict[int, Hashable]] = {}

    def write(self, request: Request, start: int, stop: int, table: Sequence[int]) -> None:
        """Computes the tokens `start` to `stop - 1` of a request."""
        for (block_id, place), value in zip(
            self._places(start, stop, table), self._values(request, start, stop), strict=True
        ):
            self.blocks[block_id][place] = value

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copies blocks, (source, destination): all sources are read before any destination is written."""
        pairs = list(copies)
        contents = [self.blocks[source].copy() for source, _ in pairs]
        for (_, target), content in zip(pairs, contents, strict=True):
            self.blocks[target] = content

    def swap(self, to_host: Iterable[tuple[int, int]], to_device: Iterable[tuple[int, int]]) -> None:
        """Copies blocks to host memory, and then others back."""
        for block_id, host_id in to_host:
            self._host[host_id] = self.blocks[block_id].copy()
        for host_id, block_id in to_device:
            self.blocks[block_id] = self._host[host_id].copy()

    def check(self, request: Request, stop: int, table: Sequence[int]) -> None:
        """The first `stop` tokens must be found where the table says; ContractViolation with both sides."""
        found = [self.blocks[block_id].get(place) for block_id, place in self._places(0, stop, table)]
        expected = list(self._values(request, 0, stop))
        if found != expected:
            wrong = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            raise ContractViolation(
                f"{request} reads {found[wrong]!r} as its token {wrong}, which is {expected[wrong]!r}; "
                f"table {list(table)}, block_size={self.block_size}"
            )

    def rename(self, request: Request, content: Content, table: Sequence[int]) -> None:
        """What the request has computed behind its prompt is what `content` says."""
        start, stop = request.num_prompt_tokens, request.num_computed_tokens
        places = self._places(start, stop, table)
        for (block_id, place), value in zip(places, copy(content).keys(start, stop, 1), strict=True):
            self.blocks[block_id][place] = value

    def forget(self, request: Request) -> None:
        """The request is over: drops what is remembered of its content."""
        self._contents.pop(request, None)

    def _places(self, start: int, stop: int, table: Sequence[int]) -> list[tuple[int, int]]:
        """Block and place in it, of each token."""
        size = self.block_size
        if stop > len(table) * size:
            raise ContractViolation(f"no slot for token {stop - 1} in {len(table)} blocks of {size}: {list(table)}")
        return [(table[position // size], position % size) for position in range(start, stop)]

    def _values(self, request: Request, start: int, stop: int) -> Sequence[Hashable]:
        if request not in self._contents:
            # A copy, so that these keys do not displace the chain of the allocator's block size.
            self._contents[request] = copy(request.content)
        return self._contents[request].keys(start, stop, 1)


def expect(truth: bool, rule: str, *sides: Any) -> None:
    """ContractViolation with the rule and both sides unless `truth`."""
    if not truth:
        raise ContractViolation(f"broken: {rule}: {' | '.join(map(repr, sides))}")


def snapshot(allocator: KVAllocator, requests: Iterable[Request]) -> dict[str, Any]:
    """All that can be seen of an allocator and its requests, comparable."""
    tables = {(r.request_id, r.sample): None if r.blocks is None else list(r.blocks) for r in requests}
    regions = [column.tolist() for column in allocator.regions()]
    free_queue: list[int] = getattr(getattr(allocator, "pool", None), "free_queue", list)()
    return {"stats": allocator.stats(), "tables": tables, "regions": regions, "free queue": free_queue}


def check_state(allocator: KVAllocator, running: Sequence[Request], *, copying: Iterable[int] = ()) -> None:
    """`stats()`, `regions()` and the tables must agree; `copying`: sources of copies not settled yet."""
    allocator.check()
    stats, regions, capacity = allocator.stats(), allocator.regions(), allocator.capacity_blocks
    starts, ends = regions.start.tolist(), (regions.start + regions.length).tolist()
    expect([0, *ends] == [*starts, capacity + 1], "regions tile ids 0 to capacity_blocks", starts, ends)
    owner: list[int] = np.repeat(regions.owner, regions.length).tolist()
    expect(owner[0] == NULL and owner.count(NULL) == 1, "block 0 alone is the null block", owner)
    count, free, held = Counter(owner), stats.num_free, stats.num_referenced
    expect(free + held == capacity, "num_free + num_referenced = capacity_blocks", stats, capacity)
    expect(count[CACHED] == stats.num_cached_free, "CACHED regions have num_cached_free blocks", owner, stats)
    expect(count[FREE] + count[CACHED] == free, "FREE and CACHED regions have num_free blocks", owner, stats)
    expect(stats.largest_free_extent <= free, "the largest extent is free", stats)
    keys: dict[int, Hashable] = {}
    slots = 0
    for request in running:
        slots += _check_table(allocator, request, owner, keys)
    extra = sum(len(allocator.block_table(request)) for request in running) - len(keys)
    expect(extra == stats.num_extra_references, "references beyond the first", extra, stats)
    expect(slots == stats.num_extra_slots, "slots of references beyond the first", slots, stats)
    needed = keys.keys() | set(copying)
    expect(
        len(needed) <= held if copying else len(needed) == held,
        "the tables' blocks are referenced",
        needed,
        held,
    )


def _check_table(allocator: KVAllocator, request: Request, owner: list[int], keys: dict[int, Hashable]) -> int:
    """Filled slots of blocks that tables seen before hold, too. Sharers of a block must have equal tokens in it: of a
    partly filled one, equally many (that they read them back is checked by the shadow)."""
    table, size = list(allocator.block_table(request)), allocator.block_size
    expect(request.blocks is not None and list(request.blocks) == table, "request.blocks", request.blocks, table)
    expect(all(0 < b <= allocator.capacity_blocks for b in table), "ids lie in 1..capacity_blocks", table)
    expect(len(set(table)) == len(table), "a table holds a block once", table)
    seen = {owner[block_id] for block_id in table}
    expect(seen <= {request.row, SHARED}, "regions give a request its blocks", seen, request.row)
    computed, slots = request.num_computed_tokens, 0
    full = computed // size
    shareable = request.content.keys(0, full, size)
    for index, block_id in enumerate(table):
        filled = min(max(computed - index * size, 0), size)
        slots += filled if block_id in keys else 0
        key = shareable[index] if index < full else (index, filled) if filled else (id(request), index)
        expect(keys.setdefault(block_id, key) == key, f"sharers of block {block_id} agree", keys[block_id], key)
    return slots
