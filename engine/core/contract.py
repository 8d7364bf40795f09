"""The allocator contract as a check that runs: a seeded random actor over a plain Python list as KV memory.

The actor behaves like a scheduler (chunks, prefix hits, decode runs, preemption, wrong calls) and after
each action compares what the allocator says with what it did. One rule carries most of it: every live
request must read back its own tokens through its block table. Double allocation, wrong reference counts,
missing copies and wrong slots all break it, whatever the allocator looks like inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import count
from random import Random
from typing import Any

from engine.core.allocator import NO_HIT, Grant, Hit, KVAllocator, Reason, Refusal
from engine.core.decode_set import DecodeSet
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.shadow import ContractViolation, ShadowMemory, check_state, expect, snapshot
from engine.core.trials import RequestSource, advance, random_config, serve_alone, step_singly

__all__ = ["ContractViolation", "ShadowMemory", "check_state", "run_contract", "snapshot"]


Factory = Callable[[PoolConfig], KVAllocator]


def run_contract(make: Factory, *, seed: int, num_actions: int = 60, config: PoolConfig | None = None) -> int:
    """Drives one allocator through `num_actions` random actions; ContractViolation at the first broken rule.

    Without `config` the seed also draws the pool. Same arguments, same actions. How many requests were admitted."""
    rng = Random(seed)
    config = config or random_config(rng)
    history: deque[str] = deque(maxlen=12)
    try:
        actor = _Actor(make, config, rng, history)
        for _ in range(num_actions):
            actor.act()
        actor.drain()
        return actor.num_admitted
    except Exception as error:
        tail = "\n  ".join(history)
        raise ContractViolation(f"{type(error).__name__}: {error}\nseed={seed}, {config}\n  {tail}") from error


class _Actor:
    """A scheduler that does random things to one allocator and watches it."""

    def __init__(self, make: Factory, config: PoolConfig, rng: Random, history: deque[str]) -> None:
        self.make, self.config, self.rng, self.history = make, config, rng, history
        self.allocator = make(config)
        self.shadow = ShadowMemory(self.allocator.num_blocks, config.block_size)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.unsettled: list[Grant] = []
        self.has_surplus: set[Request] = set()
        self.num_admitted = 0
        self.source = RequestSource(config, rng)
        self.weights = (8, rng.choice((2, 8)), rng.choice((2, 8)), rng.choice((1, 4)), rng.choice((1, 4)), 3, 1)
        self.empty = self.allocator.stats()
        expect(self.empty.num_free == config.capacity_blocks, "a new pool is free", self.empty, config)

    def act(self) -> None:
        """One random action, then every check."""
        acts = (self.admit, self.extend, self.decode, self.preempt, self.finish, self.settle, self.misuse)
        self.rng.choices(acts, self.weights)[0]()
        self.check()

    def check(self) -> None:
        check_state(self.allocator, self.running, copying=self.copying())
        for request in self.running:
            self.shadow.check(request, request.num_computed_tokens, self.allocator.block_table(request))

    def drain(self) -> None:
        """Frees everything: nothing may be missing, and the pool must serve one more request like new."""
        while self.running:
            self.finish()
        while self.unsettled:
            self.settle()
        self.check()
        now, new = self.allocator.stats(), self.empty
        expect(now.num_free == new.num_free, "what was taken has come back", now, new)
        expect(now.largest_free_extent == new.largest_free_extent, "free extents have joined", now, new)
        expect(now.num_asked_slots == 0, "nothing is reserved in an empty pool", now)
        serve_alone(self.allocator, self.source.new_request(), self.config, self.rng, self.note)

    def last_slot(self, request: Request) -> int:
        """Tokens that the request computes in the end: its last one never gets a slot."""
        return min(request.num_prompt_tokens + request.num_stop_tokens, self.config.max_model_len) - 1

    def copying(self) -> set[int]:
        """Blocks that unsettled copies read: nobody may get them."""
        return {source for grant in self.unsettled for source, _ in grant.copies}

    def note(self, action: str, answer: object = "") -> None:
        self.history.append(f"{action} -> {answer}")

    def pure(self, question: Callable[..., Any], *args: Any) -> Any:
        """The answer, after which nothing may have changed."""
        before = self.snapshot()
        answer = question(*args)
        self.unchanged(before, f"{question.__name__} is pure")
        return answer

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.allocator, (*self.running, *self.waiting))

    def unchanged(self, before: dict[str, Any], rule: str) -> None:
        after = self.snapshot()
        changed = [name for name in before if before[name] != after[name]]
        expect(not changed, rule, *((before[name], after[name]) for name in changed))

    def lookup(self, request: Request) -> Hit:
        hit: Hit = self.pure(self.allocator.lookup, request)
        size, tokens = self.config.block_size, hit.num_tokens
        expect(0 <= tokens < request.num_tokens, "a hit leaves a token to compute", hit, request)
        expect(tokens == len(hit.block_ids) * size, "a hit is made of full blocks", hit, size)
        self.shadow.check(request, tokens, hit.block_ids)
        return hit

    def candidate(self) -> Request | None:
        """A request to admit; None if it can never be served."""
        rng = self.rng
        if self.waiting and (rng.random() < 0.5 or len(self.running) > 8):
            return self.waiting.pop(rng.randrange(len(self.waiting)))
        request = self.source.new_request()
        refusal: Refusal | None = self.pure(self.allocator.refuses_forever, request)
        if refusal is not None:
            self.note(f"refuses_forever {request}", refusal)
            expect(refusal.reason is Reason.NEVER, "refused for ever", refusal)
            return None
        if rng.random() < 0.1:
            serve_alone(self.make(self.config), self.source.new_request(), self.config, rng, self.note)
        return request

    def admit(self) -> None:
        request, rng = self.candidate(), self.rng
        if request is None:
            return
        self.waiting.append(request)
        hit = self.lookup(request) if rng.random() < 0.9 else NO_HIT
        rest = request.num_tokens - hit.num_tokens
        total = hit.num_tokens + (rest if rng.random() < 0.6 else rng.randint(1, rest))
        whole, before = rng.choice((0, request.num_tokens)), self.snapshot()
        answer = self.allocator.admit(request, total, hit, whole=whole, others_running=bool(self.running))
        self.note(f"admit {request} to {total}, hit={hit.num_tokens}, whole={whole}", answer)
        if isinstance(answer, Refusal):
            return self.refused(answer, before)
        table = [*hit.block_ids, *answer.new_blocks[0]]
        expect(list(self.allocator.block_table(request)) == table, "table = hit + new", request.blocks, table)
        expect(answer.num_computed_tokens == hit.num_tokens, "a hit needs no computation", answer, hit)
        request.row = next(row for row in count() if all(other.row != row for other in self.running))
        request.order = max((other.order for other in self.running), default=0) + 1
        request.computed = hit.num_tokens
        self.num_admitted += 1
        self.running.append(self.waiting.pop(self.waiting.index(request)))
        self.ran(answer, [request], [total])

    def refused(self, answer: Refusal, before: dict[str, Any]) -> None:
        self.unchanged(before, "a refusal changes nothing")
        needed, free = answer.needed_blocks, answer.free_blocks
        expect(free == before["stats"].num_free, "a refusal knows the free blocks", answer, before["stats"])
        if answer.reason in (Reason.NO_FREE_BLOCKS, Reason.NO_HOLE, Reason.WATERMARK):
            fits = answer.reason is not Reason.NO_FREE_BLOCKS
            expect((needed <= free) is fits, "the reason fits the numbers", answer)

    def extend(self) -> None:
        rng, limit = self.rng, self.config.max_model_len
        requests = rng.sample(self.running, min(rng.choice((1, 1, 1, 2, 3)), len(self.running)))
        rooms = [min(r.num_tokens, self.last_slot(r)) - r.computed for r in requests]
        totals = [
            r.computed + rng.choice((room, rng.randint(0, room))) for r, room in zip(requests, rooms, strict=True)
        ]
        ahead, before = rng.choice((0, 0, 0, rng.randint(1, 5))), self.snapshot()
        tables = [list(self.allocator.block_table(r)) for r in requests]
        answer = self.allocator.extend(requests, totals, num_lookahead=ahead)
        self.note(f"extend {requests} to {totals}, num_lookahead={ahead}", answer)
        if isinstance(answer, Refusal):
            return self.refused(answer, before)
        self.has_surplus.update(requests if ahead else ())
        for index, (request, total) in enumerate(zip(requests, totals, strict=True)):
            table, new = list(self.allocator.block_table(request)), list(answer.new_blocks[index])
            old = [] if request in answer.moved else tables[index]
            expect(table == old + new, "table = what it was + new blocks", table, old, new)
            slots = len(table) * self.config.block_size
            expect(
                slots >= min(total + ahead, limit),
                "there is room for what was granted",
                request,
                total,
                slots,
            )
        before = self.snapshot()
        again = self.allocator.extend(requests, totals, num_lookahead=ahead)
        if isinstance(again, Grant) or not self.config.one_free_each:  # that rule counts free blocks, needed or not
            expect(isinstance(again, Grant) and not any(again.new_blocks), "extend is idempotent", again)
        self.unchanged(before, "extend is idempotent")
        self.ran(answer, requests, totals)

    def ran(self, grant: Grant, requests: Sequence[Request], totals: Sequence[int]) -> None:
        """The step with this grant: copies first, then each request writes its tokens and samples."""
        new = {block for blocks in grant.new_blocks for block in blocks}
        expect(not new & self.copying(), "blocks of unsettled copies are kept", new, self.copying())
        self.unsettled.append(grant)
        self.shadow.copy(grant.copies)
        for request, total in zip(requests, totals, strict=True):
            self.shadow.write(request, request.computed, total, self.allocator.block_table(request))
            request.computed = total
            if total == request.known and total <= self.last_slot(request):
                request.known += 1
        if self.rng.random() < 0.7:
            self.settle()

    def decode(self) -> None:
        """A run of one-token steps, as long as `free_run` allows, checked against single steps on copies."""
        period, rng = self.allocator.growth_tokens, self.rng
        members = [r for r in self.running if r.computed == r.known - 1 and r not in self.has_surplus]
        members = [r for r in members if r.computed < self.last_slot(r)]
        if period is None or not members:
            return
        if rng.random() < 0.3:
            members = [rng.choice(members)]
        limit = rng.randint(1, min(self.last_slot(r) - r.computed for r in members))
        watcher = self.watcher(members)
        hit = self.lookup(watcher) if watcher else NO_HIT
        decoding = DecodeSet.of(members, period)
        steps = self.pure(self.allocator.free_run, decoding, limit, hit.missing)
        self.note(f"decode {members}, free_run({limit}, {hit.missing!r})", steps)
        expect(0 <= steps <= limit, "free_run lies in 0..limit", steps, limit)
        copies = [deepcopy((self.allocator, decoding)) for _ in range(2)]
        before = [r.num_computed_tokens for r in members]
        done = advance(self.allocator, decoding, [steps], self.waiting)
        cut = rng.randint(0, steps)
        for rule, other in (
            ("advance = the single steps that free_run allowed", step_singly(*copies[0], steps, self.waiting)),
            ("advance(a + b) = advance(a); advance(b)", advance(*copies[1], [cut, steps - cut], self.waiting)),
        ):
            expect(done == other, rule, done, other)
        for request, start in zip(members, before, strict=True):
            decoding.remove(request)
            self.shadow.write(request, start, start + steps, self.allocator.block_table(request))
        if hit.missing is not None:
            after = self.lookup(watcher)  # type: ignore[arg-type]
            expect(after.num_tokens <= hit.num_tokens, "free_run ends before the watched commit", after, hit)

    def watcher(self, members: Sequence[Request]) -> Request | None:
        """A request whose hit grows when a member fills its next block, or one that waits."""
        sharing = [request for request in members if request.content.shares_outputs]
        if sharing and self.rng.random() < 0.7:
            twin = self.rng.choice(sharing)
            return Request("watcher", self.last_slot(twin) + 1, 1, content=twin.content)
        return self.rng.choice(self.waiting) if self.waiting else None

    def preempt(self) -> None:
        """The last one gives up its memory and waits, to compute everything again."""
        if self.running:
            request = self.running[-1]
            self.release(request)
            if request.num_tokens <= self.last_slot(request):
                self.waiting.append(request)

    def finish(self) -> None:
        if self.running:
            self.release(self.rng.choice(self.running))

    def release(self, request: Request) -> None:
        self.note(f"free {request}")
        self.allocator.free(request)
        self.running.remove(request)
        self.has_surplus.discard(request)
        request.computed, request.row = 0, -1
        expect(request.blocks is None, "a freed request holds nothing", request.blocks)
        self.wrong(KeyError, self.allocator.free, request)

    def settle(self) -> None:
        if self.unsettled:
            self.allocator.settle(self.unsettled.pop(0))

    def misuse(self) -> None:
        """Wrong calls raise before any change."""
        stranger, allocator = self.source.new_request(), self.allocator
        self.wrong(KeyError, allocator.free, stranger)
        self.wrong(KeyError, allocator.block_table, stranger)
        mixed = (*self.running[:1], stranger)
        self.wrong(KeyError, allocator.extend, mixed, [1] * len(mixed))
        self.wrong(ValueError, allocator.admit, stranger, 0)
        if self.running:
            self.wrong(ValueError, allocator.admit, self.running[0], self.running[0].num_tokens)

    def wrong(self, error: type[Exception], call: Callable[..., Any], *args: Any) -> None:
        before = self.snapshot()
        try:
            answer = call(*args)
        except error:
            self.unchanged(before, f"{call.__name__} raises before any change")
        else:
            expect(False, f"{call.__name__}{args} raises {error.__name__}", answer)
