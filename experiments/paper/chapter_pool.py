"""The chapter's rules of the block pool (S21, S22), as laws that random operations must not break."""

from __future__ import annotations

import random

from engine.core.allocator import Hit, Refusal
from engine.core.content import TokenContent
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from experiments.paper.chapter_sizes import BLOCK, claim
from experiments.paper.claims import Result, exact

NUM_OPERATIONS = 1500
NUM_REQUESTS = 1500


def judge() -> list[Result]:
    """S21, S22."""
    unhits, uncapped = _prefix_hits(seed=0)
    both, revived = _referenced_in_queue(seed=0)
    asked = f"{NUM_REQUESTS:,} random requests with common prefixes"
    return [
        exact(
            claim(
                "S21/release_order", "cached blocks of a table that leave the queue out of reverse order", 0, "blocks"
            ),
            _release_order(),
            "the tail of a prompt is evicted before its head",
        ),
        exact(
            claim("S21/referenced_in_queue", "referenced blocks found in the free queue", 0, "blocks"),
            both,
            f"{NUM_OPERATIONS:,} random operations, invariants checked; hits took {revived:,} blocks from the queue",
        ),
        exact(
            claim("S22/partial_hits", "prefix hits that are not the longest run of whole blocks", 0, "requests"),
            unhits,
            asked,
        ),
        exact(
            claim("S22/full_hits", "hits that leave no token to compute", 0, "requests", "last-token", confidence="R"),
            uncapped,
            asked,
        ),
    ]


def _release_order() -> int:
    """Positions at which the queue differs from the reversed table."""
    allocator = PagedAllocator(8, BLOCK, max_model_len=512)
    request = _request(0, text=0, length=5 * BLOCK)
    allocator.admit(request, request.num_prompt_tokens)
    request.computed = request.num_prompt_tokens
    table = list(allocator.block_table(request))
    allocator.free(request)
    pool = allocator.pool
    queue = [block_id for block_id in pool.free_queue() if pool.is_cached(block_id)]
    return sum(a != b for a, b in zip(queue, reversed(table), strict=True))


def _referenced_in_queue(seed: int) -> tuple[int, int]:
    """Random admissions and releases in a small pool: blocks both held and queued, and hits taken out of the queue."""
    rng, allocator = random.Random(seed), PagedAllocator(48, BLOCK, max_model_len=512)
    running: list[Request] = []
    found = revived = 0
    for index in range(NUM_OPERATIONS):
        if running and rng.random() < 0.5:
            allocator.free(running.pop(rng.randrange(len(running))))
        else:
            request = _request(index, text=rng.randrange(4), length=rng.randint(1, 10 * BLOCK))
            hit = allocator.lookup(request)
            unreferenced = allocator.pool.num_unreferenced(hit.block_ids)
            if not isinstance(allocator.admit(request, request.num_prompt_tokens, hit), Refusal):
                request.computed = request.num_prompt_tokens
                running.append(request)
                revived += unreferenced
        allocator.check()
        held = {block_id for request in running for block_id in allocator.block_table(request)}
        found += len(held & set(allocator.pool.free_queue()))
    return found, revived


def _request(index: int, text: int, length: int) -> Request:
    """The first `length` tokens of one of several texts that have no block in common."""
    return Request(index, length, 1, content=TokenContent([text * 1000 + i for i in range(length)]))


def _prefix_hits(seed: int) -> tuple[int, int]:
    """Hits that differ from the longest known run of whole blocks, and hits that cover a whole prompt.

    Prompts are cut from eight texts, so that many are prefixes of others; the pool is large enough to evict nothing.
    """
    rng = random.Random(seed)
    allocator = PagedAllocator(8 * 20 + 400, BLOCK, max_model_len=512)
    known: set[tuple[int, int]] = set()
    wrong = uncapped = 0
    for index in range(NUM_REQUESTS):
        text, length = rng.randrange(8), rng.randint(1, 20 * BLOCK)
        request = _request(index, text, length)
        hit = allocator.lookup(request)
        wrong += hit.num_tokens != _longest(known, text, length) or hit.num_tokens % BLOCK != 0
        uncapped += hit.num_tokens >= length
        _serve(allocator, request, hit)
        known |= {(text, block) for block in range(length // BLOCK)}
    return wrong, uncapped


def _longest(known: set[tuple[int, int]], text: int, length: int) -> int:
    """Tokens of the longest run of whole blocks seen before that leaves one token."""
    run = 0
    while (text, run) in known and (run + 1) * BLOCK < length:
        run += 1
    return run * BLOCK


def _serve(allocator: PagedAllocator, request: Request, hit: Hit) -> None:
    granted = allocator.admit(request, request.num_prompt_tokens, hit)
    assert not isinstance(granted, Refusal), f"{request}: {granted}"
    request.computed = request.num_prompt_tokens
    allocator.free(request)
