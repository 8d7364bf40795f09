"""What watches one allocator while something is done to it: KV memory as a plain list, and every check of the contract.

It holds no opinion about what a scheduler would do next; see `actor` for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

from engine.core.allocator import Grant, Hit, KVAllocator, Reason, Refusal
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.shadow import ShadowMemory, check_state, expect, snapshot
from engine.core.trials import RequestSource

Factory = Callable[[PoolConfig], KVAllocator]


class Observer:
    """One allocator, the requests in it, and what each of them must read back."""

    def __init__(self, make: Factory, config: PoolConfig, rng: Random, history: deque[str]) -> None:
        self.make, self.config, self.rng, self.history = make, config, rng, history
        self.allocator = make(config)
        self.shadow = ShadowMemory(self.allocator.num_blocks, config.block_size)
        self.running: list[Request] = []
        self.joining: list[Request] = []
        """Members of admitted groups that hold memory before they are forked."""
        self.waiting: list[Request] = []
        self.unsettled: list[Grant] = []
        self.has_surplus: set[Request] = set()
        self.num_admitted = 0
        self.source = RequestSource(config, rng)
        self.empty = self.allocator.stats()
        expect(self.empty.num_free == config.capacity_blocks, "a new pool is free", self.empty, config)

    # questions ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that must hold between two actions."""
        check_state(self.allocator, [*self.running, *self.joining], copying=self.copying())
        for request in self.running:
            self.shadow.check(request, request.num_computed_tokens, self.allocator.block_table(request))

    def last_slot(self, request: Request) -> int:
        """Tokens that the request computes in the end: its last one never gets a slot."""
        return min(request.num_prompt_tokens + request.num_stop_tokens, self.config.max_model_len) - 1

    def copying(self) -> set[int]:
        """Blocks that unsettled copies read: nobody may get them."""
        return {source for grant in self.unsettled for source, _ in grant.copies}

    def note(self, action: str, answer: object = "") -> None:
        """For the message of a violation."""
        self.history.append(f"{action} -> {answer}")

    def pure(self, question: Callable[..., Any], *args: Any) -> Any:
        """The answer, after which nothing may have changed."""
        before = self.snapshot()
        answer = question(*args)
        self.unchanged(before, f"{question.__name__} is pure")
        return answer

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.allocator, (*self.running, *self.joining, *self.waiting))

    def unchanged(self, before: dict[str, Any], rule: str) -> None:
        after = self.snapshot()
        changed = [name for name in before if before[name] != after[name]]
        expect(not changed, rule, *((before[name], after[name]) for name in changed))

    def refused(self, answer: Refusal, before: dict[str, Any]) -> None:
        self.unchanged(before, "a refusal changes nothing")
        needed, free = answer.needed_blocks, answer.free_blocks
        expect(free == before["stats"].num_free, "a refusal knows the free blocks", answer, before["stats"])
        if answer.reason in (Reason.NO_FREE_BLOCKS, Reason.NO_HOLE, Reason.WATERMARK):
            fits = answer.reason is not Reason.NO_FREE_BLOCKS
            expect((needed <= free) is fits, "the reason fits the numbers", answer)

    def lookup(self, request: Request) -> Hit:
        hit: Hit = self.pure(self.allocator.lookup, request)
        size, tokens = self.config.block_size, hit.num_tokens
        expect(0 <= tokens < request.num_tokens, "a hit leaves a token to compute", hit, request)
        expect(tokens == len(hit.block_ids) * size, "a hit is made of full blocks", hit, size)
        self.shadow.check(request, tokens, hit.block_ids)
        return hit

    def wrong(self, error: type[Exception], call: Callable[..., Any], *args: Any) -> None:
        """A call that must raise before any change."""
        before = self.snapshot()
        try:
            answer = call(*args)
        except error:
            self.unchanged(before, f"{call.__name__} raises before any change")
        else:
            expect(False, f"{call.__name__}{args} raises {error.__name__}", answer)

    # what every action does ---------------------------------------------------------------------------------------

    def seat(self, request: Request) -> None:
        """A row and a place in running order."""
        seated = (*self.running, *self.joining)
        request.row = next(row for row in count() if all(other.row != row for other in seated))
        request.order = max((other.order for other in seated), default=0) + 1

    def granted(self, grant: Grant) -> None:
        """What the grant hands out is read by no copy that has not settled; from now on its own sources are kept."""
        given = {block for blocks in grant.new_blocks for block in blocks}
        if grant.moved:
            given.update(target for _, target in grant.copies)
        expect(not given & self.copying(), "blocks of unsettled copies are kept", given, self.copying())
        self.unsettled.append(grant)

    def computed(self, request: Request, total: int) -> None:
        """The request computes its tokens up to that one, and samples at the end."""
        self.shadow.write(request, request.computed, total, self.allocator.block_table(request))
        request.computed = total
        if total == request.known and total <= self.last_slot(request):
            request.known += 1

    def ran(self, grant: Grant, requests: Sequence[Request], totals: Sequence[int]) -> None:
        """The step with this grant: copies first, then each request writes its tokens and samples."""
        self.granted(grant)
        self.shadow.copy(grant.copies)
        for request, total in zip(requests, totals, strict=True):
            self.computed(request, total)
        if self.rng.random() < 0.7:
            self.settle()

    def settle(self) -> None:
        if self.unsettled:
            self.allocator.settle(self.unsettled.pop(0))

    def settle_all(self) -> None:
        while self.unsettled:
            self.settle()
