"""Continuous batching with one token budget a step, as in vLLM 0.33: no phases, every request catches up.

A step first serves the running requests in running order, preempting by recompute where memory runs out, then, if
nothing was preempted, admits waiting ones until the head does not fit. While all that running requests need is one
token each and the memory is there, the step is taken in bulk and costs nothing per request; otherwise the running
list is walked request by request, exactly as vLLM does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from engine.core.allocator import KVAllocator, Refusal
from engine.core.batch import Admission, Batch, Chunk, Draft, Preemption
from engine.core.decode_set import DecodeSet
from engine.core.limits import PrefixCounters, SchedulerConfig
from engine.core.request import Request, Status
from engine.core.waiting import FcfsQueue, PriorityQueue, WaitingQueue

if TYPE_CHECKING:
    from engine.core.batch import StepResult

_order = attrgetter("order")


class Scheduler:
    """Decides each step over one allocator. It knows neither the clock nor true output lengths."""

    def __init__(self, config: SchedulerConfig, allocator: KVAllocator) -> None:
        self.config = config
        self.allocator = allocator
        self.waiting: WaitingQueue = FcfsQueue() if config.policy == "fcfs" else PriorityQueue()
        self.running: dict[Request, None] = {}
        """Running order: order of admission."""
        self.decodes = DecodeSet(allocator.growth_tokens)
        self.prefix = PrefixCounters()
        self._catching_up: list[Request] = []
        """Running requests that owe more than their last sampled token, in running order."""
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._next_order = 0
        self._watch: Hashable = None
        self._budget = config.max_num_batched_tokens
        self._bulk = allocator.growth_tokens is not None
        """Whether the allocator can serve pure decode steps without a look at each request."""
        self._caches = bool(getattr(allocator, "enable_caching", False))

    # requests -----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queues a request that the allocator does not refuse for ever."""
        self.waiting.append(request)

    def refuses_forever(self, request: Request) -> bool:
        """Whether the request can never be served: longer than the model or than the pool."""
        too_long = request.num_prompt_tokens + request.max_tokens > self.config.max_model_len
        return too_long or self.allocator.refuses_forever(request) is not None

    def arrival_matters(self) -> bool:
        """Whether a new arrival could be admitted, so that a run of equal steps must end at it."""
        return len(self.running) < self.config.max_num_seqs and (not self.waiting or self.config.policy == "priority")

    @property
    def may_run_on(self) -> bool:
        """Whether the next batch can be steady: all that run decode."""
        return not self._catching_up

    @property
    def may_coast(self) -> bool:
        """Whether all that there are decode: nobody waits, nobody catches up."""
        return not (self.waiting or self._catching_up)

    # one step -----------------------------------------------------------------------------------------------------

    def schedule(self, horizon: int = 1) -> Batch:
        """Decides one step and takes its memory; computed tokens advance at once.

        If the step is steady (nothing but decoding: nobody admitted, preempted or catching up), the batch stands for as
        many equal steps, at most `horizon`, as memory surely lasts and the queue's head surely stays refused.
        """
        self._watch = None
        decodes = self.decodes
        if not self.waiting and not self._catching_up:
            steps = self._steps_in_bulk(horizon)
            if steps:
                return self._decode(steps)
        first_growth = len(decodes.growing()) if horizon > 1 else 0
        step = Draft(self._budget)
        self._serve_running(step)
        decodes.clock += 1
        chunks = [self._compute(request, count) for request, count in step.chunks.items()]
        head_refusal = self._admit_waiting(step, chunks) if self.waiting and not step.preempted else None
        batch = Batch(
            decodes,
            chunks,
            step.admitted,
            step.preempted,
            [pair for grant in step.moves.values() for pair in grant.copies] if step.moves else (),
            list(step.moves.values()),
            head_refusal,
            len(self.waiting),
        )
        if horizon > 1 and batch.steady and not self._catching_up:
            self._go_on(batch, first_growth, self.allocator.free_run(decodes, horizon - 1, self._watch))
        return batch

    def _steps_in_bulk(self, limit: int) -> int:
        """Steps, at most `limit`, in which budget and memory surely suffice for every decoding request."""
        decodes, allocator = self.decodes, self.allocator
        if not self._bulk or len(decodes.members) > self._budget:
            return 0
        return allocator.free_run(decodes, limit) if decodes.members else 1

    def _decode(self, steps: int) -> Batch:
        """A batch of pure decode steps."""
        decodes = self.decodes
        growth = decodes.growth_counts(steps) if steps > 1 else ()
        self.allocator.advance(decodes, steps)
        decodes.clock += 1
        batch = Batch(decodes, ())
        batch.num_steps, batch.growth = steps, growth
        decodes.clock += steps - 1
        return batch

    def coast(self, limit: int) -> Sequence[int] | None:
        """Pure decode steps, at most `limit`, without a batch: how many requests take memory in each of them.

        Only where `may_coast`. None, and no change, where memory may not last: then `schedule` must decide.
        """
        decodes = self.decodes
        if not self._bulk or len(decodes.members) > self._budget:
            return None
        steps = self.allocator.free_run(decodes, limit)
        if not steps:
            return None
        growth = decodes.growth_counts(steps)
        self.allocator.advance(decodes, steps)
        decodes.clock += steps
        decodes.sampled = decodes.clock
        return growth

    def _go_on(self, batch: Batch, first_growth: int, more: int) -> None:
        """Lets a steady batch stand for `more` steps after the one that it was decided for."""
        if more and self.allocator.growth_tokens is not None:
            decodes = self.decodes
            batch.num_steps, batch.growth = 1 + more, [first_growth, *decodes.growth_counts(more)]
            self.allocator.advance(decodes, more)
            decodes.clock += more

    def _compute(self, request: Request, count: int) -> Chunk:
        request.computed += count
        return Chunk(request, request.computed - count, count, request.computed == request.known)

    def _serve_running(self, step: Draft) -> None:
        decodes, late = self.decodes, self._catching_up
        if not self._decodes_come_first(step):
            left = [request for request in list(self.running) if not self._serve(step, request)]
        elif self._steps_in_bulk(1):
            self.allocator.advance(decodes, 1)
            step.budget -= len(decodes.members)
            left = [request for request in list(late) if not self._serve(step, request)] if late else late
        else:
            left = self._serve_short_of_memory(step)
        for request in left:
            if request.decoding is not None:  # no budget left: it owes its token until a later step
                decodes.remove(request)
                insort(late, request, key=_order)

    def _decodes_come_first(self, step: Draft) -> bool:
        """Whether every decoding request gets its token before anything else is served, memory permitting."""
        enough = self._bulk and len(self.decodes.members) <= step.budget
        return enough and (not self._catching_up or self._come_last(self._catching_up))

    def _serve_short_of_memory(self, step: Draft) -> list[Request]:
        """Only requests that need a block can be refused; the others' tokens fit in what they hold."""
        late = list(self._catching_up)
        order: Sequence[Request]
        if getattr(self.allocator, "one_free_each", False):
            order = list(self.decodes)
        elif self.decodes.num_sharing:  # those that fill a block have it committed, too
            order = self.decodes.crossing()
        else:
            order = list(self.decodes.growing())
        budget = step.budget
        for request in order:
            self._serve(step, request)
        step.budget = budget - len(self.decodes.members)
        return [request for request in late if not self._serve(step, request)]

    def _come_last(self, late: list[Request]) -> bool:
        """Whether those who catch up are the last to be served, and the first to be preempted: in front of decoding
        requests they would take budget and blocks before them; by priority a decoding one may be the victim."""
        if self.config.policy == "priority":
            return False
        tail = {id(request) for request in islice(reversed(self.running), len(late))}
        return all(id(request) in tail for request in late)

    def _serve(self, step: Draft, request: Request) -> bool:
        """Gives one running request its tokens, preempting others (or itself) for memory; False if no budget."""
        if request.status is not Status.RUNNING:
            return True
        if step.budget <= 0:
            return False
        decoding = request.decoding is not None
        computed = request.num_computed_tokens
        count = 1 if decoding else self._capped(request.known - computed)
        count = min(count, step.budget, self.config.max_model_len - 1 - computed)
        while True:
            grant = self.allocator.extend((request,), (computed + count,))
            if not isinstance(grant, Refusal):
                break
            victim = self._victim()
            self._preempt(step, victim)
            if victim is request:
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

    def _victim(self) -> Request:
        """FCFS: the last of the running list. Priority: the last in the order of the queue, so that among equals the
        first one keeps what it has and progress is certain."""
        if self.config.policy == "fcfs":
            return next(reversed(self.running))
        return max(self.running, key=lambda r: (r.priority, r.arrival, r.request_id))

    def _preempt(self, step: Draft, victim: Request) -> None:
        """Takes all memory back; the victim's whole sequence will be recomputed."""
        step.budget += step.decodes.pop(victim, 0) + step.chunks.pop(victim, 0)
        moved = step.moves.pop(victim, None)
        step.preempted.append(Preemption(victim, victim.num_computed_tokens))
        self._leave(victim)
        if moved is not None:
            self.allocator.settle(moved)  # its copies are left out of the batch: nobody reads the old extent
        victim.computed = 0
        victim.status = Status.PREEMPTED
        victim.num_preemptions += 1
        self.waiting.put_back(victim)

    def _leave(self, request: Request) -> None:
        """The request stops running: memory and row are free again."""
        if request.decoding is not None:
            self.decodes.remove(request)
        elif request in self._catching_up:
            self._catching_up.remove(request)
        self.allocator.free(request)
        del self.running[request]
        self._free_rows.append(request.row)
        request.row = -1

    def _admit_waiting(self, step: Draft, chunks: list[Chunk]) -> Refusal | None:
        """Admits from the head on; the refusal if memory stopped it."""
        config, waiting, running, allocator = self.config, self.waiting, self.running, self.allocator
        while waiting and step.budget > 0 and len(running) < config.max_num_seqs:
            request = waiting.head()
            hit = allocator.lookup(request)
            self._watch = hit.missing
            known = request.known
            count = self._capped(known - hit.num_tokens)
            if count > step.budget:
                if not config.chunked_prefill:
                    return None
                count = step.budget
            whole = known if config.full_sequence_gate else 0
            grant = allocator.admit(request, hit.num_tokens + count, hit, whole=whole, others_running=bool(running))
            if isinstance(grant, Refusal):
                return grant
            waiting.pop_head()
            self._watch = None
            step.budget -= count
            self._start(step, request, hit.num_tokens)
            chunks.append(self._compute(request, count))
        return None

    def _start(self, step: Draft, request: Request, num_hit_tokens: int) -> None:
        resumed = request.status is Status.PREEMPTED
        counters = self.prefix
        if self._caches and resumed:
            counters.preempted_queries += request.known
            counters.preempted_hits += num_hit_tokens
        elif self._caches:
            counters.queries += request.known
            counters.hits += num_hit_tokens
        step.admitted.append(Admission(request, num_hit_tokens, resumed))
        request.status = Status.RUNNING
        request.computed = num_hit_tokens
        request.row = self._free_rows.pop()
        request.order = self._next_order
        self._next_order += 1
        self.running[request] = None
        self._catching_up.append(request)

    # after the step -----------------------------------------------------------------------------------------------

    def update(self, batch: Batch, result: StepResult) -> list[Request]:
        """Books what the batch did: sampled tokens and stops. The finished requests, in running order."""
        decodes = self.decodes
        decodes.sampled = decodes.clock
        for grant in batch.grants:
            self.allocator.settle(grant)
        for chunk in batch.chunks:
            if chunk.completes:
                request = chunk.request
                request.known += 1
                self._catching_up.remove(request)
                decodes.add(request)
        return self.finish(result.stopped) if result.stopped else []

    def finish(self, stopped: Sequence[Request]) -> list[Request]:
        """These have sampled their last tokens: they leave, in running order."""
        finished = sorted(stopped, key=_order) if len(stopped) > 1 else list(stopped)
        for request in finished:
            request.status = Status.FINISHED
            self._leave(request)
        return finished
