"""Content given by runs of texts: a prompt is so many tokens of one text, then so many of another.

A text has a number and a token at every position of a prompt; its last run goes on through the answer. So a system
prompt before a conversation, or examples before a question, are two numbers and two lengths, exact at every block
size, and the next turn of a conversation finds the answers of the turns before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate

from engine.core.content import BranchContent, ChainedIds, Content, Run


class RunContent:
    """Keys = (number of the runs up to there, index of the engine's block), as one negative integer."""

    __slots__ = ("_chains", "_starts", "shares_outputs", "texts")
    shares_prompt = True

    def __init__(self, runs: Sequence[int], chains: ChainedIds, *, shares_outputs: bool) -> None:
        """`runs`: text, tokens, text, tokens, ...; the last text goes on behind its tokens. `chains` is that of all
        requests that may share. `shares_outputs`: whether another request's prompt holds this one's answer."""
        self.texts = tuple(runs[::2])
        self._starts = [0, *accumulate(runs[1:-1:2])]
        # A run is known by its text and everything before it, so lengths are links of the chain too.
        self._chains = chains.chain(runs[:-1])[::2]
        self.shares_outputs = shares_outputs

    def keys(self, start: int, stop: int, block_size: int) -> Sequence[Hashable]:
        """Negative integers, so that they never meet private keys."""
        chain, starts = self._chains, self._starts
        if len(chain) == 1 or start * block_size >= starts[-1]:
            first = (chain[-1] << 40) + 1
            return range(-(first + start), -(first + stop), -1)
        return [
            -((chain[bisect_right(starts, (i + 1) * block_size - 1) - 1] << 40) + i + 1) for i in range(start, stop)
        ]

    def fork(self, num_tokens: int) -> Content:
        """Private from there on: only one answer is in the next prompt."""
        return BranchContent(self, num_tokens)

    def runs(self, num_tokens: int) -> list[Run]:
        """The runs of the first `num_tokens` tokens, those of an answer included."""
        stops = [*self._starts[1:], max(num_tokens, self._starts[-1])]
        cut = [Run(*run) for run in zip(self.texts, self._starts, stops, strict=True) if run[1] < num_tokens]
        return [run._replace(stop=min(run.stop, num_tokens)) for run in cut]
