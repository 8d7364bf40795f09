"""The reference: a replay that steps one by one and scans everything at each step.

Plain lists, explicit counters, no decode clock, no runs, no sums kept from step to step. The paged pool is written
anew; contiguous placement is the real allocator's, driven one request at a time. Costs are the real step models'.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

from engine.core.allocator import CACHED, FREE, NO_HIT, NULL, Reason, Refusal
from engine.core.registry import make_allocator
from sim import integrals as at
from sim import simulate as simulate_module
from sim.arrivals import LengthLimits
from sim.cost import Features
from tests.sim.cases import Case, free_queue, prepared
from tests.sim.naive_arrivals import NaiveArrivals
from tests.sim.naive_paged import NaivePaged
from tests.sim.naive_request import NaiveRequest


def in_order(**state: int) -> list[int]:
    """The state variables as the integrals keep them; those not named are zero."""
    assert state.keys() <= set(at.STATE)
    return [state.get(name, 0) for name in at.STATE]


class NaiveReplay:
    """Runs a case on its own; `seen` is comparable with `tests.sim.cases.seen_of`."""

    def __init__(self, case: Case, edges: list[int]) -> None:
        spec = case.spec
        self.spec, self.limits, self.model, self.edges = spec, spec.limits, case.model, edges
        self.size, self.capacity = spec.pool.block_size, spec.pool.capacity_blocks
        self.paged = spec.allocator == "paged"
        self.pool: Any = NaivePaged(spec.pool) if self.paged else make_allocator(spec.allocator, spec.pool)
        self.copy_block_ps, self.swap_block_ps = case.copy_block_ps, case.swap_block_ps
        self.end = None if spec.end_s is None else round(spec.end_s * 10**12)
        self.rows: list[Any] = []
        self.segments = [[0] * at.COLUMNS for _ in range(len(edges) + 1)]
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.blocked: list[tuple[int, int]] = []
        self.freed: list[Any] = []
        self.copies = 0
        self.decoded: set[NaiveRequest] | None = None
        """Who decoded in the last step; None: some did something else in it."""
        self.running: list[NaiveRequest] = []
        self.waiting: list[NaiveRequest] = []
        self.swapped: list[NaiveRequest] = []
        self.swaps = [0, 0, 0]
        """Blocks out, blocks in, refused."""
        lengths = LengthLimits(self.limits.max_model_len, self.capacity * self.size, spec.too_long)
        with prepared(case):
            made = [NaiveRequest(r) for r in simulate_module.requests_of(case.trace, lengths, self.rows.append)]
        self.outside = NaiveArrivals(case.trace, made, spec.max_concurrency, self.never_fits)
        self.rows += [r.to_row("rejected", -1) for r in self.outside.rejected]

    def never_fits(self, request: NaiveRequest) -> bool:
        too_long = request.num_prompt_tokens + request.max_tokens > self.limits.max_model_len
        return too_long or bool(self.pool.refuses_forever(request))

    # time -----------------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        now = 0
        while self.end is None or now < self.end:
            self.arrive(now)
            if not self.running and not self.waiting and not self.swapped:
                bounds = [r.arrival for r in self.outside.known[:1]] + [self.end] * (self.end is not None)
                if not bounds:
                    break
                self.idle(now, min(bounds))
                now = min(bounds)
                continue
            now, cut = self.step(now)
            if cut:
                break
        last = now if self.end is None else min(now, self.end)
        self.arrive(last if self.spec.max_concurrency is not None else None)
        left = self.running + self.waiting + self.swapped + self.outside.outside
        self.rows += [r.to_row("unfinished", -1) for r in left]
        return self.seen(last)

    def arrive(self, until: int | None) -> None:
        while (request := self.outside.pop(until, len(self.running + self.waiting + self.swapped))) is not None:
            self.starts.append(request.arrival)
            self.enqueue(request)

    def enqueue(self, request: NaiveRequest) -> None:
        self.waiting.append(request)
        if self.limits.policy == "priority":
            self.waiting.sort(key=lambda r: (r.priority, r.arrival, r.request_id))

    def idle(self, start: int, end: int) -> None:
        self.over(start, end, in_order(**self.pool_state()), steps=0)

    def step(self, now: int) -> tuple[int, bool]:
        """One step: its end, and whether the run is cut in it."""
        scheduled, refusal = self.schedule(now)
        if not scheduled:
            return now, False
        rows = [(r.computed - n, n) for r, n in scheduled]
        pairs = sum(n * context + n * (n + 1) // 2 for context, n in rows)
        longest = max((context + n for context, n in rows if n > 1), default=0)
        features = Features(len(rows), sum(n for _, n in rows), sum(map(sum, rows)), pairs, longest)
        end = now + self.model.duration(features) + self.copy_block_ps * self.num_copied + self.turn(scheduled)
        end += self.swap_block_ps * self.num_swapped
        self.over(now, end, self.state(refusal), steps=1)
        sampled = [r for r, _ in scheduled if r.computed == r.known]
        self.segments[bisect_right(self.edges, now)][at.COMPUTED] += features.num_new_tokens
        self.segments[bisect_right(self.edges, end)][at.EMITTED] += len(sampled)
        if refusal and len(self.waiting) + len(self.swapped) > 1:
            start = self.blocked.pop()[0] if self.blocked and self.blocked[-1][1] == now else now
            self.blocked.append((start, end))
        if self.end is not None and end > self.end:
            return end, True
        self.update(end, sampled)
        return end, False

    def turn(self, scheduled: list[tuple[NaiveRequest, int]]) -> int:
        """What a step in which all decode takes more where others decoded in the step before, or not all decoded."""
        decoding = {r for r, _ in scheduled if r.decodes}
        before, self.decoded = self.decoded, decoding if len(decoding) == len(scheduled) else None
        for request, _ in scheduled:
            request.decodes = request.computed == request.known
        turn = getattr(self.model, "turn", None)
        return 0 if turn is None or self.decoded is None or self.decoded == before else turn(len(decoding))

    def update(self, end: int, sampled: list[NaiveRequest]) -> None:
        for grant in self.grants:
            self.pool.settle(grant)
        for request in sampled:
            request.known += 1
            if request.first_token < 0:
                request.first_token = end
        done = [r for r in self.running if r.known == r.num_prompt_tokens + r.num_stop_tokens]
        for request in done:
            self.arrive(end - 1)
            self.outside.ended(end, request, len(self.running + self.waiting + self.swapped))
            self.release(request)
            status = "truncated" if request.max_tokens < request.oracle else "finished"
            self.rows.append(request.to_row(status, end))

    # decisions ------------------------------------------------------------------------------------------------------

    def schedule(self, now: int) -> tuple[list[tuple[NaiveRequest, int]], Refusal | None]:
        budget, counts, lost = self.limits.max_num_batched_tokens, {}, False
        moves: dict[NaiveRequest, Any] = {}
        swaps_before = sum(self.swaps[:2])
        for request in list(self.running):
            if request not in self.running or budget <= 0:
                continue
            count = self.capped(request.known - request.computed)
            count = min(count, budget, self.limits.max_model_len - 1 - request.computed)
            while isinstance(grant := self.pool.extend((request,), (request.computed + count,)), Refusal):
                victim = self.victim()
                budget += counts.pop(victim, 0)
                self.preempt(now, victim)
                if victim in moves:
                    self.pool.settle(moves.pop(victim))
                lost = True
                if victim is request:
                    break
            else:
                counts[request] = count
                budget -= count
                if grant.moved:
                    moves[request] = grant
        self.grants = list(moves.values())
        self.num_copied = sum(len(grant.copies) for grant in self.grants)
        self.copies += self.num_copied
        for request, count in counts.items():
            request.compute(count)
        refusal = None
        if not lost:
            budget, refusal = self.bring_back(now, budget, counts)
            if not self.swapped:
                refusal = self.admit(now, budget, counts)
        self.num_swapped = sum(self.swaps[:2]) - swaps_before
        return list(counts.items()), refusal

    def capped(self, count: int) -> int:
        threshold = self.limits.long_prefill_token_threshold
        return threshold if 0 < threshold < count and len(self.running) + len(self.waiting) > 1 else count

    def victim(self) -> NaiveRequest:
        rule = self.limits.victim or ("last" if self.limits.policy == "fcfs" else "priority")
        if rule == "last":
            return self.running[-1]
        if rule == "least-computed":
            return min(reversed(self.running), key=lambda r: r.computed)
        return max(self.running, key=lambda r: (r.priority, r.arrival, r.request_id))

    def preempt(self, now: int, victim: NaiveRequest) -> None:
        kept = self.swap_out(victim)
        self.release(victim)
        victim.preempted_at = now
        victim.num_preemptions += 1
        self.starts.append(now)
        if not kept:
            victim.computed, victim.decodes = 0, False
        queue = self.swapped if kept else self.waiting
        queue.insert(0, victim)
        if self.limits.policy == "priority":
            queue.sort(key=lambda r: (r.priority, r.arrival, r.request_id))

    def swap_out(self, victim: NaiveRequest) -> bool:
        """Whether host memory keeps what the victim has computed."""
        if self.limits.preemption != "swap" or not victim.computed:
            return False
        blocks = self.pool.swap_out(victim)
        self.swaps[0] += blocks
        self.swaps[2] += not blocks
        return bool(blocks)

    def bring_back(self, now: int, budget: int, counts: dict[NaiveRequest, int]) -> tuple[int, Refusal | None]:
        """What is left of the budget, and the refusal if memory stopped it."""
        while self.swapped and len(self.running) < self.limits.max_num_seqs:
            request = self.swapped[0]
            count = self.capped(request.known - request.computed)
            if self.limits.chunked_prefill:
                count = min(count, budget)
            if not 0 < count <= budget:
                break
            answer = self.pool.swap_in(request, request.computed + count, others_running=bool(self.running))
            if isinstance(answer, Refusal):
                return budget, answer
            budget -= count
            self.running.append(self.swapped.pop(0))
            self.swaps[1] += -(-request.computed // self.size)
            self.ends.append(now)
            request.preempted += now - request.preempted_at
            request.decodes = request.known - request.computed == 1 and request.known > request.num_prompt_tokens
            request.compute(count)
            counts[request] = count
        return budget, None

    def release(self, request: NaiveRequest) -> None:
        self.freed.append((request.request_id, request.computed, tuple(self.pool.block_table(request))))
        self.pool.free(request)
        self.running.remove(request)

    def admit(self, now: int, budget: int, counts: dict[NaiveRequest, int]) -> Refusal | None:
        limits = self.limits
        while self.waiting and budget > 0 and len(self.running) < limits.max_num_seqs:
            request = self.waiting[0]
            hit = self.pool.lookup(request) if self.paged else NO_HIT
            count = self.capped(request.known - hit.num_tokens)
            if count > budget and not limits.chunked_prefill:
                return None
            count = min(count, budget)
            answer = self.pool.admit(
                request, hit.num_tokens + count, hit, whole=request.known if limits.full_sequence_gate else 0,
                others_running=bool(self.running),
            )  # fmt: skip
            if isinstance(answer, Refusal):
                return answer
            budget -= count
            self.running.append(self.waiting.pop(0))
            self.begin(now, request, hit.num_tokens)
            request.compute(count)
            counts[request] = count
        return None

    def begin(self, now: int, request: NaiveRequest, num_hit_tokens: int) -> None:
        request.computed = num_hit_tokens
        request.high = max(request.high, num_hit_tokens)
        self.ends.append(now)
        if request.first_scheduled < 0:
            request.first_scheduled, request.hits = now, num_hit_tokens
        else:
            request.preempted += now - request.preempted_at

    # accounting -----------------------------------------------------------------------------------------------------

    def pool_state(self) -> dict[str, int]:
        """Of free blocks; zero where the recorder has no use for it."""
        stats, size = self.pool.stats(), self.size
        caches = self.paged and self.spec.pool.enable_caching
        return {
            "spare": (stats.num_free - stats.num_cached_free) * size if caches else 0,
            "largest": 0 if self.paged else stats.largest_free_extent * size,
        }

    def state(self, refusal: Refusal | None) -> list[int]:
        """By physical block: what its owners have filled, and what they will."""
        size, last = self.size, 0 if self.spec.final_token_has_slot else 1
        filled, final, owners = Counter(), Counter(), Counter()
        for request in self.running:
            whole = request.num_prompt_tokens + request.num_stop_tokens - last
            for index, block_id in enumerate(self.pool.block_table(request)):
                owners[block_id] += 1
                filled[block_id] = max(filled[block_id], min(max(request.computed - index * size, 0), size))
                final[block_id] = max(final[block_id], min(max(whole - index * size, 0), size))
        internal = sum(size - max(final[b], filled[b]) for b in owners)
        extra = sum(count - 1 for count in owners.values()) * size
        tokens = sum(r.computed for r in self.running)
        assert tokens - extra == sum(filled.values()), "live tokens by block and by request differ"
        leaving = 0
        if not self.paged:
            regions = self.pool.regions()
            free = (NULL, FREE, CACHED)
            leaving = sum(
                n for n, o in zip(regions.length.tolist(), regions.owner.tolist(), strict=True) if o not in free
            ) - len(owners)
        used = (len(owners) + leaving) * size
        asked, free = self.pool.stats().num_asked_slots, self.pool.stats().num_free * size
        assert used + free == self.capacity * size
        hole = refusal is not None and refusal.reason is Reason.NO_HOLE
        return in_order(
            seqs=len(self.running),
            tokens=tokens,
            used=used,
            internal=internal + leaving * size,
            extra=extra,
            asked=asked,
            true_total=sum(r.num_prompt_tokens + r.num_stop_tokens for r in self.running) if asked else 0,
            hole=free if hole else 0,
            short=free if refusal is not None and not hole else 0,
            **self.pool_state(),
        )

    def over(self, start: int, end: int, state: list[int], *, steps: int) -> None:
        """Adds a state that held from `start` to `end`, segment by segment."""
        bounds = [0, *self.edges, max(end, *self.edges, 0) + 1 if self.edges else end + 1]
        for row, low, high in zip(self.segments, bounds[:-1], bounds[1:], strict=True):
            part = max(min(high, end) - max(low, start), 0)
            row[at.TIME] += part
            for index, value in enumerate(state):
                row[index] += value * part
        if steps:
            row = self.segments[bisect_right(self.edges, start)]
            row[at.STEPS] += 1
            for index, value in enumerate(state, at.WIDTH):
                row[index] += value

    def seen(self, makespan: int) -> dict[str, Any]:
        return {
            "rows": sorted(self.rows),
            "segments": self.segments,
            "waits": (sorted(self.starts), sorted(self.ends)),
            "blocked": self.blocked,
            "freed": self.freed,
            "tables": [(r.request_id, tuple(self.pool.block_table(r))) for r in self.running],
            "free queue": self.pool.queue if self.paged else free_queue(self.pool),
            "makespan": makespan,
            "copies": self.copies,
            "swaps": tuple(self.swaps),
        }


def naively(case: Case, edges: list[int]) -> dict[str, Any]:
    """The case, replayed by the reference."""
    return NaiveReplay(case, edges).run()
