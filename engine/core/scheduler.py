"""Continuous batching with one token budget a step, as in vLLM 0.33: no phases, every request catches up.

A step first serves the running requests in running order, preempting where memory runs out, then, if nothing was
preempted, brings back who was swapped out and, if nobody is left there, admits waiting ones until the head does not
fit. While all that running requests need is one token each and the memory is there, the step is taken in bulk and costs
nothing per request; otherwise the running list is walked request by request, exactly as vLLM does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from engine.core.allocator import KVAllocator, Refusal, new_tuple
from engine.core.batch import Admission, Batch, Chunk, Draft, SwapIn
from engine.core.content import TokenContent
from engine.core.forking import Groups, shorter
from engine.core.limits import PrefixCounters, SchedulerConfig
from engine.core.request import Request, Status
from engine.core.running import Running

if TYPE_CHECKING:
    from engine.core.batch import StepResult

_order = attrgetter("order")
RUNNING, PREEMPTED, FINISHED = Status.RUNNING, Status.PREEMPTED, Status.FINISHED


class Scheduler(Running):
    """Decides each step over one allocator. It knows neither the clock nor true output lengths."""

    def __init__(self, config: SchedulerConfig, allocator: KVAllocator) -> None:
        super().__init__(config, allocator)
        self.prefix = PrefixCounters()
        if config.preemption == "swap" and not getattr(allocator, "host_blocks", 0):
            raise ValueError("preemption='swap' needs an allocator with host memory: kv.host_blocks is 0")
        self._next_order = 0
        self._groups = Groups(allocator, self.decodes, self._catching_up)
        self._watch: Hashable = None
        self._caches = bool(getattr(allocator, "enable_caching", False))
        self._catch_up = getattr(allocator, "catch_up", None)

    # requests -----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queues a request that the allocator does not refuse for ever. ValueError for a group that it cannot fork."""
        if request.group is not None and not hasattr(self.allocator, "fork"):
            raise ValueError(f"{request} is a group, and {type(self.allocator).__name__} has no fork()")
        self.waiting.append(request)

    def refuses_forever(self, request: Request) -> bool:
        """Whether the request can never be served: longer than the model or than the pool."""
        config, group = self.config, request.group
        if request.num_prompt_tokens + request.max_tokens > config.max_model_len:
            return True
        if group is not None and len(group.members) > min(config.max_num_seqs, config.max_num_batched_tokens):
            return True
        return self.allocator.refuses_forever(request) is not None

    def arrival_matters(self) -> bool:
        """Whether a new arrival could be admitted, so that a run of equal steps must end at it."""
        if self.swapped or not self._free_rows:
            return False
        return not self.waiting or self.config.policy == "priority"

    @property
    def has_work(self) -> bool:
        """Whether anybody runs, waits, or is swapped out."""
        return bool(self.running or self.waiting or self.swapped)

    @property
    def may_run_on(self) -> bool:
        """Whether the next batch can be steady: all that run decode."""
        return not (self._catching_up or self._groups.pending or self.decodes.num_beams)

    @property
    def may_coast(self) -> bool:
        """Whether all that there are decode: nobody waits, nobody catches up."""
        late = self._catching_up or self.swapped or self._groups.pending
        return not (self.waiting or late or self.decodes.num_beams)

    # one step -----------------------------------------------------------------------------------------------------

    def schedule(self, horizon: int = 1) -> Batch:
        """Decides one step and takes its memory; computed tokens advance at once.

        If the step is steady (nothing but decoding: nobody admitted, preempted or catching up), the batch stands for as
        many equal steps, at most `horizon`, as memory surely lasts and the queue's head surely stays refused.
        """
        self._watch = None
        decodes, groups = self.decodes, self._groups
        if groups.pending or decodes.num_beams:  # every step of a search ends with a selection
            horizon = 1
        elif not self.waiting and not self._catching_up and not self.swapped:
            steps = self._steps_in_bulk(horizon)
            if steps:
                return self._decode(steps)
        first_growth = len(decodes.growing()) if horizon > 1 else 0
        step = Draft(self._budget)
        self._serve_running(step)
        decodes.clock += 1
        chunks = [self._compute(request, count) for request, count in step.chunks.items()] if step.chunks else []
        head_refusal = None
        if self.swapped and not step.preempted:
            head_refusal = self._swap_in(step, chunks)
        if self.waiting and not step.preempted and not self.swapped:
            head_refusal = self._admit_waiting(step, chunks)
        grants = [*groups.copies, *step.moves.values()] if groups.copies or step.moves else ()
        batch = Batch(
            decodes,
            chunks,
            step.admitted,
            step.preempted,
            [pair for grant in grants for pair in grant.copies] if grants else (),
            [*grants, *step.swaps] if step.swaps else grants,
            head_refusal,
            len(self.waiting) + len(self.swapped),
        )
        if step.swaps or groups.pending:
            groups.tell(batch, step)
        if horizon > 1 and batch.steady and not self._catching_up:
            self._go_on(batch, first_growth, self.allocator.free_run(decodes, horizon - 1, self._watch))
        return batch

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
        growth: Sequence[int] = decodes.growth_counts(steps)
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
        computed = request.computed
        return new_tuple(Chunk, (request, computed - count, count, computed == request.known))

    def _admit_waiting(self, step: Draft, chunks: list[Chunk]) -> Refusal | None:
        """Admits from the head on; the refusal if memory stopped it."""
        config, waiting, running, allocator = self.config, self.waiting, self.running, self.allocator
        while waiting and step.budget > 0 and self._free_rows:
            request = waiting.head()
            group = request.group
            if group is not None and len(group.live()) > len(self._free_rows):
                return None
            hit = allocator.lookup(request)
            self._watch = hit.missing
            known = request.known
            if group is not None and group.forked:
                known -= 1
                hit = shorter(hit, known, allocator.block_size)
            cached = hit.num_tokens
            count = self._capped(known - cached) if config.long_prefill_token_threshold else known - cached
            if count > step.budget:
                if not config.chunked_prefill:
                    return None
                count = step.budget
            whole = known if config.full_sequence_gate else 0
            grant = allocator.admit(request, cached + count, hit, whole=whole, others_running=bool(running))
            if isinstance(grant, Refusal):
                return grant
            waiting.pop_head()
            self._watch = None
            step.budget -= count
            self._start(step, request, cached)
            chunks.append(self._compute(request, count))
        return None

    def _start(self, step: Draft, request: Request, num_hit_tokens: int) -> None:
        resumed = request.status is PREEMPTED
        counters = self.prefix
        if self._caches and resumed:
            counters.preempted_queries += request.known
            counters.preempted_hits += num_hit_tokens
        elif self._caches:
            counters.queries += request.known
            counters.hits += num_hit_tokens
        step.admitted.append(new_tuple(Admission, (request, num_hit_tokens, resumed)))
        request.computed = num_hit_tokens
        self._seat(request)
        self._catching_up.append(request)
        group = request.group
        if group is not None:
            group.gathering = group.forked
            for member in group.live()[1:]:
                self._seat(member)
                member.status = Status.JOINING

    def _seat(self, request: Request) -> None:
        request.status = RUNNING
        request.row = self._free_rows.pop()
        request.order = self._next_order
        self._next_order += 1
        self.running[request] = None

    def _swap_in(self, step: Draft, chunks: list[Chunk]) -> Refusal | None:
        """Brings back who was swapped out first; the refusal if memory stopped it. They go on in this very step: a
        group decodes, a sequence perhaps with a part of what it owes."""
        config, allocator = self.config, self.allocator
        while self.swapped:
            members = self.swapped[0]
            counts = [self._capped(member.known - member.computed) for member in members]
            if len(members) == 1 and config.chunked_prefill:
                counts = [min(*counts, step.budget)]
            if len(members) > len(self._free_rows) or not 0 < sum(counts) <= step.budget:
                return None
            totals = [member.computed + count for member, count in zip(members, counts, strict=True)]
            grant = allocator.swap_in(members, totals, others_running=bool(self.running))  # type: ignore[attr-defined]
            if isinstance(grant, Refusal):
                return grant
            step.swaps = [*step.swaps, grant]
            self.swapped.pop(0)
            step.budget -= sum(counts)
            step.swapped_in = [*step.swapped_in, *(SwapIn(member, member.computed) for member in members)]
            for member, count in zip(members, counts, strict=True):
                self._seat(member)
                # The last token of a prompt is a chunk: it brings the first output token.
                if member.known - member.computed == 1 and member.known > member.num_prompt_tokens:
                    member.computed += 1
                    self.decodes.add(member)
                    step.joined = [*step.joined, member]
                else:
                    self._catching_up.append(member)
                    chunks.append(self._compute(member, count))
        return None

    def look_ahead(self) -> None:
        """While a step runs elsewhere: what the next ones would do first. Blocks that decoding has filled are committed
        and the tokens hashed that the next step will look up, as many as it could admit."""
        if not self._caches:
            return
        if self._catch_up is not None:
            self._catch_up()
        size, budget = self.allocator.block_size, self._budget
        for request in self.waiting:
            if budget <= 0:
                break
            if isinstance(request.content, TokenContent):
                request.content.keys(0, (request.known - 1) // size, size)
            budget -= request.known

    # after the step -----------------------------------------------------------------------------------------------

    def update(self, batch: Batch, result: StepResult) -> list[Request]:
        """Books what the batch did: sampled tokens and stops. The finished requests, in running order."""
        decodes = self.decodes
        decodes.sampled = decodes.clock
        for grant in batch.grants:
            self.allocator.settle(grant)
        for chunk in batch.chunks:
            request, _, _, completes = chunk
            if completes:
                request.known += 1
                self._catching_up.remove(request)
                decodes.add(request)
            if request.group is not None:
                self._groups.computed(chunk, result)
        for group, parents in result.beams:
            self._groups.select(group, parents, result)
        return self.finish(result.stopped) if result.stopped else []

    def finish(self, stopped: Sequence[Request]) -> list[Request]:
        """These have sampled their last tokens: they leave, in running order."""
        finished = sorted(stopped, key=_order) if len(stopped) > 1 else list(stopped)
        for request in finished:
            request.status = FINISHED
            group = request.group
            if group is not None and group.answer is not None and request is group.leader:
                self._groups.answered(request, group.answer)
            self._leave(request)
        return finished
