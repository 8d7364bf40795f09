"""The part of the random actor that needs several sequences: forks, groups, and steps in which some give way.

An allocator that cannot fork or swap is not asked to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from engine.core.actor import Actor
from engine.core.allocator import EMPTY_GRANT, Grant, Reason, Refusal
from engine.core.group import in_group
from engine.core.observer import Factory
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.shadow import expect

MAX_SEQUENCES = 12
"""Enough to share in every way; more only cost time."""

Draft = dict[Request, tuple[Grant, int]]
"""Who was served in a step: the grant, and the tokens computed after it."""


class SharingActor(Actor):
    """Several sequences at a time."""

    def __init__(self, make: Factory, config: PoolConfig, rng: Random, history: deque[str]) -> None:
        super().__init__(make, config, rng, history)
        self.pool: Any = self.allocator
        self.swapped: list[list[Request]] = []
        """Who was swapped out together."""
        self.can_fork, self.can_swap = hasattr(self.pool, "fork"), bool(getattr(self.pool, "host_blocks", 0))
        self.group_frac = rng.choice((0.0, 0.2, 0.5)) if self.can_fork else 0.0
        if self.can_fork:
            self.acts[self.fork] = rng.choice((1, 4, 8))
        self.acts[self.step] = rng.choice((2, 8))

    # sequences from one prompt ------------------------------------------------------------------------------------

    def new_request(self) -> Request:
        request, rng = super().new_request(), self.rng
        return in_group(request, rng.randint(2, 4)) if rng.random() < self.group_frac else request

    def admitted(self, request: Request) -> None:
        """Where memory is not shared the whole group has its own now."""
        for member in request.group.members[1:] if request.group else ():
            if member.blocks is not None:
                self.seat(member)
                self.joining.append(member)

    def act(self) -> None:
        super().act()
        for leader in [r for r in self.running if r.group is not None and r.computed >= r.num_prompt_tokens]:
            self.fork_group(leader)

    def fork_group(self, leader: Request) -> None:
        """The prompt is computed: the group falls apart into sequences of their own."""
        assert leader.group is not None
        others = leader.group.members[1:]
        for member in leader.group.members:
            member.group = None
        expect(self.share(leader, others, leader.computed), "a group that was admitted is forked", leader)
        self.check()

    def fork(self) -> None:
        """Sequences that begin with another one's tokens, all of them or its full blocks: new ones, and some that give
        up what they held."""
        rng, size = self.rng, self.config.block_size
        parents = [request for request in self.running if request.group is None]
        if not parents:
            return
        parent = rng.choice(parents)
        count = parent.computed if rng.random() < 0.7 else parent.computed // size * size
        kin = [r for r in parents if r is not parent and self.source.alike(r, parent)]
        children = rng.sample(kin, rng.randint(0, len(kin))) if rng.random() < 0.5 else []
        if len(self.running) < MAX_SEQUENCES:
            children += [self.source.twin(parent) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        if children and count:
            self.share(parent, children, count)

    def share(self, parent: Request, children: Sequence[Request], count: int) -> bool:
        """Forks; False if that is refused."""
        before = self.snapshot()
        answer = self.pool.fork(parent, children, count if self.rng.random() < 0.5 or count < parent.computed else None)
        self.note(f"fork {list(children)} from {parent} at {count}", answer)
        if isinstance(answer, Refusal):
            self.refused(answer, before)
            return False
        self.granted(answer)
        self.shadow.copy(answer.copies)
        for child in children:
            child.content = self.source.branch(parent, count)
            self.shadow.forget(child)
            self.has_surplus.discard(child)
            if child not in self.running:
                if child in self.joining:
                    self.joining.remove(child)
                else:
                    self.seat(child)
                self.running.append(child)
            child.computed, child.known = count, parent.known
        held = -(-count // self.config.block_size)
        tables = {tuple(self.allocator.block_table(request)[:held]) for request in (parent, *children)}
        shared = len(tables) == 1
        expect(shared is not bool(answer.copies), "children share the parent's blocks or have copies", tables, answer)
        return True

    def release(self, request: Request) -> None:
        super().release(request)
        for member in request.group.members[1:] if request.group else ():
            if member in self.joining:
                self.allocator.free(member)
                self.joining.remove(member)
                member.row = -1

    def misuse(self) -> None:
        super().misuse()
        size, stranger = self.config.block_size, self.source.new_request()
        if self.can_fork:
            self.wrong(KeyError, self.pool.fork, stranger, [self.source.twin(stranger)])
        for parent in self.running[:1] if self.can_fork else ():
            for count in (parent.computed + 1, parent.computed - 1):
                if count % size:
                    self.wrong(ValueError, self.pool.fork, parent, [self.source.twin(parent)], count)
        if self.can_swap:
            self.wrong(KeyError, self.pool.swap_in, [stranger], [1])
            self.wrong(KeyError, self.pool.swap_out, [*self.running[:1], stranger])
        self.misuse_twice()

    def misuse_twice(self) -> None:
        """Sequences that are named twice, are their own children, or are in host memory."""
        one = self.source.new_request()
        for parent in self.running[:1] if self.can_fork else ():
            for children in ([parent], [one, one]):
                self.wrong(ValueError, self.pool.fork, parent, children)
        if self.can_swap:
            for request in self.running[:1]:
                self.wrong(ValueError, self.pool.swap_out, [request, request])
            for request in self.swapped[0][:1] if self.swapped else ():
                self.wrong(ValueError, self.pool.swap_in, [request], [request.computed - 1])
                self.wrong(ValueError, self.pool.swap_in, [request, request], [request.computed + 1] * 2)
                self.wrong(ValueError, self.pool.admit, request, request.computed + 1)
                for parent in self.running[:1] if self.can_fork else ():
                    self.wrong(ValueError, self.pool.fork, parent, [request])

    # steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A step as a scheduler decides it, before anything of it runs: some are served, some give way (even those that
        have been served), some come back. Then all of it runs together."""
        rng = self.rng
        self.settle_all()
        draft: Draft = {}
        swaps: list[Grant] = []
        for request in rng.sample(self.running, rng.randint(0, min(len(self.running), 5))):
            if request in self.running:
                self.serve(draft, request)
            if self.running and rng.random() < 0.3:
                self.give_way(draft, swaps)
        if self.swapped and rng.random() < 0.5:
            members = rng.choice(self.swapped)
            part = members if rng.random() < 0.7 else rng.sample(members, rng.randint(1, len(members)))
            self.bring_back(part, draft, swaps)
        self.run(draft, swaps)

    def serve(self, draft: Draft, request: Request) -> None:
        total, before = self.goal(request), self.snapshot()
        table = list(self.allocator.block_table(request))
        answer = self.allocator.extend((request,), (total,))
        self.note(f"step: extend {request} to {total}", answer)
        if isinstance(answer, Refusal):
            return self.refused(answer, before)
        self.extended(request, table, answer, answer.new_blocks[0], total)
        self.granted(answer)
        draft[request] = answer, total

    def give_way(self, draft: Draft, swaps: list[Grant]) -> None:
        """One that runs, perhaps with those that share its blocks, loses its memory: to the host, or for good."""
        rng = self.rng
        first = rng.choice(self.running)
        if first.group is not None:
            return
        held = set(self.allocator.block_table(first))
        kin = [r for r in self.running if r.group is None and held & set(self.allocator.block_table(r))]
        victims = kin if rng.random() < 0.6 else [first]
        if not (self.can_swap and rng.random() < 0.8 and self.swap_out(victims, swaps)):
            for request in victims:
                self.release(request)
                if request.num_tokens <= self.last_slot(request):
                    self.waiting.append(request)
        for request in victims:
            if request in draft:
                grant, _ = draft.pop(request)
                self.unsettled.remove(grant)
                self.allocator.settle(grant)  # its copies are left out of the step
        self.allocator.check()

    def swap_out(self, victims: Sequence[Request], swaps: list[Grant]) -> bool:
        """False, and no change, if host memory is full."""
        before, free = self.snapshot(), self.pool.num_free_host_blocks
        answer = self.pool.swap_out(victims)
        self.note(f"step: swap_out {list(victims)}", answer)
        if isinstance(answer, Refusal):
            self.unchanged(before, "a refused swap-out changes nothing")
            expect(answer.reason is Reason.NO_HOST_BLOCKS, "a swap-out lacks host blocks, or nothing", answer)
            expect(answer.needed_blocks > answer.free_blocks == free, "the reason fits the numbers", answer, free)
            return False
        taken = free - self.pool.num_free_host_blocks
        expect(len(answer.to_host) == taken, "each block goes to a host block of its own", answer, taken)
        for request in victims:
            expect(request.blocks is None, "a swapped request holds nothing", request.blocks)
            self.left(request)
        self.swapped.append(list(victims))
        swaps.append(answer)
        return True

    def bring_back(self, back: Sequence[Request], draft: Draft, swaps: list[Grant]) -> Refusal | None:
        """These have memory again, in this step; the refusal if there is none."""
        rng = self.rng
        totals = [r.computed + rng.randint(0, min(r.known, self.last_slot(r)) > r.computed) for r in back]
        before, reserve = self.snapshot(), bool(self.running)
        answer = self.pool.swap_in(back, totals, others_running=reserve)
        self.note(f"step: swap_in {back} to {totals}", answer)
        if isinstance(answer, Refusal):
            self.refused(answer, before)
            return answer
        for request, total, new in zip(back, totals, answer.new_blocks, strict=True):
            table = self.allocator.block_table(request)
            expect(list(table) == list(new), "a request comes back to new blocks", table, new)
            self.seat(request)
            self.running.append(request)
            draft[request] = EMPTY_GRANT, total
        left = [[request for request in members if request not in back] for members in self.swapped]
        self.swapped = [members for members in left if members]
        swaps.append(answer)
        return None

    def run(self, draft: Draft, swaps: Sequence[Grant]) -> None:
        """To the host, to the device, copies, then everybody computes; then the grants settle, now or later."""
        self.shadow.swap(
            [pair for grant in swaps for pair in grant.to_host], [pair for grant in swaps for pair in grant.to_device]
        )
        self.shadow.copy([pair for grant, _ in draft.values() for pair in grant.copies])
        for request, (_, total) in draft.items():
            self.computed(request, total)
        self.unsettled += swaps
        if self.rng.random() < 0.7:
            self.settle_all()

    def drain(self) -> None:
        """Who is in host memory comes back, where the pool has room for it at all, and finishes with the others."""
        for members in self.swapped[:]:
            while self.running:
                self.finish()
            self.settle_all()
            draft: Draft = {}
            swaps: list[Grant] = []
            refusal = self.bring_back(members, draft, swaps)
            if refusal is not None:
                expect(refusal.needed_blocks > self.config.capacity_blocks, "alone, they come back", refusal)
            self.run(draft, swaps)
            self.check()
        super().drain()
        if self.can_swap and not self.swapped:
            free, all_of_them = self.pool.num_free_host_blocks, self.pool.host_blocks
            expect(free == all_of_them, "host memory has come back", free, all_of_them)
