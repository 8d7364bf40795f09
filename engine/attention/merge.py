"""The merge law of online softmax: attention over a set of tokens from attention over its parts, in any order.

A state is the largest score m, the sum l of exp(score - m), and the sum acc of exp(score - m) * value (the chapter's
section 4.6, after Milakov & Gimelshein 2018). Two states merge by rescaling both to the larger m; the empty state
(m = -inf, l = 0) is the identity; merging is associative and commutative up to rounding. Only the end divides. A
finished part is its output and its log-sum-exp, lse = m + log(l), which merge alike. Any floating type; nothing here
widens it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEVER = float("-inf")
"""Score of a token that is not seen, largest score and lse of an empty set."""


def _shift(m: torch.Tensor) -> torch.Tensor:
    """m where something was seen, else 0: exp(-inf - -inf) would be NaN."""
    return torch.where(m == NEVER, torch.zeros_like(m), m)


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxState:
    """Running maximum m [..., R], sum l [..., R] and weighted values acc [..., R, D] of R rows of queries."""

    m: torch.Tensor
    l: torch.Tensor  # noqa: E741 - the papers' symbol
    acc: torch.Tensor

    @classmethod
    def empty(
        cls, rows: tuple[int, ...], head_size: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> SoftmaxState:
        """Nothing seen yet."""
        m = torch.full(rows, NEVER, dtype=dtype, device=device)
        return cls(m, torch.zeros_like(m), torch.zeros(*rows, head_size, dtype=dtype, device=device))

    def absorb(self, scores: torch.Tensor, values: torch.Tensor) -> SoftmaxState:
        """The state after N more tokens: scores [..., R, N], -inf where unseen, and values [..., N, D].

        Weights are taken relative to the new maximum, so that none exceeds 1. Values are multiplied by the weights:
        a value that no row sees must still be finite.
        """
        if not scores.shape[-1]:
            return self
        m = torch.maximum(self.m, scores.amax(-1))
        shift = _shift(m)
        kept = torch.exp(self.m - shift)
        weights = torch.exp(scores - shift[..., None])
        return SoftmaxState(
            m, self.l * kept + weights.sum(-1), self.acc * kept[..., None] + weights.to(values.dtype) @ values
        )

    def merge(self, other: SoftmaxState) -> SoftmaxState:
        """The state of both sets of tokens together."""
        m = torch.maximum(self.m, other.m)
        shift = _shift(m)
        mine, theirs = torch.exp(self.m - shift), torch.exp(other.m - shift)
        return SoftmaxState(
            m, self.l * mine + other.l * theirs, self.acc * mine[..., None] + other.acc * theirs[..., None]
        )

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [..., R, D] and lse [..., R]; 0 and -inf for a row that saw nothing."""
        seen = self.l != 0  # NaN counts as seen: it must reach the output
        total = torch.where(seen, self.l, torch.ones_like(self.l))
        lse = torch.where(seen, self.m + torch.log(total), torch.full_like(self.m, NEVER))
        return torch.where(seen[..., None], self.acc / total[..., None], torch.zeros_like(self.acc)), lse


def merge_outputs(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [..., D] and lse [...] of two disjoint sets of tokens together.

    Computed in lse's type; the output keeps its own. A side with lse = -inf is empty and its output is not looked at,
    whatever it holds; +inf means empty too (FlashAttention's sign of an empty row, as vLLM reads it).
    """
    infinite = torch.full_like(lse_a, NEVER)
    lse_a, lse_b = (torch.where(lse == -NEVER, infinite, lse) for lse in (lse_a, lse_b))
    m = torch.maximum(lse_a, lse_b)
    shift = _shift(m)
    weight_a, weight_b = torch.exp(lse_a - shift), torch.exp(lse_b - shift)
    total = weight_a + weight_b
    safe = torch.where(total != 0, total, torch.ones_like(total))
    parts = [
        torch.where((lse == NEVER)[..., None], torch.zeros_like(out), out).to(lse.dtype) * (weight / safe)[..., None]
        for out, lse, weight in ((out_a, lse_a, weight_a), (out_b, lse_b, weight_b))
    ]
    return (parts[0] + parts[1]).to(out_a.dtype), torch.where(total != 0, m + torch.log(safe), infinite)
