"""The beam searches under way in an executor: candidates from a step's logits on the device, the choice on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from engine.worker.beam_search import BeamParams, BeamSearch, Hypothesis, Survivors
from engine.worker.host_memory import on

if TYPE_CHECKING:
    from engine.core.group import Group
    from engine.core.request import Request


def is_beam(request: Request) -> bool:
    """Whether it is a member of a search."""
    return request.group is not None and request.group.beam


class Searches:
    """Beam searches by group; each takes a step whenever its members do."""

    def __init__(self, params: Callable[[Request], BeamParams] | None = None) -> None:
        """`params` is asked once a search, with its first member; None: beams end at their forced length."""
        self._params = params
        self._searches: dict[Group, BeamSearch] = {}
        self._scored: list[tuple[Group, slice]] = []
        """Searches of the step that was launched, and their rows among its candidates."""
        self._logprobs = torch.empty(0, 0)
        self._tokens = torch.empty(0, 0, dtype=torch.int64)
        self.results: dict[object, list[Hypothesis]] = {}
        """What searches that are over have found, by request id; best first."""

    def _search_of(self, group: Group) -> BeamSearch:
        search = self._searches.get(group)
        if search is None:
            leader, width = group.leader, len(group.members)
            params = BeamParams(width, leader.num_stop_tokens) if self._params is None else self._params(leader)
            search = self._searches[group] = BeamSearch(params)
        return search

    def score(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        """Commands only: the log-probabilities of the likeliest tokens of every beam, and their way to the host.

        `requests`: whose logits [N, V] these are; of a search either its first member, before it is forked, or all.
        """
        groups: dict[Group, dict[int, int]] = {}
        for row, request in enumerate(requests):
            if request.group is not None and request.group.beam:
                groups.setdefault(request.group, {})[request.sample] = row
        self._scored = []
        if not groups:
            return
        rows: list[int] = []
        for group, by_place in groups.items():
            self._scored.append((group, slice(len(rows), len(rows) + len(by_place))))
            rows += [by_place[place] for place in sorted(by_place)]
        count = min(max(self._search_of(group).params.num_candidates for group in groups), logits.shape[1])
        chosen = logits.index_select(0, on(logits.device, rows))
        top = torch.log_softmax(chosen.float(), -1).topk(count)
        self._logprobs, self._tokens = _to_host(top.values), _to_host(top.indices)

    def advance(self) -> list[tuple[Group, Survivors | None]]:
        """The step has been waited for: each search chooses. None: it is over, and its result is there."""
        if not self._scored:
            return []
        logprobs, tokens = self._logprobs.numpy(), self._tokens.numpy()
        chosen: list[tuple[Group, Survivors | None]] = []
        for group, rows in self._scored:
            search = self._searches[group]
            survivors = search.step(logprobs[rows], tokens[rows])
            chosen.append((group, survivors))
            if survivors is None:
                self.results[group.leader.request_id] = search.hypotheses
                del self._searches[group]
        self._scored = []
        return chosen


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """There once the step has been waited for: on a device the copy is asynchronous, into pinned memory."""
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
