"""A paged pool of plain lists: the free queue is a list, and every count is a scan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from engine.core.allocator import AllocatorStats, Grant, Hit, Reason, Refusal
from engine.core.registry import PoolConfig


class NaivePaged:
    """What `PagedAllocator` promises, with nothing maintained."""

    def __init__(self, config: PoolConfig) -> None:
        self.config, self.size, self.limit = config, config.block_size, config.max_model_len
        self.reserve = int(config.watermark * (config.capacity_blocks + 1))
        self.queue = list(range(1, config.capacity_blocks + 1))
        """Free blocks, the next to be handed out first."""
        self.keys: dict[int, Hashable] = {}
        """Content of cached blocks, in the order in which it was committed."""
        self.tables: dict[Any, list[int]] = {}
        self.on_host: dict[Any, int] = {}
        """Host blocks of those that are swapped out."""

    def blocks(self, tokens: int) -> int:
        return -(-min(tokens, self.limit) // self.size)

    def refuses_forever(self, request: Any) -> bool:
        return self.blocks(request.num_prompt_tokens + request.max_tokens - 1) > self.config.capacity_blocks

    def lookup(self, request: Any) -> Hit:
        found: list[int] = []
        if self.config.enable_caching:
            for key in request.content.keys(0, (request.known - 1) // self.size, self.size):
                block_id = next((b for b, k in self.keys.items() if k == key), None)
                if block_id is None:
                    break
                found.append(block_id)
        return Hit(len(found) * self.size, found)

    def admit(self, request: Any, tokens: int, hit: Hit, *, whole: int, others_running: bool) -> Grant | Refusal:
        held = list(hit.block_ids)
        idle = sum(block_id in self.queue for block_id in held)
        reserve = self.reserve if others_running else 0
        for reason, total in ((Reason.NO_FREE_BLOCKS, tokens), (Reason.FULL_SEQUENCE, whole)):
            needed = self.blocks(total) - len(held) + idle
            if total and needed + reserve > len(self.queue):
                return Refusal(reason, needed, len(self.queue))
        for block_id in held:
            if block_id in self.queue:
                self.queue.remove(block_id)
        self.tables[request] = held
        request.num_hashed = len(held)
        self.grow(request, tokens)
        return Grant()

    def extend(self, requests: Sequence[Any], tokens: Sequence[int]) -> Grant | Refusal:
        (request,), (total,) = requests, tokens
        needed, free = self.blocks(total) - len(self.tables[request]), len(self.queue)
        alone = self.config.capacity_blocks - free <= len(self.tables[request])
        if needed > free or (self.config.one_free_each and not free and not alone):
            return Refusal(Reason.NO_FREE_BLOCKS, needed, free)
        self.grow(request, total)
        return Grant()

    def grow(self, request: Any, tokens: int) -> None:
        table = self.tables[request]
        while len(table) < self.blocks(tokens):
            block_id = self.queue.pop(0)
            self.keys.pop(block_id, None)
            table.append(block_id)
        if self.config.enable_caching:
            for index in range(request.num_hashed, min(tokens, request.known) // self.size):
                self.keys[table[index]] = request.content.keys(index, index + 1, self.size)[0]
                request.num_hashed = index + 1

    def free(self, request: Any) -> None:
        table = self.tables.pop(request)
        request.num_hashed = 0
        for block_id in table[request.computed // self.size :]:  # committed, and taken back before it was computed
            self.keys.pop(block_id, None)
        held = {block_id for other in self.tables.values() for block_id in other}
        loose = [block_id for block_id in reversed(table) if block_id not in held]
        to_front = [b for b in loose if b not in self.keys and self.config.freed_to == "front"]
        self.queue = to_front + self.queue + [b for b in loose if b not in to_front]

    def swap_out(self, request: Any) -> int:
        """How many blocks go to the host; 0 if they find no room there."""
        needed = self.blocks(request.computed)
        if needed > self.config.host_blocks - sum(self.on_host.values()):
            return 0
        self.on_host[request] = needed
        return needed

    def swap_in(self, request: Any, tokens: int, *, others_running: bool) -> Grant | Refusal:
        needed = self.blocks(tokens)
        if needed + (self.reserve if others_running else 0) > len(self.queue):
            return Refusal(Reason.NO_FREE_BLOCKS, needed, len(self.queue))
        self.tables[request] = []
        self.grow(request, tokens)
        del self.on_host[request]
        return Grant()

    def block_table(self, request: Any) -> list[int]:
        return self.tables[request]

    def settle(self, grant: Grant) -> None:
        raise AssertionError("a paged pool moves nothing")

    def stats(self) -> AllocatorStats:
        free, counts = len(self.queue), [b for table in self.tables.values() for b in table]
        extra = len(counts) - len(set(counts))
        cached = sum(block_id in self.keys for block_id in self.queue)
        return AllocatorStats(free, cached, len(set(counts)), extra, extra * self.size, 0, free, 0, 0)
