"""How much KV memory so many requests of a mean length need, and how many a pool of blocks holds.

The rough estimate of capacity planning (section 4.8 of the chapter): every request counts with its full length, prompt
and output. Requests of one age mixture hold less, since half of the output is still to come: that is what an estimate
that reckons with preemption counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """A load: tokens of a request on average, and how many requests run at the same time. ValueError for numbers
    below one."""

    mean_prompt_tokens: float
    mean_output_tokens: float
    concurrency: int | None = None
    """None: only the largest number is asked for."""

    def __post_init__(self) -> None:
        for name in ("mean_prompt_tokens", "mean_output_tokens"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 1):
                raise ValueError(f"need {name} of at least 1, got {value}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"need a concurrency of at least 1, got {self.concurrency}")

    @property
    def tokens_each(self) -> float:
        """KV of one request at its end: prompt and output."""
        return self.mean_prompt_tokens + self.mean_output_tokens

    @property
    def mean_tokens_each(self) -> float:
        """KV of one request, averaged over the time in which it decodes: half of its output is there."""
        return self.mean_prompt_tokens + self.mean_output_tokens / 2

    def tokens(self) -> int | None:
        """Of all requests at their full length, rounded up; None without a concurrency."""
        return None if self.concurrency is None else math.ceil(self.concurrency * self.tokens_each)

    def fit(self, num_blocks: int, block_size: int, tokens_each: float | None = None) -> Fit:
        """Against a pool of `num_blocks` blocks on each rank; `tokens_each` replaces the full length."""
        blocks_each = math.ceil((self.tokens_each if tokens_each is None else tokens_each) / block_size)
        needed = None if self.concurrency is None else self.concurrency * blocks_each
        return Fit(num_blocks, block_size, blocks_each, needed, num_blocks // blocks_each)


@dataclass(frozen=True, slots=True)
class Fit:
    """A load beside a pool. Blocks are those of one rank; every rank has as many."""

    num_blocks: int
    block_size: int
    blocks_each: int
    """Whole blocks of one request."""
    blocks_needed: int | None
    """Of the asked concurrency."""
    largest_concurrency: int

    @property
    def fits(self) -> bool | None:
        """Whether the pool has the blocks; None without a concurrency."""
        return None if self.blocks_needed is None else self.blocks_needed <= self.num_blocks

    @property
    def used_frac(self) -> float | None:
        """Blocks needed / blocks there are; None without a concurrency."""
        return None if self.blocks_needed is None else self.blocks_needed / self.num_blocks
