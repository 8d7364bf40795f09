"""The running requests of a scheduler: who they are, how each gets its tokens of a step, and who makes room.

Requests are served in running order. Where memory runs out one of them is preempted (see `victims`). Members of a group
are served in the same step or not at all, so that none of them runs ahead.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from engine.core.allocator import KVAllocator, Refusal
from engine.core.batch import Draft
from engine.core.decode_set import DecodeSet
from engine.core.request import Request, Status
from engine.core.victims import Victims
from engine.core.waiting import FcfsQueue, PriorityQueue, WaitingQueue

if TYPE_CHECKING:
    from engine.core.group import Group
    from engine.core.limits import SchedulerConfig

_order = attrgetter("order")


class Running(Victims):
    """What runs, what waits, and the memory between them."""

    def __init__(self, config: SchedulerConfig, allocator: KVAllocator) -> None:
        super().__init__()
        self.config = config
        self.allocator = allocator
        self.waiting: WaitingQueue = FcfsQueue() if config.policy == "fcfs" else PriorityQueue()
        self.running: dict[Request, None] = {}
        """Running order: order of admission."""
        self.decodes = DecodeSet(allocator.growth_tokens)
        self._catching_up: list[Request] = []
        """Running requests that owe more than their last sampled token, in running order."""
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._budget = config.max_num_batched_tokens
        self._bulk = allocator.growth_tokens is not None
        """Whether the allocator can serve pure decode steps without a look at each request."""

    def _steps_in_bulk(self, limit: int) -> int:
        """Steps, at most `limit`, in which budget and memory surely suffice for every decoding request."""
        decodes, allocator = self.decodes, self.allocator
        if not self._bulk or len(decodes.members) > self._budget:
            return 0
        return allocator.free_run(decodes, limit) if decodes.members else 1

    def lasts(self, steps: int) -> bool:
        """Whether budget and memory surely suffice for so many steps of pure decoding; changes nothing."""
        return self._steps_in_bulk(steps) >= steps

    def _serve_running(self, step: Draft) -> None:
        decodes, late = self.decodes, self._catching_up
        in_bulk = self._bulk and len(decodes.members) <= step.budget
        if not in_bulk or (late and not self._come_last(late)):
            left = [request for request in list(self.running) if not self._serve(step, request)]
        elif not decodes.members or self.allocator.free_run(decodes, 1):
            if decodes.members:
                self.allocator.advance(decodes, 1)
                step.budget -= len(decodes.members)
            left = [request for request in list(late) if not self._serve(step, request)] if late else late
        else:
            left = self._serve_short_of_memory(step)
        for request in left:
            if request.decoding is not None:  # no budget left: it owes its token until a later step
                decodes.remove(request)
                insort(late, request, key=_order)

    def _serve_short_of_memory(self, step: Draft) -> list[Request]:
        """Only requests that need a block can be refused; the others' tokens fit in what they hold."""
        late = list(self._catching_up)
        order: Sequence[Request]
        if getattr(self.allocator, "one_free_each", False) or getattr(self.allocator, "shares_tails", False):
            order = list(self.decodes)
        elif self.decodes.num_sharing:  # those that fill a block have it committed, too
            order = self.decodes.crossing()
        else:
            order = list(self.decodes.growing())
            order = order[self._serve_while_free(step, order) :]
        budget = step.budget
        for request in order:
            self._serve(step, request)
        step.budget = budget - len(self.decodes.members)
        return [request for request in late if not self._serve(step, request)]

    def _serve_while_free(self, step: Draft, order: Sequence[Request]) -> int:
        """Gives the first of those who need a block each theirs, as many as are free; how many that are."""
        if getattr(self.allocator, "contiguous", False):
            return 0  # growing may move: each has to be looked at
        clock = self.decodes.clock + 1
        totals = [request.base + clock for request in order]
        refusal = self.allocator.extend(order, totals)
        if not isinstance(refusal, Refusal):
            served = len(order)
        else:
            served = min(refusal.free_blocks, len(order))
            if isinstance(self.allocator.extend(order[:served], totals[:served]), Refusal):
                return 0
        for request in order[:served]:
            step.decodes[request] = 1
        return served

    def _come_last(self, late: list[Request]) -> bool:
        """Whether those who catch up are the last to be served, and the first to be preempted, so that all decoding
        requests get their tokens before them, memory permitting. In front of those they would take budget and blocks
        first; by priority a decoding one may be the victim."""
        if self.config.victim_rule != "last":
            return False
        tail = {id(request) for request in islice(reversed(self.running), len(late))}
        return all(id(request) in tail for request in late)

    def _serve(self, step: Draft, request: Request) -> bool:
        """Gives one running request its tokens, preempting others (or itself) for memory; False if no budget."""
        if request.status is not Status.RUNNING:
            return True
        group = request.group
        if step.budget <= 0 or (group is not None and step.budget < _num_in_step(step, group)):
            return False
        decoding = request.decoding is not None
        computed = request.num_computed_tokens
        if decoding:
            count = 1
        else:
            goal = goal_of(request)
            if computed >= goal:
                return True  # it waits for the rest of its group
            count = self._capped(goal - computed)
        count = min(count, step.budget, self.config.max_model_len - 1 - computed)
        while True:
            grant = self.allocator.extend((request,), (computed + count,))
            if not isinstance(grant, Refusal):
                break
            victim = self._victim()
            self._preempt(step, victim)
            if request not in self.running:
                return True
        if grant.moved:
            step.moves[request] = grant
        (step.decodes if decoding else step.chunks)[request] = count
        step.budget -= count
        return True

    def _capped(self, count: int) -> int:
        limit = self.config.long_prefill_token_threshold
        if 0 < limit < count and len(self.running) + len(self.waiting) > 1:
            return limit
        return count


def goal_of(request: Request) -> int:
    """Tokens that a request that does not decode has to compute: all that it knows, so that it samples the next one. A
    member of a group that is put together again stops one short of that."""
    group = request.group
    return request.known - (group is not None and group.gathering)


def _num_in_step(step: Draft, group: Group) -> int:
    """Tokens that the members need to take a step together, those served already not counted."""
    if not group.forked or group.gathering:
        return 1
    return sum(m not in step.decodes and m not in step.chunks for m in group.live())
