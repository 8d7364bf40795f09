"""Tokens over time: the highest rate of a run, and the latencies of a request whose steps may give several tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.metrics import PS, mean, ratio


def peak_rate(stretches: Iterable[tuple[int, int]], least: int = PS) -> float | None:
    """Most tokens a second over adjoining groups of stretches (picoseconds, tokens), each at least `least` long; what
    is left at the end belongs to the last group. So the groups tile the window, and no mean over it exceeds the peak.
    None for an empty window."""
    groups: list[tuple[int, int]] = []
    width = tokens = 0
    for more_width, more_tokens in stretches:
        width, tokens = width + more_width, tokens + more_tokens
        if width >= least:
            groups.append((width, tokens))
            width = tokens = 0
    if width and groups:
        last_width, last_tokens = groups.pop()
        width, tokens = width + last_width, tokens + last_tokens
    if width:
        groups.append((width, tokens))
    return max((rate for width, tokens in groups if (rate := ratio(tokens * PS, width)) is not None), default=None)


@dataclass(frozen=True, slots=True)
class Stream:
    """The tokens of one request as they came: `times_s[i]` is when step i gave `counts[i]` tokens, at least one."""

    arrival_s: float
    times_s: Sequence[float]
    counts: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.counts):
            raise ValueError(f"{len(self.times_s)} times for {len(self.counts)} counts of tokens")
        if any(count < 1 for count in self.counts):
            raise ValueError(f"every step gives at least one token, got {list(self.counts)}")
        if any(later < earlier for earlier, later in pairwise((self.arrival_s, *self.times_s))):
            raise ValueError("times must not fall, and must not lie before the arrival")

    @property
    def ttft_s(self) -> float | None:
        """First token - arrival; None without a token."""
        return self.times_s[0] - self.arrival_s if self.times_s else None

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / (tokens - 1), from two tokens on."""
        tokens = sum(self.counts)
        return (self.times_s[-1] - self.times_s[0]) / (tokens - 1) if tokens > 1 else None

    @property
    def inter_token_s(self) -> list[float]:
        """Gaps between tokens: a step of k tokens after a gap of d makes k of d / k. The time to the first token is
        none of them, and tokens that came with the first one have no gap. Their mean is `tpot_s`."""
        first = [0.0] * (self.counts[0] - 1) if self.counts else []
        gaps = zip(self.step_gaps_s, self.counts[1:], strict=True)
        return first + [gap / count for gap, count in gaps for _ in range(count)]

    @property
    def step_gaps_s(self) -> list[float]:
        """Gaps between steps that gave tokens: what vLLM and SGLang call inter-token latency."""
        return [later - earlier for earlier, later in pairwise(self.times_s)]

    @property
    def mean_inter_token_s(self) -> float | None:
        """Of `inter_token_s`."""
        return mean(self.inter_token_s)
