"""What a generation gives back: completions, and what it did to KV memory on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.allocator import AllocatorStats
    from engine.core.batch import Batch


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation of a prompt."""

    index: int
    token_ids: list[int]
    text: str
    """Empty where the model has no tokenizer."""
    finish_reason: str
    """`stop`: an end-of-sequence or stop token, or a stop text; `length`: max_tokens or the model's length."""
    cumulative_logprob: float | None = None
    """Sum of the tokens' log-probabilities, of a beam search."""
    score: float | None = None
    """That with the length penalty, by which a beam search has ordered its completions, best first."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its completions."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion] = field(default_factory=list)


@dataclass(slots=True)
class MemoryUse:
    """What one call of `LLM.generate` did. Blocks unless the name says otherwise."""

    num_steps: int = 0
    num_preemptions: int = 0
    """Sequences that lost their memory, swapped or not."""
    num_swaps_refused: int = 0
    """Preemptions that had to recompute because host memory was full."""
    copied_blocks: int = 0
    """On the device: copies on write, and in contiguous memory forks and moves."""
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    most_used_blocks: int = 0
    """Blocks with an owner at once, each counted once."""
    most_shared_blocks: int = 0
    """Blocks that sharing saved at once: references beyond the first."""
    queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache, at first admission."""
    hit_tokens: int = 0
    """Of those, found there."""

    def add(self, batch: Batch, stats: AllocatorStats) -> None:
        """A step, and the pool as it was during it."""
        self.num_steps += 1
        self.num_preemptions += len(batch.preempted)
        self.copied_blocks += len(batch.copies)
        self.swapped_out_blocks += len(batch.to_host)
        self.swapped_in_blocks += len(batch.to_device)
        self.most_used_blocks = max(self.most_used_blocks, stats.num_referenced)
        self.most_shared_blocks = max(self.most_shared_blocks, stats.num_extra_references)
