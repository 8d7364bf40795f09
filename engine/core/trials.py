"""The parts of the allocator contract that need no history: what to try, and what must hold of it alone.

Requests whose contents meet in every way, one request in an empty pool, and decode runs against single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from engine.core.allocator import EMPTY_GRANT, Grant, Hit, KVAllocator
from engine.core.content import BlockIdContent, ChainedIds, Content, TokenContent
from engine.core.decode_set import DecodeSet
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.shadow import check_state, expect, snapshot


def random_config(rng: Random) -> PoolConfig:
    size, capacity = rng.choice((1, 2, 3, 4, 5, 8)), rng.choice((1, 3, 6, 8, 10, 12, 16, 24, 40))
    longest = max(2, size * capacity * rng.choice((1, 2, 4)) // 4)
    return PoolConfig(capacity, size, longest, host_blocks=rng.choice((0, 1, 3, capacity, 4 * capacity)))


class RequestSource:
    """Random requests for a pool: some too large for it, many with prefixes in common.

    Each seed draws its own mixture of lengths and contents, so that some seeds crowd a pool and some share heavily.
    """

    def __init__(self, config: PoolConfig, rng: Random) -> None:
        self.config, self.rng, self.count = config, rng, 0
        self.common = [rng.randrange(2) for _ in range(2 * config.max_model_len)]
        self.chains, self.trace_block_size = ChainedIds(), rng.choice((1, 2, 5, 8))
        self.kinds = rng.choice((("private",), ("ids",), ("tokens",), ("tokens",), ("private", "ids", "tokens")))
        self.shrink, self.share_frac = rng.choice((1, 2, 3, 5)), rng.choice((0.3, 0.9))

    def new_request(self) -> Request:
        rng, config = self.rng, self.config
        longest = min(config.max_model_len - 1, config.capacity_blocks * config.block_size)
        prompt, limit = rng.randint(1, longest), rng.randint(1, max(longest // 2, 1))
        if rng.random() < 0.8:
            prompt, limit = -(-prompt // self.shrink), -(-limit // self.shrink)
        self.count += 1
        return Request(
            f"r{self.count}",
            prompt,
            limit,
            oracle_output_tokens=rng.randint(1, limit),
            content=self.new_content(prompt, prompt + limit),
            skips_cache_read=rng.random() < 0.1,
        )

    def new_content(self, prompt: int, total: int) -> Content | None:
        rng, kind, shares = self.rng, self.rng.choice(self.kinds), self.rng.random() < self.share_frac
        if kind == "private":
            return None
        if kind == "ids":
            ids = [0 if shares else rng.randrange(2) for _ in range(-(-prompt // self.trace_block_size))]
            return BlockIdContent(self.chains.chain(ids), self.trace_block_size, prompt)
        tokens = self.common[: total if shares else rng.randint(0, total)]
        tokens += [rng.randrange(2) for _ in range(total - len(tokens))]
        return TokenContent(tokens, salt="salt" if rng.random() < 0.1 else None)

    def twin(self, request: Request) -> Request:
        """One more sequence of the same lengths, to be forked from it."""
        self.count += 1
        return Request(
            f"r{self.count}",
            request.num_prompt_tokens,
            request.max_tokens,
            oracle_output_tokens=request.oracle_output_tokens,
            skips_cache_read=request.skips_cache_read,
        )

    def alike(self, one: Request, other: Request) -> bool:
        """Whether they are of the same lengths."""
        lengths = [(r.num_prompt_tokens, r.max_tokens, r.num_stop_tokens) for r in (one, other)]
        return lengths[0] == lengths[1]

    def branch(self, parent: Request, num_tokens: int) -> Content:
        """Content that equals the parent's up to that token, and perhaps beyond it."""
        content = parent.content.fork(num_tokens)
        if isinstance(content, TokenContent):
            missing = parent.num_prompt_tokens + parent.max_tokens - len(content.tokens)
            content.tokens += [self.rng.randrange(2) for _ in range(missing)]
        return content


def serve_alone(
    allocator: KVAllocator, request: Request, config: PoolConfig, rng: Random, note: Callable[..., None]
) -> None:
    """In an empty pool, what is not refused for ever can be admitted and can grow to its end, even where another
    request was there first and has left it in the wrong place."""
    if allocator.refuses_forever(request) is not None:
        return
    size = config.block_size
    # Reservations of groups are for their true lengths: members that pass them may stand in each other's way.
    length = request.max_tokens if request.group is None else request.num_stop_tokens
    end = min(request.num_prompt_tokens + length - 1, config.max_model_len)
    first = Request("first", -(-request.num_prompt_tokens // 2), 1)
    before = bool(request.max_tokens % 2) and isinstance(allocator.admit(first, first.num_tokens), Grant)
    hit, request.row = allocator.lookup(request), 0
    prompt = request.num_prompt_tokens
    total = rng.choice((prompt, rng.randint(hit.num_tokens + 1, prompt)))
    whole = rng.choice((0, prompt))
    answer = allocator.admit(request, total, hit, whole=whole)
    if before:
        allocator.free(first)
        answer = answer if isinstance(answer, Grant) else allocator.admit(request, total, hit, whole=whole)
    note(f"alone{' after another' if before else ''}: admit {request} to {total}, hit={hit.num_tokens}", answer)
    settle(allocator, request, total, answer)
    members: Sequence[Request] = (request,)
    if request.group is not None:
        grow(allocator, members, prompt, rng, size, note)
        members = request.group.members
        answer = allocator.fork(request, members[1:])  # type: ignore[attr-defined]
        note(f"alone: fork {members}", answer)
        for row, member in enumerate(members):
            member.row = row
            settle(allocator, member, prompt, answer if member is request else EMPTY_GRANT)
    grow(allocator, members, end, rng, size, note)
    check_state(allocator, members)
    for member in members:
        allocator.free(member)


def settle(allocator: KVAllocator, request: Request, total: int, answer: object) -> None:
    """What was asked for so that the request computes its tokens up to that one must have been granted, and ran."""
    expect(isinstance(answer, Grant), "alone, a request that is not refused for ever is served", answer)
    allocator.settle(answer)  # type: ignore[arg-type]
    request.computed, request.known = total, max(total, request.known)


def grow(
    allocator: KVAllocator, members: Sequence[Request], end: int, rng: Random, size: int, note: Callable[..., None]
) -> None:
    """They compute their tokens up to `end`, some at a time, in turns."""
    while waiting := [request for request in members if request.computed < end]:
        for request in waiting:
            total = min(request.computed + rng.randint(1, 2 * size), end)
            answer = allocator.extend((request,), (total,))
            note(f"alone: extend {request} to {total}", answer)
            settle(allocator, request, total, answer)


Run = tuple[list[int], dict[str, Any], list[Hit]]
"""Blocks taken, in order, the state after it, and what waiting requests would hit."""


def advance(allocator: KVAllocator, decoding: DecodeSet, parts: Sequence[int], waiting: Sequence[Request]) -> Run:
    """Runs of so many steps."""
    taken: list[int] = []
    for steps in parts:
        grant = allocator.advance(decoding, steps)
        taken += [block for blocks in grant.new_blocks for block in blocks]
        decoding.clock += steps
        decoding.sampled += steps
    return taken, snapshot(allocator, decoding), [allocator.lookup(request) for request in waiting]


def step_singly(allocator: KVAllocator, decoding: DecodeSet, steps: int, waiting: Sequence[Request]) -> Run:
    """The same steps by one `extend` per request and step."""
    taken: list[int] = []
    for _ in range(steps):
        for request in decoding:
            answer = allocator.extend((request,), (request.num_computed_tokens + 1,))
            allowed = isinstance(answer, Grant) and not answer.copies and not answer.moved
            expect(allowed, "free_run allows no refusal, copy or move", request, answer)
            taken += answer.new_blocks[0]  # type: ignore[union-attr]
        decoding.clock += 1
        decoding.sampled += 1
    return taken, snapshot(allocator, decoding), [allocator.lookup(request) for request in waiting]
