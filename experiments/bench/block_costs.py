"""Host time of the block pool by the block, in batches: what taking, caching, finding and giving back cost.

Best of many rounds of CPU seconds, so that other work on the machine hardly shows. Keys are there already: what is
timed is the pool, not the hashing, which a request does once for its prompt (`hashing` times that).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from multiprocessing import get_context
from typing import Final, NamedTuple

from engine.core.block_pool import BlockPool
from engine.core.content import BranchContent, Content, TokenContent
from engine.core.paged import PagedAllocator
from engine.core.request import Request

POOL_BLOCKS: Final = 4_096
BLOCK: Final = 16
BATCHES: Final = (16, 256)
LOOKUP_TOKENS: Final = 4_096
CALL_BLOCKS: Final = 4_096
"""Blocks of a round: enough for the clock, few enough that a round often runs undisturbed."""
Go = Callable[[], object]


class Known:
    """Content whose keys are there already."""

    shares_prompt = shares_outputs = True

    def __init__(self, num_blocks: int) -> None:
        self._keys = keys_of(0, num_blocks)

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """A slice."""
        return self._keys[start:stop]

    def fork(self, num_tokens: int) -> Content:
        """Keys of its own from there on."""
        return BranchContent(self, num_tokens)


class Cost(NamedTuple):
    """One case."""

    case: str
    batch: int
    """Blocks of a call."""
    us_per_block: float


def keys_of(prompt: int, num_blocks: int) -> list[bytes]:
    """As long as digests are, and as different."""
    return [b"%032d" % ((prompt << 20) + index) for index in range(num_blocks)]


def without_caching(batch: int) -> Go:
    """Blocks come and go."""
    pool = BlockPool(POOL_BLOCKS)
    return lambda: pool.release(pool.take(batch))


def unhashed(batch: int) -> Go:
    """The same blocks without content, while all others of the pool hold some."""
    pool = _full_of_content(batch)
    pool.release(pool.take(batch))
    return lambda: pool.release(pool.take(batch))


def commit_and_evict(batch: int) -> Go:
    """Every block taken gives up what it held, and holds something new when it goes."""
    pool = _full_of_content(batch)
    prompts = cycle([keys_of(1 + prompt, batch) for prompt in range(2 * POOL_BLOCKS // batch)])

    def go() -> None:
        blocks = pool.take(batch)
        pool.commit(blocks, next(prompts))
        pool.release(blocks, batch)

    for _ in range(2 * POOL_BLOCKS // batch):
        go()
    return go


def _full_of_content(batch: int) -> BlockPool:
    pool = BlockPool(POOL_BLOCKS)
    for prompt in range(POOL_BLOCKS // batch):
        blocks = pool.take(batch)
        pool.commit(blocks, keys_of(-1 - prompt, batch))
        pool.release(blocks, batch)
    return pool


def lookup(batch: int) -> Go:
    """A prompt of `batch` blocks and a token, all of them cached."""
    allocator = PagedAllocator(batch + 1, BLOCK, max_model_len=2 * batch * BLOCK)
    content = Known(batch + 1)
    allocator.admit(Request(0, batch * BLOCK + 1, 1, content=content), batch * BLOCK)
    second = Request(1, batch * BLOCK + 1, 1, content=content)
    assert allocator.lookup(second).num_tokens == batch * BLOCK
    return lambda: allocator.lookup(second)


def hashing(batch: int) -> Go:
    """The SHA-256 chain of a prompt of `batch` blocks, as the engine hashes it, once a request."""
    tokens = [(31 * index) % 50_000 for index in range(batch * BLOCK)]
    return lambda: TokenContent(tokens).keys(0, batch, BLOCK)


CASES: Final[dict[str, tuple[Callable[[int], Go], tuple[int, ...]]]] = {
    "without caching": (without_caching, BATCHES),
    "unhashed": (unhashed, BATCHES),
    "commit and evict": (commit_and_evict, BATCHES),
    "lookup": (lookup, (LOOKUP_TOKENS // BLOCK,)),
    "hashing": (hashing, (LOOKUP_TOKENS // BLOCK,)),
}


def best_us(go: Go, num_calls: int, rounds: int) -> float:
    """CPU microseconds of a call, best of the rounds."""
    best = float("inf")
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            start = time.process_time_ns()
            for _ in range(num_calls):
                go()
            best = min(best, (time.process_time_ns() - start) / num_calls)
    finally:
        if collecting:
            gc.enable()
    return best / 1e3


def measured(rounds: int = 100) -> list[Cost]:
    """Every case in every batch."""
    return [
        Cost(case, batch, best_us(prepare(batch), max(CALL_BLOCKS // batch, 1), rounds) / batch)
        for case, (prepare, batches) in CASES.items()
        for batch in batches
    ]


def measured_apart(rounds: int = 100) -> list[Cost]:
    """`measured` in a process of its own: a heap full of other things makes every touch of memory dearer."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        return apart.submit(measured, rounds).result()
