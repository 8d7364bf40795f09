"""One row a request: what happened to it, and how that is gathered while it is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.core.allocator import new_tuple

if TYPE_CHECKING:
    from engine.core.group import Group
    from engine.core.request import Request


class RequestRow(NamedTuple):
    """What happened to one request; times in picoseconds, -1 where it never came to that."""

    request_id: int
    status: str
    """finished, truncated (stopped by its limit), rejected (can never fit, or a turn after one that was turned away),
    failed (no output in the trace), unfinished (still there, or not yet sent, when the run was cut)."""
    arrival: int
    first_scheduled: int
    first_token: int
    finish: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    priority: int
    num_preemptions: int
    num_hit_tokens: int
    """Prompt tokens found in the prefix cache at first admission."""
    num_computed_tokens: int
    """Tokens computed over all admissions."""
    num_recomputed_tokens: int
    """Those of them that had been computed before and were lost."""
    preempted: int
    """Time between each preemption and the resumption that followed it, summed."""


class Progress:
    """A request under way."""

    __slots__ = (
        "computed",
        "first_scheduled",
        "first_token",
        "high",
        "hits",
        "preempted",
        "preempted_at",
        "recomputed",
        "start",
    )

    def __init__(self, first_scheduled: int = -1, hits: int = 0) -> None:
        self.first_scheduled = first_scheduled
        self.first_token = -1
        self.high = 0
        """Most tokens ever computed."""
        self.hits = hits
        self.start = hits
        """Tokens that the last admission took from the cache."""
        self.computed = 0
        self.recomputed = 0
        self.preempted = 0
        self.preempted_at = -1

    def recount(self, computed: int) -> None:
        """Books what was computed since the last admission."""
        start, high = self.start, self.high
        self.computed += computed - start
        if high > start:
            self.recomputed += max(0, min(computed, high) - start)
        if computed > high:
            self.high = computed

    def resume(self, now: int, num_tokens: int) -> None:
        """The request runs again from its first `num_tokens` tokens on."""
        self.preempted += now - self.preempted_at
        self.preempted_at = -1
        self.start = num_tokens

    def absorb(self, member: Progress) -> None:
        """What another sequence of the same group has computed belongs to the request, too."""
        self.computed += member.computed
        self.recomputed += member.recomputed

    def row(self, request: Request, status: str, finish: int) -> RequestRow:
        """The request's row as things stand."""
        fields = (
            int(request.request_id),
            status,
            request.arrival,
            self.first_scheduled,
            self.first_token,
            finish,
            request.num_prompt_tokens,
            request.num_tokens - request.num_prompt_tokens,
            request.max_tokens,
            request.priority,
            request.num_preemptions,
            self.hits,
            self.computed,
            self.recomputed,
            self.preempted,
        )
        return new_tuple(RequestRow, fields)


def stopped_as(request: Request) -> str:
    """How a request ends that has sampled its last token."""
    return "truncated" if request.max_tokens < request.oracle_output_tokens else "finished"


def num_sampled(group: Group) -> int:
    """Tokens sampled where a member completes a chunk: of the prompt, one for each sequence that will be forked."""
    return 1 if group.forked else len(group.members)


def stands_for_group(request: Request) -> bool:
    """Whether this is the member by which its group counts: the first that lives, or the leader where none does."""
    return request.group is None or request is next(iter(request.group.live()), request.group.leader)
