"""The allocator contract: everything the scheduler, the engine and the metrics may ask of KV memory.

It deals in block ids, never in tensors. Block 0 is the null block (vLLM's), so ids that requests hold run from 1 to
`capacity_blocks`. A contiguous allocation is a block table of adjacent ids, hence one kernel runs every allocator.

Rules. Actions are all or nothing over their whole argument; a `Refusal` changed nothing and says why. Everything else
that goes wrong raises before any change: `KeyError` for a request that holds nothing, `ValueError` for bad numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request


class Reason(IntEnum):
    """Why memory was refused."""

    NO_FREE_BLOCKS = 0
    """Fewer free blocks in total than asked for."""
    NO_HOLE = 1
    """Enough free blocks in total, but no extent of adjacent ones is large enough."""
    WATERMARK = 2
    """The blocks are there, but taking them would leave fewer than the watermark."""
    FULL_SEQUENCE = 3
    """The first chunk would fit, the whole sequence as it stands would not (full-sequence gate)."""
    NEVER = 4
    """Prompt and output limit exceed what the pool can ever hold."""
    NO_HOST_BLOCKS = 5
    """Host memory has fewer free blocks than a swap-out needs."""


class Refusal(NamedTuple):
    """A shortage: an answer, not an error. Nothing changed."""

    reason: Reason
    needed_blocks: int
    free_blocks: int


new_tuple = tuple.__new__
"""Makes a named tuple from all its fields without the Python frame that its constructor costs; for the step loop."""


class Grant(NamedTuple):
    """What an action handed out."""

    new_blocks: Sequence[Sequence[int]] = ()
    """New block ids per request of the argument; for `advance` one flat list in (step, running order)."""
    moved: Sequence[Request] = ()
    """Requests whose table changed in what it held already (contiguous growth that had to move, copy-on-write)."""
    copies: Sequence[tuple[int, int]] = ()
    """(source, destination) block ids to copy on the device; all sources are read before any destination is written.
    Sources stay referenced until `settle`, destinations as long as a request holds them: a caller that frees a moved
    request before the batch runs leaves its copies out of the batch, and settles the grant all the same."""
    to_host: Sequence[tuple[int, int]] = ()
    """(device block, host block) of a swap-out: read before anything is written, so the device blocks are free at
    once."""
    to_device: Sequence[tuple[int, int]] = ()
    """(host block, device block) of a swap-in: written after `to_host` was read. Host blocks stay until `settle`."""
    num_computed_tokens: int = 0
    """Tokens that need no computation because a prefix hit covers them (admission only)."""


class Hit(NamedTuple):
    """A prefix-cache hit: the blocks that already hold the first `num_tokens` tokens."""

    num_tokens: int = 0
    block_ids: Sequence[int] = ()
    missing: Hashable = None
    """Key of the first block that is not cached: its commit would make the hit longer. None without caching."""


NO_HIT = Hit()
EMPTY_GRANT = Grant()


class AllocatorStats(NamedTuple):
    """Counters, maintained and never scanned for. Blocks unless the name says otherwise; the null block is outside."""

    num_free: int
    """Blocks without references."""
    num_cached_free: int
    """Free blocks that still hold a cached prefix (part of `num_free`)."""
    num_referenced: int
    """Blocks with references, each once."""
    num_extra_references: int
    """References beyond the first: a block of three tables counts two."""
    num_extra_slots: int
    """Token slots those extra references stand for."""
    num_asked_slots: int
    """Token slots that reservations asked for before rounding up; 0 where memory is taken as tokens come."""
    largest_free_extent: int
    """Most blocks that one allocation could get now: all free ones where adjacency does not matter."""
    num_evictions: int
    """Cached blocks whose content was given up so far."""
    num_copies: int
    """Blocks copied so far (moves, copy-on-write)."""


FREE, CACHED, SHARED, NULL, LEAVING = -1, -2, -3, -4, -5


class Regions(NamedTuple):
    """The pool as runs of adjacent blocks, in address order: for maps, histograms and exporters."""

    start: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    owner: npt.NDArray[np.int64]
    """Row of the owner, or FREE, CACHED (free, content kept), SHARED (several owners), NULL, LEAVING (without an owner,
    but a copy that has not settled reads it)."""


class KVAllocator(Protocol):
    """KV memory of one pool. One class and one entry in `engine.core.registry` make a new allocator."""

    block_size: int
    """Token slots per block."""
    num_blocks: int
    """Blocks of the KV tensor, ids 0 to num_blocks - 1; watermark and bytes count these."""
    capacity_blocks: int
    """Blocks that requests can hold: num_blocks - 1, as block 0 is the null block."""
    growth_tokens: int | None
    """Tokens by which a decoding request's memory grows: a request that has computed a multiple of it needs memory
    for its next token. 0: everything is taken at admission. None: unknown; every step then asks for every request."""

    contiguous: bool
    """Whether a request's blocks must be adjacent, so that free extents matter."""

    def refuses_forever(self, request: Request) -> Refusal | None:
        """A refusal with `Reason.NEVER` if prompt + max_tokens can never fit, else None."""
        ...

    def lookup(self, request: Request) -> Hit:
        """Longest cached prefix, at most `num_tokens - 1` tokens; pure. NO_HIT without caching."""
        ...

    def free_run(self, requests: DecodeSet, limit: int, watch: Hashable = None) -> int:
        """Number of one-token steps, at most `limit`, that all can surely take without refusal, copy or move and
        without a commit under the key `watch`. Pure; any safe answer >= 0 is right."""
        ...

    def admit(
        self, request: Request, num_tokens: int, hit: Hit = NO_HIT, *, whole: int = 0, others_running: bool = False
    ) -> Grant | Refusal:
        """Memory for the first `num_tokens` tokens in total, hit included. `whole` > 0: that many must fit now too.
        The watermark counts only if `others_running`."""
        ...

    def extend(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, num_lookahead: int = 0
    ) -> Grant | Refusal:
        """Makes each request's capacity at least `num_tokens` (totals, idempotent) plus look-ahead slots."""
        ...

    def advance(self, requests: DecodeSet, num_steps: int) -> Grant:
        """The blocks that `num_steps` single steps would take, in (step, running order); `free_run` allowed them.
        The caller moves the clock afterwards."""
        ...

    def settle(self, grant: Grant) -> None:
        """The batch with this grant's copies has run: sources may be reused."""
        ...

    def free(self, request: Request) -> None:
        """Releases everything the request holds; KeyError if it holds nothing."""
        ...

    def block_table(self, request: Request) -> Sequence[int]:
        """Block ids by logical block; KeyError if the request holds nothing."""
        ...

    def stats(self) -> AllocatorStats:
        """The counters; O(1)."""
        ...

    def regions(self) -> Regions:
        """The pool in address order; O(blocks), for pictures and tests."""
        ...

    def check(self) -> None:
        """Re-derives every counter and invariant; AssertionError with both sides. For tests and idle time."""
        ...


class ForkPool(Protocol):
    """Allocators that can start sequences from a parent's tokens (parallel sampling, beam search).

    They take a whole group at its admission into account: paged ones hold the prompt once, contiguous ones reserve for
    each member.
    """

    def fork(self, parent: Request, children: Sequence[Request], num_tokens: int | None = None) -> Grant | Refusal:
        """Children start with the parent's first `num_tokens` tokens: all computed ones (None), or fewer that fill
        whole blocks; ValueError for others. Paged allocators share
        blocks (a partly filled last one until somebody writes it), contiguous ones copy. What a child held of its own
        is given up, or written over."""
        ...


class HostPool(Protocol):
    """Allocators that can also hold blocks in host memory."""

    host_blocks: int
    """Blocks of host memory; 0: nothing can be swapped."""
    num_free_host_blocks: int
    """Those that nobody uses."""

    def swap_out(self, requests: Sequence[Request]) -> Grant | Refusal:
        """Moves what the requests have computed to the host, a block that they share once."""
        ...

    def swap_in(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, others_running: bool = False
    ) -> Grant | Refusal:
        """Brings them back, with room for `num_tokens` tokens each (totals). Watermark as in `admit`."""
        ...


def holds_nothing(request: Request) -> KeyError:
    """The error for a request that the pool does not know."""
    return KeyError(f"request {request.request_id!r} holds no blocks in this pool")


def check_distinct(requests: Sequence[Request]) -> None:
    """ValueError, before anything is changed, where a request is named twice."""
    if len(requests) > 1 and len(set(requests)) < len(requests):
        twice = next(request for request in requests if requests.count(request) > 1)
        raise ValueError(f"request {twice.request_id!r} is named twice among {len(requests)}")


def check_fork(parent: Request, children: Sequence[Request], num_tokens: int | None, block_size: int) -> int:
    """How many tokens the children of a fork begin with. ValueError for another count than there can be, and for a
    child that is its own parent or is named twice."""
    check_distinct((parent, *children))
    computed = parent.num_computed_tokens
    count = computed if num_tokens is None else num_tokens
    if count != computed and (count % block_size or not 0 <= count < computed):
        raise ValueError(f"{parent} can be forked at {computed} tokens or at the end of a full block, not at {count}")
    return count


MAX_BLOCKS = 1 << 26
"""More blocks than any pool has; keeps a slip of the finger from eating the memory of this machine."""


def check_pool(capacity_blocks: int, block_size: int) -> None:
    """Refuses a pool without a block or a slot, or with absurdly many."""
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in (capacity_blocks, block_size)):
        raise ValueError(
            f"a pool needs whole, positive sizes, got num_blocks={capacity_blocks!r}, block_size={block_size!r}"
        )
    if capacity_blocks > MAX_BLOCKS:
        raise ValueError(f"num_blocks={capacity_blocks} is more than the {MAX_BLOCKS} that a pool may have")


def regions_of(owner: npt.NDArray[np.int64]) -> Regions:
    """Runs of equal owners; `owner` has one entry a block, block 0 first."""
    starts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    lengths = np.diff(np.append(starts, len(owner)))
    return Regions(starts.astype(np.int64), lengths.astype(np.int64), owner[starts])
