"""A scheduler that does random things to one allocator, each request by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random

from engine.core.allocator import NO_HIT, Grant, Reason, Refusal
from engine.core.decode_set import DecodeSet
from engine.core.observer import Factory, Observer
from engine.core.registry import PoolConfig
from engine.core.request import Request
from engine.core.shadow import expect
from engine.core.trials import advance, serve_alone, step_singly


class Actor(Observer):
    """Chunks, prefix hits, look-ahead, decode runs, preemption, wrong calls."""

    def __init__(self, make: Factory, config: PoolConfig, rng: Random, history: deque[str]) -> None:
        super().__init__(make, config, rng, history)
        acts = (self.admit, self.extend, self.decode, self.preempt, self.finish, self.settle, self.misuse)
        weights = (8, rng.choice((2, 8)), rng.choice((2, 8)), rng.choice((1, 4)), rng.choice((1, 4)), 3, 1)
        self.acts: dict[Callable[[], None], int] = dict(zip(acts, weights, strict=True))

    def act(self) -> None:
        """One random action, then every check."""
        self.rng.choices(list(self.acts), list(self.acts.values()))[0]()
        self.check()

    def drain(self) -> None:
        """Frees everything: nothing may be missing, and the pool must serve one more request like new."""
        while self.running:
            self.finish()
        self.settle_all()
        self.check()
        now, new = self.allocator.stats(), self.empty
        expect(now.num_free == new.num_free, "what was taken has come back", now, new)
        expect(now.largest_free_extent == new.largest_free_extent, "free extents have joined", now, new)
        expect(now.num_asked_slots == 0, "nothing is reserved in an empty pool", now)
        serve_alone(self.allocator, self.new_request(), self.config, self.rng, self.note)

    def new_request(self) -> Request:
        """Somebody who has not been here before."""
        return self.source.new_request()

    def candidate(self) -> Request | None:
        """A request to admit; None if it can never be served."""
        rng = self.rng
        if self.waiting and (rng.random() < 0.5 or len(self.running) > 8):
            return self.waiting.pop(rng.randrange(len(self.waiting)))
        request = self.new_request()
        refusal: Refusal | None = self.pure(self.allocator.refuses_forever, request)
        if refusal is not None:
            self.note(f"refuses_forever {request}", refusal)
            expect(refusal.reason is Reason.NEVER, "refused for ever", refusal)
            return None
        if rng.random() < 0.1:
            serve_alone(self.make(self.config), self.new_request(), self.config, rng, self.note)
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
        self.seat(request)
        request.computed = hit.num_tokens
        self.num_admitted += 1
        self.running.append(self.waiting.pop(self.waiting.index(request)))
        self.admitted(request)
        self.ran(answer, [request], [total])

    def admitted(self, request: Request) -> None:
        """A request has memory, and has not computed anything in it yet."""

    def goal(self, request: Request) -> int:
        """Tokens that the request shall have computed after its next step."""
        room = min(request.num_tokens, self.last_slot(request)) - request.computed
        return request.computed + self.rng.choice((room, self.rng.randint(0, room)))

    def extend(self) -> None:
        rng = self.rng
        requests = rng.sample(self.running, min(rng.choice((1, 1, 1, 2, 3)), len(self.running)))
        totals = [self.goal(request) for request in requests]
        ahead, before = rng.choice((0, 0, 0, rng.randint(1, 5))), self.snapshot()
        tables = [list(self.allocator.block_table(r)) for r in requests]
        answer = self.allocator.extend(requests, totals, num_lookahead=ahead)
        self.note(f"extend {requests} to {totals}, num_lookahead={ahead}", answer)
        if isinstance(answer, Refusal):
            return self.refused(answer, before)
        self.has_surplus.update(requests if ahead else ())
        for index, (request, total) in enumerate(zip(requests, totals, strict=True)):
            self.extended(request, tables[index], answer, answer.new_blocks[index], total + ahead)
        before = self.snapshot()
        again = self.allocator.extend(requests, totals, num_lookahead=ahead)
        if isinstance(again, Grant) or not self.config.one_free_each:  # that rule counts free blocks, needed or not
            expect(isinstance(again, Grant) and not any(again.new_blocks), "extend is idempotent", again)
        self.unchanged(before, "extend is idempotent")
        self.ran(answer, requests, totals)

    def extended(self, request: Request, before: list[int], grant: Grant, new: Sequence[int], total: int) -> None:
        """A table has grown, and only the tables of moved requests have changed in what they held."""
        table, size, copies = list(self.allocator.block_table(request)), self.config.block_size, set(grant.copies)
        if request in grant.moved:
            held = before[: -(-request.computed // size)]
            kept = all(old == now or (old, now) in copies for old, now in zip(held, table, strict=False))
            expect(kept, "what moves is copied", before, table, grant.copies)
            expect(set(new) <= set(table), "new blocks are the request's", table, new)
        else:
            expect(table == before + list(new), "table = what it was + new blocks", table, before, new)
        slots, wanted = len(table) * size, min(total, self.config.max_model_len)
        expect(slots >= wanted, "there is room for what was granted", request, wanted, slots)

    def decode(self) -> None:
        """A run of one-token steps, as long as `free_run` allows, checked against single steps on copies."""
        period, rng = self.allocator.growth_tokens, self.rng
        members = [r for r in self.running if r.computed == r.known - 1 and r not in self.has_surplus]
        members = [r for r in members if r.num_prompt_tokens <= r.computed < self.last_slot(r)]
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
        self.left(request)
        request.computed = 0
        expect(request.blocks is None, "a freed request holds nothing", request.blocks)
        self.wrong(KeyError, self.allocator.free, request)

    def left(self, request: Request) -> None:
        """The request has no memory any more."""
        self.running.remove(request)
        self.has_surplus.discard(request)
        request.row = -1

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
