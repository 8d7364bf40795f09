"""Sequences that start from one prompt: the samples of a request, or the beams of a search (SOSP'23 section 4.4).

The first member computes the prompt; when that is done the others are forked from it. From then on each member is a
request of its own to the allocator, with a table, a row and a decode clock, while the scheduler seats, serves and
preempts them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.core.content import TokenContent
from engine.core.request import Request, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.core.content import Content


class Group:
    """The members of one request, in the order in which they were made; all have its id."""

    __slots__ = ("answer", "beam", "forked", "gathering", "members")

    def __init__(self, members: Sequence[Request], *, beam: bool = False) -> None:
        self.members = tuple(members)
        self.beam = beam
        """Whether members die and are replaced by copies of others after each step."""
        self.forked = False
        """Whether the prompt has been computed once, so that every member has tokens of its own."""
        self.answer: Content | None = None
        """Of a search whose answer others repeat: the content of its best beam, known for it when the search is over.
        The simulator has no logits, so whoever is in the leader's place then is the best one."""
        self.gathering = False
        """Whether the members are computed again after a preemption, each up to its last sampled token; then they go on
        together."""

    @property
    def leader(self) -> Request:
        """The member that stands for all of them in the queue and in the tables of results."""
        return self.members[0]

    def live(self) -> list[Request]:
        """Members that have not sampled their last token."""
        return [member for member in self.members if member.status is not Status.FINISHED]


def in_group(request: Request, width: int, *, beam: bool = False) -> Request:
    """The request, as the leader of `width` sequences that share its prompt; ValueError for less than one.

    One sequence is no group unless it is a search: that one has a beam of one.
    """
    if width < 1:
        raise ValueError(f"a group needs at least one sequence, got {width}")
    if width > 1 or beam:
        others = [_twin(request, sample) for sample in range(1, width)]
        group = Group((request, *others), beam=beam)
        for member in group.members:
            member.group = group
        if beam and request.content.shares_outputs and not isinstance(request.content, TokenContent):
            group.answer = request.content
            for member in group.members:
                member.content = group.answer.fork(request.num_prompt_tokens)
    return request


def _twin(request: Request, sample: int) -> Request:
    twin = Request(
        request.request_id,
        request.num_prompt_tokens,
        request.max_tokens,
        oracle_output_tokens=request.oracle_output_tokens,
        arrival=request.arrival,
        priority=request.priority,
        content=request.content,
        skips_cache_read=request.skips_cache_read,
    )
    twin.sample = sample
    return twin


def over(finished: Iterable[Request]) -> list[Request]:
    """Of members and requests that have just finished, the requests that are over: of a group its leader, with the last
    member."""
    return list(dict.fromkeys(r if r.group is None else r.group.leader for r in finished if not _goes_on(r)))


def _goes_on(request: Request) -> bool:
    return request.group is not None and bool(request.group.live())


def members_of(request: Request) -> Sequence[Request]:
    """Who is seated, served and preempted with this request: the live members of its group, or it alone."""
    return (request,) if request.group is None else request.group.live()
