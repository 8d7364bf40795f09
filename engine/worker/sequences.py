"""What an executor knows of each sequence beyond its row: its tokens, how it samples, which search it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.worker.ran import Ran, RowSampling
from engine.worker.searches import Searches, is_beam
from engine.worker.tokens import RequestTokens

if TYPE_CHECKING:
    from engine.core.batch import Chunk, Fork
    from engine.core.group import Group
    from engine.core.request import Request
    from engine.worker.beam_search import BeamParams, Survivors


class Booked(NamedTuple):
    """What came of a step's tokens."""

    stopped: list[Request]
    sampled: dict[Request, int]
    """Of sequences that are forked now."""
    beams: list[tuple[Group, list[int]]]
    changed: bool
    """Whether a sequence goes on with another token than the device has sampled."""


class Sequences:
    """Sequences from their first admission, or their fork, to their last token."""

    def __init__(
        self,
        vocab_size: int,
        sampling: Callable[[Request], RowSampling] | None = None,
        stops: Callable[[Request, Sequence[int]], bool] | None = None,
        beams: Callable[[Request], BeamParams] | None = None,
    ) -> None:
        """As for a `ModelExecutor`."""
        self._vocab_size = vocab_size
        self._asks = sampling
        self._stops = stops
        self.searches = Searches(beams)
        self.tokens: dict[Request, RequestTokens] = {}
        self._sampling: dict[Request, RowSampling] = {}
        self.outputs: dict[object, list[int]] = {}
        """Output tokens of sequences that are over, by `output_key`."""

    def open(self, request: Request) -> None:
        """A request was admitted, for the first time or again. ValueError for tokens that cannot be."""
        if request in self.tokens:
            return
        self.tokens[request] = own = RequestTokens(request, self._vocab_size)
        if own.forced and is_beam(request):
            raise ValueError(
                f"request {request.request_id!r}: a search finds its outputs, and the content names others"
            )
        self._ask(request)

    def _ask(self, request: Request) -> None:
        if self._asks is not None:
            self._sampling[request] = self._asks(request)

    def sample_from(self, chunk: Chunk) -> Sequence[Request]:
        """Who samples from the logits of a chunk that completes: every member of a group that is to be forked, each
        with random numbers of its own. A search begins with one beam. Outputs that the content names are the first
        member's."""
        request, group = chunk.request, chunk.request.group
        if group is None or group.forked or group.beam:
            return (request,)
        for member in group.members:
            if member is not request:
                self.tokens[member] = self.tokens[request].fork(0)
                self._ask(member)
        return group.members

    def follow(self, forks: Sequence[Fork]) -> None:
        """The allocator's content of forked sequences is where their tokens are kept from now on."""
        for _, child, _ in forks:
            if child in self.tokens:
                self.tokens[child].follow(child.content)

    # sampling -----------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> bool:
        """Whether anybody says how to sample; else all are greedy."""
        return self._asks is not None

    def filtered(self, requests: Sequence[Request]) -> bool:
        """Whether some of them sample with top-k or top-p."""
        return self.samples and any(self._sampling[request].filtered for request in requests)

    def columns(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        """`RowSampling.columns` of these, or of nobody where all are greedy."""
        return RowSampling.columns([self._sampling[request] for request in requests] if self.samples else ())

    def ran(self, requests: list[Request], sampled: torch.Tensor) -> Ran:
        """What is to be booked once a step of these has been waited for."""
        own = [self.tokens[request] for request in requests]
        left = min((tokens.limit - tokens.num_outputs for tokens in own), default=0)
        simple = self._stops is None and not any(tokens.forced for tokens in own)
        simple = simple and not any(request.group is not None for request in requests)
        puts = [tokens.kept.append for tokens in own] if simple else []
        beams = any(is_beam(request) for request in requests)
        return Ran(requests, own, puts, sampled[: len(requests)].numpy(), self.filtered(requests), left, beams)

    # after the step -----------------------------------------------------------------------------------------------

    def book(self, ran: Ran) -> Booked:
        """Keeps the sampled tokens; who stops, and which beams live on."""
        sampled = ran.sampled.tolist()
        ran.left -= 1
        if ran.puts:
            for put, token in zip(ran.puts, sampled, strict=True):
                put(token)
            pairs = zip(ran.requests, ran.tokens, strict=True) if ran.left <= 0 else ()
            return Booked([r for r, own in pairs if own.num_outputs >= own.limit], {}, [], False)
        booked = Booked([], {}, [], False)
        changed = False
        for request, own, token in zip(ran.requests, ran.tokens, sampled, strict=True):
            if is_beam(request):
                continue
            changed |= own.append(token) != token  # forced: the device must go on from another token
            if own.num_outputs >= own.limit or (self._stops is not None and self._stops(request, own.outputs)):
                booked.stopped.append(request)
            if request.group is not None and not request.group.forked:
                booked.sampled[request] = token
        for group, survivors in self.searches.advance():
            changed = True
            if survivors is None:
                booked.stopped.extend(group.members)
            else:
                self._branch(group, survivors, booked)
        return booked._replace(changed=changed)

    def _branch(self, group: Group, survivors: Survivors, booked: Booked) -> None:
        """Beams that live on get their token; the places of those that died get a copy and another one."""
        members, parents = group.members, survivors.parents
        before = {place: self.tokens[members[place]] for place in set(parents)}
        count = before[parents[0]].num_outputs
        for place, (member, parent, token) in enumerate(zip(members, parents, survivors.tokens, strict=True)):
            if parent != place:
                self.tokens[member] = before[parent].fork(count)
                booked.sampled[member] = token
                if not group.forked:
                    self._ask(member)
            self.tokens[member].append(token)
        if group.forked:
            booked.beams.append((group, parents))

    def close(self, request: Request) -> None:
        """The sequence is over; what it has sampled is kept until somebody takes it."""
        self._sampling.pop(request, None)
        own = self.tokens.pop(request, None)
        if is_beam(request):
            found = self.searches.results[request.request_id]
            self.outputs[output_key(request)] = found[request.sample].tokens
        elif own is not None:
            self.outputs[output_key(request)] = own.outputs


def output_key(request: Request) -> object:
    """The name of a sequence's outputs: the request's id; of a group with the place in it."""
    return request.request_id if request.group is None else (request.request_id, request.sample)
