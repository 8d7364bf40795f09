"""Cache-only mode: a trace's prompts against a bare prefix cache, without time, memory of running requests, or a step.

A prompt finds the longest run of its leading blocks that is cached, and all of its blocks are cached after it. What is
compared is only what is given up when the cache is full: the least recently used block, the oldest one, or (Belady's
optimum) the one that is asked for again latest. vLLM's own rules, allocator and all, stand beside them: they cap a hit
at all tokens but one, cache full blocks alone, and take a prompt's hit out of reach before they give up anything.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from engine.core.allocator import Refusal
from engine.core.content import BlockIdContent, ChainedIds
from engine.core.paged import PagedAllocator
from engine.core.request import Request, Status
from engine.core.text_runs import RunContent
from sim import metrics

if TYPE_CHECKING:
    from workloads import Trace

NEVER: Final = 1 << 62
"""The index of a request that does not come."""
RUN_BLOCK: Final = 16
"""vLLM's block: what the content of a trace without blocks of its own is cut into."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is looked up, in order."""

    keys: list[list[int]]
    """Chained ids, one a block, a partly filled last block's included: equal ids, equal prefixes."""
    num_tokens: list[int]
    block_size: int
    """Tokens."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def longest_blocks(self) -> int:
        """Blocks of the longest prompt."""
        return max(map(len, self.keys), default=0)


def prompts_of(trace: Trace, run_block_size: int = RUN_BLOCK) -> Prompts:
    """The trace's prompts; ValueError if it names no blocks. Requests that failed (no output) ask for nothing.

    `run_block_size`: tokens of a block where content is given by runs of texts, which have no blocks of their own. Only
    full blocks of those are looked up: what a partly filled one holds is found by the next turn only in part.
    """
    if not trace.block_size:
        raise ValueError(f"trace {trace.name!r} has no block ids: a prefix cache has nothing to look up")
    chains = ChainedIds()
    asked = [int(index) for index in range(len(trace)) if not trace.status[index]]
    tokens = [int(trace.num_prompt_tokens[index]) for index in asked]
    keys: list[list[int]] = [trace.block_ids_of(index).tolist() for index in asked]
    if trace.block_scope == "runs":
        return Prompts(_blocks_of_runs(keys, tokens, run_block_size), tokens, run_block_size)
    if trace.block_scope != "chained":
        keys = [chains.chain(ids) for ids in keys]
    return Prompts(keys, tokens, trace.block_size)


def _blocks_of_runs(runs: list[list[int]], num_tokens: list[int], size: int) -> list[list[int]]:
    """Numbers of the full blocks of prompts that are given as text, tokens, text, tokens, ..."""
    chains, numbers = ChainedIds(), dict[Hashable, int]()
    found: list[list[int]] = []
    for one, tokens in zip(runs, num_tokens, strict=True):
        keys = RunContent(one, chains, shares_outputs=False).keys(0, tokens // size, size) if one else ()
        found.append([numbers.setdefault(key, len(numbers)) for key in keys])
    return found


class Cache(Protocol):
    """A full cache gives something up; which, is all that these differ in."""

    def serve(self, index: int) -> int:
        """Leading blocks of that prompt that were cached; all of its blocks then are, as far as they fit. Prompts are
        served once each, in order."""
        ...


class Recency:
    """Gives up the block whose turn came longest ago; O(1) a block."""

    def __init__(self, prompts: Prompts, capacity: int, *, renews: bool) -> None:
        """`renews`: a block that is asked for again is young again (least recently used); else its age counts from
        when it was cached (first in, first out)."""
        self._keys = prompts.keys
        self._capacity = check_capacity(capacity)
        self._renews = renews
        self._cached: OrderedDict[int, None] = OrderedDict()

    def serve(self, index: int) -> int:
        """See `Cache`. Least recently used: a chain's tail is older than its head, so that no head goes before it."""
        keys, cached = self._keys[index], self._cached
        found = leading(keys, cached)
        for key in reversed(keys) if self._renews else keys:
            if key in cached:
                if self._renews:
                    cached.move_to_end(key)
                continue
            if len(cached) >= self._capacity:
                cached.popitem(last=False)
            cached[key] = None
        return found


class Optimum:
    """Belady's: gives up what is asked for again latest, of a chain the deepest block first; O(log n) a block.

    Chains make this the best that any cache can do for the blocks found over a whole trace: a block is asked for no
    later than what lies behind it, so that heads outlive their tails and no cached block is out of reach.
    """

    def __init__(self, prompts: Prompts, capacity: int) -> None:
        self._keys = prompts.keys
        self._capacity = check_capacity(capacity)
        self._again = _next_uses(prompts.keys)
        self._due: dict[int, int] = {}
        """The next request for each cached block."""
        self._latest: list[tuple[int, int, int]] = []
        """(-next request, -depth, key), of which those that `_due` contradicts are stale."""

    def serve(self, index: int) -> int:
        """See `Cache`. What is never asked for again is not kept."""
        keys, due = self._keys[index], self._due
        found = leading(keys, due)
        for depth, (key, again) in enumerate(zip(keys, self._again[index], strict=True)):
            if again == NEVER:
                due.pop(key, None)
            else:
                due[key] = again
                heapq.heappush(self._latest, (-again, -depth, key))
        while len(due) > self._capacity:
            again, _, key = heapq.heappop(self._latest)
            if due.get(key) == -again:
                del due[key]
        return found


class Paged:
    """vLLM 0.33's rules: the allocator itself, one request at a time, which finishes with its prompt."""

    def __init__(self, prompts: Prompts, capacity: int) -> None:
        self._prompts = prompts
        longest = max(prompts.num_tokens, default=0) + 1
        self.allocator = PagedAllocator(check_capacity(capacity), prompts.block_size, max_model_len=longest)
        self.num_refused = 0
        """Prompts larger than the pool: never admitted, so that they find and leave nothing."""

    def serve(self, index: int) -> int:
        """See `Cache`."""
        allocator, prompts = self.allocator, self._prompts
        num_tokens = prompts.num_tokens[index]
        content = BlockIdContent(prompts.keys[index], prompts.block_size, num_tokens)
        request = Request(index, num_tokens, 1, content=content)
        hit = allocator.lookup(request)
        if isinstance(allocator.admit(request, num_tokens, hit), Refusal):
            self.num_refused += 1
            return 0
        request.computed = num_tokens
        request.status = Status.FINISHED
        allocator.free(request)
        return len(hit.block_ids)


POLICIES: Final[dict[str, Callable[[Prompts, int], Cache]]] = {
    "fifo": lambda prompts, capacity: Recency(prompts, capacity, renews=False),
    "lru": lambda prompts, capacity: Recency(prompts, capacity, renews=True),
    "optimal": Optimum,
    "vllm": Paged,
}


def leading(keys: list[int], cached: OrderedDict[int, None] | dict[int, int]) -> int:
    """Length of the longest run of cached keys from the first on."""
    return next((depth for depth, key in enumerate(keys) if key not in cached), len(keys))


def check_capacity(capacity: int) -> int:
    """The number of blocks; ValueError if there are none."""
    if capacity < 1:
        raise ValueError(f"a cache needs at least one block, got {capacity}")
    return capacity


def _next_uses(keys: list[list[int]]) -> list[list[int]]:
    """For each block of each request: the next request that asks for it, or NEVER."""
    again: list[list[int]] = []
    ahead: dict[int, int] = {}
    for index in range(len(keys) - 1, -1, -1):
        again.append([ahead.get(key, NEVER) for key in keys[index]])
        ahead.update(dict.fromkeys(keys[index], index))
    return again[::-1]


def hit_tokens(prompts: Prompts, cache: Cache) -> Iterator[int]:
    """Tokens that each prompt found: whole blocks, of a partly filled last one what it holds."""
    for index, num_tokens in enumerate(prompts.num_tokens):
        yield min(cache.serve(index) * prompts.block_size, num_tokens)


def hit_frac(prompts: Prompts, cache: Cache, *, warm_requests: int = 0) -> float | None:
    """Tokens found / tokens looked up, over all prompts but the first `warm_requests`, which only fill the cache;
    None if nothing is left."""
    found = sum(tokens for index, tokens in enumerate(hit_tokens(prompts, cache)) if index >= warm_requests)
    return metrics.ratio(found, sum(prompts.num_tokens[warm_requests:]))
