"""Beam search on the host: which candidates of a step live on, and which continuations are the best in the end.

As transformers 5 defines it (`num_beams`, `length_penalty`, `early_stopping` of its `generate`): scores are sums of
log-probabilities in float32; a candidate that ends is kept if it is among the `width` best of its step; a finished
continuation of T tokens scores sum / T ** length_penalty. The device computes the candidates, this chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]
MOST_PENALTY: Final = 1000
MOST_LOG_SCALE: Final = math.log(1e30)
"""Of what a sum of log-probabilities is divided by, so that scores stay within float32."""


@dataclass(frozen=True, slots=True)
class BeamParams:
    """What is searched for, and when that is over."""

    width: int
    """Beams, and continuations that come out of it."""
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end a continuation, and are kept."""
    length_penalty: float = 1.0
    """Above 0 favours long continuations, below 0 short ones."""
    early_stopping: bool | Literal["never"] = False
    """True: over as soon as `width` continuations are finished; False: when the best beam, were it finished now, would
    not be among them; "never": when no beam could be, however long."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"beam_width: expected at least 1, got {self.width}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f"early_stopping: expected True, False or 'never', got {self.early_stopping!r}")
        penalty: object = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not abs(penalty) <= MOST_PENALTY:
            raise ValueError(
                f"length_penalty: expected a number from -{MOST_PENALTY} to {MOST_PENALTY}, got {penalty!r}"
            )
        if abs(penalty) * math.log(max(self.max_tokens, 1)) > MOST_LOG_SCALE:
            raise ValueError(
                f"length_penalty: {self.max_tokens} tokens ** {penalty:g} leave the range of scores; with so many "
                f"tokens at most {MOST_LOG_SCALE / math.log(self.max_tokens):.3g} either way"
            )

    @property
    def num_candidates(self) -> int:
        """Continuations of a beam that have to be looked at: enough for `width` beams that go on, should all others
        end."""
        return max(2, 1 + len(self.stop_token_ids)) * self.width


class Hypothesis(NamedTuple):
    """A finished continuation."""

    tokens: list[int]
    cumulative_logprob: float
    score: float
    """By which it was chosen: with the length penalty."""


class Survivors(NamedTuple):
    """Of one step, by place: whose beam goes on there, and the token that it goes on with."""

    parents: list[int]
    tokens: list[int]


class BeamSearch:
    """One search. Beams have places 0 to width - 1; one that goes on does so in its own place."""

    def __init__(self, params: BeamParams) -> None:
        self.params = params
        self.hypotheses: list[Hypothesis] = []
        """Finished ones, best first, at most `width`."""
        self._sequences: list[list[int]] = [[]]
        """Output tokens by place; before the first step there is one beam."""
        self._scores: Float32s = np.zeros(1, np.float32)

    @property
    def full(self) -> bool:
        """Whether as many continuations are finished as were asked for."""
        return len(self.hypotheses) == self.params.width

    def step(self, logprobs: Float32s, tokens: Int64s) -> Survivors | None:
        """Takes a step with the likeliest tokens [beams, candidates] of each place, best first; None: it was the last.

        There is one beam in the first step. ValueError for fewer candidates than the search needs.
        """
        params, width = self.params, self.params.width
        beams, each = tokens.shape
        if beams != len(self._sequences) or beams * each < params.num_candidates:
            raise ValueError(f"{beams} x {each} candidates for {len(self._sequences)} beams of {params}")
        known = np.nan_to_num(logprobs, nan=-np.inf, neginf=-np.inf)
        totals = (known + self._scores[:, None]).ravel()
        order = np.argsort(-totals, kind="stable")[: params.num_candidates]
        best, parents, chosen = totals[order], (order // each).tolist(), tokens.ravel()[order].tolist()
        length = len(self._sequences[0]) + 1
        last = length >= params.max_tokens
        ends = [last or token in params.stop_token_ids for token in chosen]
        if not (params.early_stopping is True and self.full):
            self._finish(best, parents, chosen, ends, length)
        alive = [index for index, end in enumerate(ends) if not end][:width]
        if len(alive) < width or not self._worth_it(best[alive[0]], length):
            return None
        return self._go_on([(parents[index], chosen[index], best[index]) for index in alive])

    def _finish(
        self, best: Float32s, parents: Sequence[int], chosen: Sequence[int], ends: Sequence[bool], length: int
    ) -> None:
        """Keeps those of the `width` best candidates that end, if they score better than what is there."""
        penalty = float(length**self.params.length_penalty)
        width = self.params.width
        for total, parent, token, end in zip(best[:width], parents, chosen, ends, strict=False):
            if end:
                tokens = [*self._sequences[parent], token]
                self.hypotheses.append(Hypothesis(tokens, float(total), float(total / np.float32(penalty))))
        self.hypotheses.sort(key=lambda one: -one.score)
        del self.hypotheses[width:]

    def _worth_it(self, best: np.float32, length: int) -> bool:
        """Whether the best beam may still displace a finished continuation."""
        params = self.params
        if not self.full:
            return True
        if params.early_stopping is True:
            return False
        longest = params.early_stopping == "never" and params.length_penalty > 0
        penalty = float((params.max_tokens if longest else length) ** params.length_penalty)
        return bool(best / np.float32(penalty) > self.hypotheses[-1].score)

    def _go_on(self, kept: Sequence[tuple[int, int, np.float32]]) -> Survivors:
        """Gives each (parent, token, score) a place: the parent's own, or that of a beam that died."""
        alive = {parent for parent, _, _ in kept}
        spare = iter([place for place in range(self.params.width) if place not in alive])
        taken: set[int] = set()
        parents, tokens = [0] * len(kept), [0] * len(kept)
        scores, sequences = np.zeros(len(kept), np.float32), list[list[int]]([[]] * len(kept))
        for parent, token, score in kept:
            place = next(spare) if parent in taken else parent
            taken.add(parent)
            parents[place], tokens[place], scores[place] = parent, token, score
            sequences[place] = [*self._sequences[parent], token]
        self._sequences, self._scores = sequences, scores
        return Survivors(parents, tokens)
