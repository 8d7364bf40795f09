"""Which beams of a search live on: a model of ancestry, as simulated requests have no logits (SOSP'23 section 6.3).

Each beam has a score, the sum of its tokens' log-probabilities. At each step the first candidate of a beam costs it an
exponential amount, and each further candidate costs an exponential amount more than the one before; the best `width`
candidates of all beams live on, as in beam search itself. `spread` is how much more a further candidate costs than the
first one, on average: confident models have a large one, so that beams seldom branch, and share little. The paper
reports memory, not ancestries, so `spread` is the one free parameter; experiments say which value they use.
"""

from __future__ import annotations

from heapq import nlargest
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from engine.core.batch import Batch
    from engine.core.group import Group
    from engine.core.request import Request

DEFAULT_SPREAD = 1.0


class Ancestry:
    """Draws the survivors of each step of each search; the same for a search whatever runs beside it."""

    def __init__(self, seed: int = 0, spread: float = DEFAULT_SPREAD) -> None:
        """`spread` is relative to the mean cost of a first candidate. ValueError if it is negative."""
        if spread < 0:
            raise ValueError(f"spread must not be negative, got {spread}")
        self._seed = seed
        self._spread = spread
        self._searches: dict[Group, tuple[Random, list[float]]] = {}
        """Under way: random numbers and scores of the beams."""

    def select(self, batch: Batch, stopped: Collection[Request]) -> Sequence[tuple[Group, Sequence[int]]]:
        """The searches that took a step in this batch, with the place that each place's beam comes from."""
        groups: dict[Group, None] = {}
        if batch.decodes.num_beams:
            groups.update((r.group, None) for r in batch.decodes if r.group is not None and r.group.beam)
        for request, _, _, completes in batch.chunks:
            if completes and request.group is not None and request.group.beam and request.group.forked:
                groups[request.group] = None
        ended = {request.group for request in stopped if request.group is not None}
        for group in ended:
            self._searches.pop(group, None)
        return [(group, self._step(group)) for group in groups if group not in ended]

    def _step(self, group: Group) -> list[int]:
        width = len(group.members)
        if group not in self._searches:
            # A string: seeds of tuples would depend on hashes.
            self._searches[group] = Random(f"{self._seed}/{group.leader.request_id}"), [0.0] * width
        rng, scores = self._searches[group]
        best = nlargest(width, self._candidates(rng, scores, width))
        by_parent: dict[int, list[float]] = {}
        for score, parent in best:
            by_parent.setdefault(parent, []).append(score)
        parents = list(range(width))
        spare = iter([place for place in range(width) if place not in by_parent])
        for parent, kept in by_parent.items():
            scores[parent] = kept[0]
            for score in kept[1:]:
                place = next(spare)
                parents[place], scores[place] = parent, score
        return parents

    def _candidates(self, rng: Random, scores: Sequence[float], width: int) -> list[tuple[float, int]]:
        """(score, parent) of the first `width` continuations of each beam."""
        found = []
        for parent, score in enumerate(scores):
            for rank in range(width):
                score -= rng.expovariate(1.0) * (self._spread if rank else 1.0)
                found.append((score, parent))
        return found
