"""Who gives way when memory runs out, and what becomes of what it had computed.

Sequences of a group are preempted together (SOSP'23 section 4.5): either all of them keep their place or none does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.core.allocator import Refusal
from engine.core.batch import Draft, Preemption
from engine.core.group import members_of
from engine.core.request import Request, Status

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.decode_set import DecodeSet
    from engine.core.limits import SchedulerConfig
    from engine.core.waiting import WaitingQueue


class Victims:
    """Preemption: the part of a scheduler that takes memory back."""

    config: SchedulerConfig
    allocator: KVAllocator
    waiting: WaitingQueue
    running: dict[Request, None]
    decodes: DecodeSet
    _catching_up: list[Request]
    _free_rows: list[int]

    def __init__(self) -> None:
        self.swapped: list[list[Request]] = []
        """Groups, or single requests, in host memory, in the order in which they will come back."""
        self.num_swaps_refused = 0
        """Victims that were recomputed because host memory was full."""

    def _victim(self) -> Request:
        """One member of the victims. Last: of the running list. Priority: in the order of the queue, so that among
        equals the first one keeps what it has and progress is certain. Least computed: who loses least, the last one
        among equals."""
        rule = self.config.victim_rule
        if rule == "last":
            return next(reversed(self.running))
        if rule == "priority":
            return max(self.running, key=lambda r: (r.priority, r.arrival, r.request_id, r.sample))
        leaders = {members_of(request)[0]: None for request in self.running}
        return min(leaders, key=lambda r: (sum(m.num_computed_tokens for m in members_of(r)), -r.order))

    def _preempt(self, step: Draft, victim: Request) -> None:
        """Takes all memory of the victim and its group back; it will be recomputed or swapped in again."""
        members = members_of(victim)
        for member in members:
            step.budget += step.decodes.pop(member, 0) + step.chunks.pop(member, 0)
        moved = [grant for member in members if (grant := step.moves.pop(member, None)) is not None]
        swap = self._swap_out(step, members) if self._keeps(members) else False
        for member in reversed(members):
            if member.status is Status.RUNNING:
                step.preempted.append(Preemption(member, member.num_computed_tokens, swap))
            self._leave(member)
        for grant in moved:
            self.allocator.settle(grant)  # its copies are left out of the batch: nobody reads the old blocks
        for member in members:
            member.num_preemptions += 1
            member.status = Status.SWAPPED if swap else Status.PREEMPTED
            member.computed = member.computed if swap else 0
        if swap:
            self._put_aside(list(members))
        else:
            self.waiting.put_back(members[0])

    def _put_aside(self, members: list[Request]) -> None:
        """Into the queue of those that are swapped out: as in that of the waiting, to the front or to their place."""
        if self.config.policy == "fcfs":
            self.swapped.insert(0, members)
        else:
            insort(self.swapped, members, key=lambda group: (group[0].priority, group[0].arrival, group[0].request_id))

    def _keeps(self, members: Sequence[Request]) -> bool:
        """Whether these are swapped, not recomputed: never what is about to fork or to be put together again."""
        group, rule = members[0].group, self.config.preemption
        if rule == "recompute" or (rule == "auto" and len(members) == 1):
            return False
        if group is not None and not (group.forked and all(m.num_tokens - m.num_computed_tokens == 1 for m in members)):
            return False
        return members[0].num_computed_tokens > 0

    def _swap_out(self, step: Draft, members: Sequence[Request]) -> bool:
        grant = self.allocator.swap_out(members)  # type: ignore[attr-defined]
        if isinstance(grant, Refusal):
            self.num_swaps_refused += 1
            return False
        step.swaps = [*step.swaps, grant]
        return True

    def _leave(self, request: Request) -> None:
        """The request stops running: memory, if it has any, and row are free again."""
        if request.decoding is not None:
            self.decodes.remove(request)
        elif request in self._catching_up:
            self._catching_up.remove(request)
        if request.blocks is not None:
            self.allocator.free(request)
        del self.running[request]
        self._free_rows.append(request.row)
        request.row = -1
