"""What `mooncake-hit-rate` is measured on: the trace that was named, and the sizes of the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.core.allocator import MAX_BLOCKS
from experiments.exits import UsageError
from experiments.paper.trials import in_processes
from sim.cache_only import POLICIES, Paged, Prompts, hit_frac, prompts_of
from workloads import load_trace

if TYPE_CHECKING:
    from workloads import Trace

SIZES: Final = (1_756, 7_027, 56_216)
"""Blocks: those of the outside check."""
Case = tuple[str, int]
"""A policy of `sim.cache_only.POLICIES`, and the cache's blocks."""


@dataclass(frozen=True, slots=True)
class Found:
    """One cache at the end of the trace."""

    hit_pct: float
    """Tokens found / tokens looked up in the last half of the requests, %."""
    num_refused: int = 0
    """Prompts that were larger than vLLM's pool."""


@dataclass
class CacheLab:
    """Bare prefix caches over one trace, each measured once."""

    trace: Trace | None = None
    """With block ids; None: nothing can be measured."""
    sizes: tuple[int, ...] = SIZES
    _done: dict[Case, Found] = field(default_factory=dict)
    _prompts: Prompts | None = None

    @classmethod
    def of(cls, path: Path | None, sizes: Sequence[int] = ()) -> CacheLab:
        """ValueError for a trace that cannot be read or has no block ids, for sizes below 1 or without a trace."""
        if path is None:
            if sizes:
                raise ValueError("--cache-blocks are sizes of caches over a trace: name one with --trace FILE")
            return cls()
        trace = load_trace(path).trace
        prompts = prompts_of(trace)
        if len(prompts) < 2:
            raise ValueError(f"{path}: {len(prompts)} requests; half of them warm the cache, the others are measured")
        if small := [size for size in sizes if size < 1]:
            raise ValueError(f"--cache-blocks: a cache needs at least one block, got {small[0]}")
        if large := [size for size in sizes if size > MAX_BLOCKS]:
            raise ValueError(f"--cache-blocks: a cache has at most {MAX_BLOCKS:,} blocks, got {large[0]:,}")
        return cls(trace, tuple(dict.fromkeys(sizes)) or SIZES, _prompts=prompts)

    @property
    def prompts(self) -> Prompts:
        """Of the trace; only where there is one."""
        assert self._prompts is not None, "no trace was named"
        return self._prompts

    @property
    def unbounded(self) -> int:
        """Blocks that no cache of this trace can fill."""
        return max(sum(map(len, self.prompts.keys)), 1)

    @property
    def is_public_conversation(self) -> bool:
        """Whether this is the trace that the outside check was made on, in whatever file: 12,031 requests, 288,500
        blocks of 512 tokens, 182,790 of them different."""
        keys = self.prompts.keys
        facts = (len(keys), sum(map(len, keys)), len({key for one in keys for key in one}), self.prompts.block_size)
        return facts == (12_031, 288_500, 182_790, 512)

    def found(self, cases: Sequence[Case], jobs: int = 1) -> list[Found]:
        """The caches' hit rates, in order."""
        missing = [case for case in dict.fromkeys(cases) if case not in self._done]
        self._done |= zip(missing, in_processes(partial(tried, self.prompts), missing, jobs), strict=True)
        return [self._done[case] for case in cases]


def tried(prompts: Prompts, case: Case) -> Found:
    """One cache over the whole trace; what the first half finds is not counted."""
    policy, size = case
    cache = POLICIES[policy](prompts, size)
    found = hit_frac(prompts, cache, warm_requests=len(prompts) // 2)
    assert found is not None, "the last half of the requests asks for no tokens"
    return Found(100 * found, cache.num_refused if isinstance(cache, Paged) else 0)


def sizes_of(text: str | None) -> tuple[int, ...]:
    """`1756,7027` as numbers of blocks, None as no wish; UsageError for anything else."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--cache-blocks needs a comma list of whole numbers, got {text!r}") from None
