"""Embedding and head of a rank that has a part of the vocabulary: both give what the whole matrices would.

Each token's row lies on one rank and all others add zeros, so the sum of the embeddings is exact. The parts of the
logits are gathered, and rank 0, which samples, puts them together; the other ranks have no logits.
"""

from __future__ import annotations

import torch

from engine.model.collectives import Collectives
from engine.model.share import Share


class Vocabulary:
    """Over weights [Vp, E] that hold the rows of `Share.vocabulary` first, then zeros."""

    def __init__(self, vocab_size: int, like: torch.Tensor, max_rows: int, ranks: Collectives) -> None:
        """Buffers for the logits of `max_rows` rows, where `like` lies and of its type."""
        self._ranks = ranks
        self._vocab_size = vocab_size
        self._ids = Share(ranks.rank, ranks.size).vocabulary(vocab_size)
        self._logits = like.new_empty(max_rows, vocab_size if ranks.rank == 0 else 0)
        each = -(-vocab_size // ranks.size)
        self._part = like.new_empty(max_rows * each if ranks.size > 1 else 0)
        self._parts = like.new_empty(ranks.size * self._part.numel())
        self._each = each

    def embed(self, weight: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Rows of the whole embedding into out [T, E], on every rank."""
        if self._ranks.size == 1:
            torch.index_select(weight, 0, ids, out=out)
            return
        here = (ids >= self._ids.start) & (ids < self._ids.stop)
        torch.index_select(weight, 0, (ids - self._ids.start).clamp(0, self._each - 1), out=out)
        out.masked_fill_(~here[:, None], 0)
        self._ranks.all_reduce(out)

    def logits(self, weight: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
        """Logits [S, V] of final [S, E], in a buffer; [S, 0] on all ranks but the first."""
        num_rows, size, each = final.shape[0], self._ranks.size, self._each
        logits = self._logits[:num_rows]
        if size == 1:
            return torch.mm(final, weight.t(), out=logits)
        part = self._part[: num_rows * each].view(num_rows, each)
        parts = self._parts[: size * num_rows * each].view(size, num_rows, each)
        torch.mm(final, weight.t(), out=part)
        self._ranks.all_gather(part, parts)
        for rank in range(size if self._ranks.rank == 0 else 0):
            ids = Share(rank, size).vocabulary(self._vocab_size)
            logits[:, ids.start : ids.stop].copy_(parts[rank, :, : len(ids)])
        return logits
