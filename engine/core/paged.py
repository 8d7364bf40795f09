"""Paged allocation with prefix caching: blocks on demand, shared by content, released in reverse (PagedAttention).

The semantics are vLLM 0.33's: admission needs blocks for the first chunk and, with the full-sequence gate, room for
the whole sequence as it stands; hit blocks that lie in the free queue count as needed; hits are touched before new
blocks are taken; hashes are committed when a block is scheduled to fill, before it is computed.

Sequences can be forked (SOSP'23): they share the blocks of their parent, and copy a partly filled one when they write
it. With `host_blocks` they can be swapped out and in again.

Named switches for other systems: `freed_to="back"` (freed blocks queue up at the back, vLLM before 0.33 and the
SOSP'23 system) and `one_free_each` (SOSP'23: a sequence may append only while a block is free, needed or not).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Literal

from engine.core.allocator import (
    EMPTY_GRANT,
    NO_HIT,
    Grant,
    Hit,
    Reason,
    Refusal,
    check_pool,
    holds_nothing,
    new_tuple,
)
from engine.core.block_pool import BlockPool
from engine.core.commits import Commits
from engine.core.copy_on_write import CopyOnWrite
from engine.core.group import members_of
from engine.core.paged_state import PagedState
from engine.core.request import Status
from engine.core.sharing import Sharing

if TYPE_CHECKING:
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


class PagedAllocator(Sharing, PagedState):
    """Blocks on demand from one pool, with or without prefix caching."""

    def __init__(
        self,
        capacity_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        enable_caching: bool = True,
        watermark: float = 0.0,
        freed_to: Literal["front", "back"] = "front",
        one_free_each: bool = False,
        record_events: bool = False,
        host_blocks: int = 0,
    ) -> None:
        """`watermark` is a fraction of `num_blocks`, null block included: W = int(watermark x num_blocks).
        `host_blocks`: blocks of host memory for sequences that are swapped out."""
        check_pool(capacity_blocks, block_size)
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"watermark must lie in [0, 1), got {watermark}")
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.num_blocks = capacity_blocks + 1
        self.growth_tokens: int | None = block_size
        self.contiguous = False
        self.enable_caching = enable_caching
        self.watermark_blocks = int(watermark * self.num_blocks)
        self.pool = BlockPool(capacity_blocks, freed_to=freed_to, record_events=record_events)
        self._max_model_len = max_model_len
        # Cached and empty blocks then leave the free queue in any order, which only single steps follow exactly.
        self._mixes = enable_caching and freed_to == "back"
        self.one_free_each = one_free_each
        self._tables: dict[Request, list[int]] = {}
        self._commits = Commits(self.pool, block_size)
        self._writes = CopyOnWrite(self.pool)
        Sharing.__init__(self, host_blocks)

    # questions ----------------------------------------------------------------------------------------------------

    def refuses_forever(self, request: Request) -> Refusal | None:
        """The whole request, its last token excepted (it never gets a slot), must fit an empty pool; of a group, the
        full blocks of the prompt once and the rest for each member. Those that end with the prompt never fork."""
        slots = min(request.num_prompt_tokens + request.max_tokens - 1, self._max_model_len)
        needed = -(-slots // self.block_size)
        if request.group is not None and slots > request.num_prompt_tokens:
            shared = request.num_prompt_tokens // self.block_size
            needed = shared + len(request.group.members) * (needed - shared)
        if needed > self.capacity_blocks:
            return Refusal(Reason.NEVER, needed, self.capacity_blocks)
        return None

    def lookup(self, request: Request) -> Hit:
        """Longest run of cached full blocks within `num_tokens - 1` tokens: the last token must be recomputed."""
        if not self.enable_caching or request.skips_cache_read:
            return NO_HIT
        if not request.content.shares_prompt and not request.num_preemptions:
            return NO_HIT  # nobody else can have computed any of it
        limit = (request.num_tokens - 1) // self.block_size
        if not limit:
            return NO_HIT
        first = request.content.keys(0, 1, self.block_size)[0]
        if not self._commits.may_find(first):
            return Hit(missing=first)
        keys = request.content.keys(0, limit, self.block_size)
        found = self.pool.find(keys)
        missing = keys[len(found)] if len(found) < limit else None
        return Hit(len(found) * self.block_size, found, missing)

    def free_run(self, requests: DecodeSet, limit: int, watch: Hashable = None) -> int:
        """Steps until the crossings outrun the free blocks, or until one commits `watch`."""
        if self._mixes or self._writes.open:
            return 0
        queue = self.pool.queue
        free = len(queue.stack) + queue.num_at_back - self.one_free_each
        if watch is not None and requests.num_sharing:
            limit = min(limit, requests.steps_before_filling(watch, limit))
        if (limit // self.block_size + 1) * len(requests.members) <= free:
            return limit
        return requests.steps_within(free, limit)

    @property
    def shares_tails(self) -> bool:
        """Whether some sequence may have to copy the block that it writes next."""
        return bool(self._writes.open)

    # actions ------------------------------------------------------------------------------------------------------

    def admit(
        self, request: Request, num_tokens: int, hit: Hit = NO_HIT, *, whole: int = 0, others_running: bool = False
    ) -> Grant | Refusal:
        """Touches the hit, takes blocks for the rest, commits the blocks that become full."""
        if request.blocks is not None:
            raise ValueError(f"request {request.request_id!r} is admitted already")
        if num_tokens <= hit.num_tokens:
            raise ValueError(f"num_tokens={num_tokens} must exceed the hit of {hit.num_tokens} tokens")
        if self.host_blocks:
            self._host.check_absent((request,))
        pool, size, limit = self.pool, self.block_size, self._max_model_len
        queue = pool.queue
        free = len(queue.stack) + queue.num_at_back
        held = len(hit.block_ids)
        unreferenced = pool.num_unreferenced(hit.block_ids) if held else 0
        reserve = self.watermark_blocks if others_running else 0
        fresh = -(-(num_tokens if num_tokens < limit else limit) // size) - held
        if fresh < 0:
            fresh = 0
        needed = fresh + unreferenced
        if needed + reserve > free:
            return new_tuple(Refusal, (Reason.WATERMARK if needed <= free else Reason.NO_FREE_BLOCKS, needed, free))
        if whole > num_tokens or (whole and request.group is not None):
            gate = -(-min(whole, limit) // size) - held + unreferenced
            if request.group is not None:
                gate += self._needed_by_others(request.group)
            if gate + reserve > free:
                return new_tuple(Refusal, (Reason.FULL_SEQUENCE, gate, free))
        if held:
            pool.touch(hit.block_ids)
        new_blocks = pool.take(fresh)
        table = [*hit.block_ids, *new_blocks]
        self._tables[request] = table
        request.blocks = table
        request.num_hashed = held
        if self.enable_caching and num_tokens >= size:
            self._commits.later(request, (num_tokens if num_tokens < request.known else request.known) // size)
        return new_tuple(Grant, ((new_blocks,), (), (), (), (), hit.num_tokens))

    def extend(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, num_lookahead: int = 0
    ) -> Grant | Refusal:
        """Takes what is missing for all requests together, or nothing."""
        size, limit, pool = self.block_size, self._max_model_len, self.pool
        tables: list[list[int]] = []
        needs: list[int] = []
        for request, total in zip(requests, num_tokens, strict=True):
            table = self._table(request)
            tables.append(table)
            needs.append(max(-(-min(total + num_lookahead, limit) // size) - len(table), 0))
        shared = self._shared_tails(requests, tables) if self._writes.open else ()
        needed, free = sum(needs), pool.num_free
        if shared:
            needed += self._writes.num_needed(table[index] for table, index in shared)
        if needed > free:
            return new_tuple(Refusal, (Reason.NO_FREE_BLOCKS, needed, free))
        if self.one_free_each and free < len(requests) and self._shares_pool(requests):
            return Refusal(Reason.NO_FREE_BLOCKS, len(requests), free)
        copies = [self._writes.write(table, index) for table, index in shared] if shared else ()
        new_blocks: list[list[int]] = []
        for table, need in zip(tables, needs, strict=True):
            blocks = pool.take(need)
            table += blocks
            new_blocks.append(blocks)
        if self.enable_caching:
            for request, total in zip(requests, num_tokens, strict=True):
                self._commits.later(request, min(total, request.num_tokens) // size)
        if not shared or not any(copies):
            return new_tuple(Grant, (new_blocks, (), (), (), (), 0))
        copied = {id(table) for (table, _), copy in zip(shared, copies, strict=True) if copy}
        moved = [request for request, table in zip(requests, tables, strict=True) if id(table) in copied]
        return Grant(new_blocks, moved, [copy for copy in copies if copy])

    def _shares_pool(self, requests: Sequence[Request]) -> bool:
        """Whether others hold blocks: a request alone in the pool, with its group, may always use its last block."""
        own = {member for request in requests for member in members_of(request)}
        return any(request not in own for request in self._tables)

    def advance(self, requests: DecodeSet, num_steps: int) -> Grant:
        """Takes one block a crossing, in (step, running order), and commits what fills.

        Blocks that only their owner could ever look up are committed when it lets go of them: until then nobody can
        tell the difference.
        """
        growing = requests.growing_in(num_steps)
        taken: list[int] = []
        if growing:
            taken = self.pool.take(len(growing))
            for request, block_id in zip(growing, taken, strict=True):
                request.blocks.append(block_id)  # type: ignore[union-attr]
        if self.enable_caching and (requests.num_sharing or self.pool.events is not None):
            for step in range(num_steps):
                self._commit_filling(requests, step)
        return new_tuple(Grant, ((taken,), (), (), (), (), 0)) if taken else EMPTY_GRANT

    def _commit_filling(self, requests: DecodeSet, step: int) -> None:
        size = self.block_size
        filling = requests.filling(size, step)
        if filling:
            computed = requests.clock + step + 1
            self._commits.all_later([(request, (request.base + computed) // size) for request in filling])

    def catch_up(self) -> None:
        """Makes findable what decoding has filled: at the latest when somebody looks, sooner while a step runs."""
        self._commits.catch_up()

    def settle(self, grant: Grant) -> None:
        """Sources of copies may be reused; those that nobody owns any more are free."""
        if grant.copies:
            self._writes.settle(grant.copies)
        if grant.to_device:
            self._host.read([host_id for host_id, _ in grant.to_device])

    def free(self, request: Request) -> None:
        """Releases the table, last block first; cached blocks stay findable until they are taken.

        Blocks that were to fill in a step that took them back (a victim that had been served in it already) were never
        computed, so they are not cached; vLLM 0.33 leaves them findable.
        """
        if request not in self._tables:
            raise holds_nothing(request)
        self._release(request, findable=request.status is not Status.FINISHED or self.pool.events is not None)

    def _release(self, request: Request, *, findable: bool) -> None:
        self._commits.catch_up()
        table = self._tables.pop(request)
        num_full = request.num_computed_tokens // self.block_size if self.enable_caching else 0
        if request.num_hashed > num_full:
            self.pool.uncommit(table[num_full : request.num_hashed])
        if num_full and findable:
            self._commits.private(request, table, num_full)
        if self._writes.open or self._writes.reading:
            self._writes.release(table, num_full)
        else:
            self.pool.release(table, num_full)
        request.blocks = None
        request.num_hashed = 0

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached content; False, and no change, while any block is in use."""
        return self.pool.reset()
