"""Sharing and swapping of a paged pool (SOSP'23 sections 4.4 and 4.5).

Sequences start with another one's blocks; they go to host memory with all that they have computed, and come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.core.allocator import Grant, Reason, Refusal, check_distinct, check_fork
from engine.core.host_blocks import HostBlocks

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool
    from engine.core.commits import Commits
    from engine.core.content import Content
    from engine.core.copy_on_write import CopyOnWrite
    from engine.core.group import Group
    from engine.core.request import Request


class Sharing:
    """What `PagedAllocator` does beyond serving each sequence by itself."""

    block_size: int
    enable_caching: bool
    watermark_blocks: int
    pool: BlockPool
    _commits: Commits
    _max_model_len: int
    _tables: dict[Request, list[int]]
    _writes: CopyOnWrite

    def __init__(self, host_blocks: int) -> None:
        self._host = HostBlocks(host_blocks)
        self.host_blocks = host_blocks

    @property
    def num_free_host_blocks(self) -> int:
        """Of host memory."""
        return self._host.num_free

    if TYPE_CHECKING:  # of the allocator

        def _table(self, request: Request) -> list[int]: ...
        def free(self, request: Request) -> None: ...
        def _release(self, request: Request, *, findable: bool) -> None: ...
        def catch_up(self) -> None: ...

    def _shared_tails(self, requests: Sequence[Request], tables: Sequence[list[int]]) -> list[tuple[list[int], int]]:
        """(table, index) of the blocks that these requests write next and share with others."""
        indexes = [request.num_computed_tokens // self.block_size for request in requests]
        pairs = zip(tables, indexes, strict=True)
        return [(table, index) for table, index in pairs if index < len(table) and table[index] in self._writes.open]

    def _needed_by_others(self, group: Group) -> int:
        """Blocks that the rest of a preempted group needs to be where it was: each member its own behind the prompt."""
        if not group.forked:
            return 0
        size, members = self.block_size, group.live()
        shared = members[0].num_prompt_tokens // size
        return sum(-(-member.num_tokens // size) - shared for member in members[1:])

    def fork(self, parent: Request, children: Sequence[Request], num_tokens: int | None = None) -> Grant:
        """Shares the parent's blocks up to that token: never refused. Partly filled blocks are shared whole only by
        those who have computed equally many tokens in them."""
        table = self._table(parent)
        full, filled = divmod(check_fork(parent, children, num_tokens, self.block_size), self.block_size)
        self._host.check_absent(children)
        self.catch_up()
        shared = table[: full + (filled > 0)]
        for child in children:
            if child in self._tables:
                # With events, what filled while memory was short is told of now: it queues up as content.
                self._release(child, findable=self.pool.events is not None)
        self._writes.share(shared, len(children), filled)
        for child in children:
            child.blocks = self._tables[child] = list(shared)
            child.num_hashed = min(parent.num_hashed, full)
        return Grant([()] * len(children))

    def rename(self, request: Request, content: Content) -> None:
        """The tokens behind the prompt turn out to be those of another content: its full blocks are found as such."""
        if not self.enable_caching:
            return
        self.catch_up()
        first, full = request.num_prompt_tokens // self.block_size, request.num_computed_tokens // self.block_size
        blocks = self._table(request)[first:full]
        self.pool.uncommit(blocks)
        self.pool.commit(blocks, content.keys(first, full, self.block_size))
        request.num_hashed = full

    def swap_out(self, requests: Sequence[Request]) -> Grant | Refusal:
        """Everything the requests have computed goes to the host, what they share among themselves once.

        A block whose content is still to be copied by the batch that is being decided is read where it comes from.
        """
        check_distinct(requests)
        held: dict[Request, list[int]] = {}
        for request in requests:
            num_blocks = -(-request.num_computed_tokens // self.block_size)
            held[request] = [self._writes.content_of(block_id) for block_id in self._table(request)[:num_blocks]]
        needed, free = len({block_id for table in held.values() for block_id in table}), self._host.num_free
        if needed > free:
            return Refusal(Reason.NO_HOST_BLOCKS, needed, free)
        pairs = self._host.store(held)
        for request in requests:
            self.free(request)
        return Grant(to_host=pairs)

    def swap_in(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, others_running: bool = False
    ) -> Grant | Refusal:
        """Full blocks that the requests share are shared again; each gets a last, partly filled block of its own.
        ValueError, and no change, for fewer tokens than one has computed, or for one that is named twice."""
        size = self.block_size
        check_distinct(requests)
        for request, total in zip(requests, num_tokens, strict=True):
            if total < request.num_computed_tokens:
                raise ValueError(f"{request} has computed more than num_tokens={total}")
        hosts = [self._host.table(request) for request in requests]
        full = [request.num_computed_tokens // size for request in requests]
        needs = [-(-min(total, self._max_model_len) // size) for total in num_tokens]
        places: dict[int, int] = {
            host_id: 0 for host, count in zip(hosts, full, strict=True) for host_id in host[:count]
        }
        needed = len(places) + sum(need - count for need, count in zip(needs, full, strict=True))
        reserve, free = self.watermark_blocks if others_running else 0, self.pool.num_free
        if needed + reserve > free:
            return Refusal(Reason.WATERMARK if needed <= free else Reason.NO_FREE_BLOCKS, needed, free)
        places = dict(zip(places, self.pool.take(len(places)), strict=True))
        copies, seen = list(places.items()), set[int]()
        for request, host, count, need in zip(requests, hosts, full, needs, strict=True):
            shared = [places[host_id] for host_id in host[:count]]
            again = [block_id for block_id in shared if block_id in seen]
            self.pool.share(again, 1)
            seen.update(shared)
            request.num_hashed = len(again)  # the first of those that share them makes them findable
            own = self.pool.take(need - count)
            copies += zip(host[count:], own, strict=False)  # the rest of `own` is for tokens to come
            request.blocks = self._tables[request] = shared + own
        self._host.restore(requests, [host_id for host_id, _ in copies])
        if self.enable_caching:
            self.catch_up()
            for request, total in zip(requests, num_tokens, strict=True):
                self._commits.now(request, self._tables[request], min(total, request.num_tokens) // size)
        return Grant([self._tables[request] for request in requests], to_device=copies)
