"""A fixed piece of work to compare speeds with: the least that a replay with real block ids has to do.

One pool of paged blocks, first come first served, prompts whole and before decodes, recompute preemption of the newest,
a watermark of 1 %, runs of equal decode steps in one turn, integer picoseconds. It keeps first and last token times and
records nothing else: no metrics, no prefix cache. Not to be made faster: old ratios would lose their meaning.
"""

from __future__ import annotations

import gc
import hashlib
from collections import deque
from collections.abc import Iterable
from math import isqrt
from typing import NamedTuple

BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
MAX_PROMPT_TOKENS = 4096
"""Of one iteration; a longer prompt has one to itself."""
BASE_PS, SEQ_PS, KV_TOKEN_PS, PROMPT_TOKEN_PS = 9_750_000_000, 38_000_000, 287_000, 89_000_000


class Outcome(NamedTuple):
    """All but `num_turns` must not depend on how steps are grouped."""

    makespan: int
    num_steps: int
    num_preemptions: int
    tables: str
    """Digest of the block tables in order of their release."""
    times: list[tuple[int, int]]
    """First and last token of each request, in picoseconds."""
    num_turns: int


class Served:
    """One request: `tokens` in its blocks, `left` to be sampled."""

    __slots__ = ("arrival", "finish", "first", "left", "output", "prompt", "table", "tokens")

    def __init__(self, arrival: int, prompt: int, output: int) -> None:
        self.arrival, self.prompt, self.output = arrival, prompt, output
        self.tokens, self.left = 0, output
        self.first = self.finish = -1
        self.table: list[int] = []


class Yardstick:
    """One replay of requests in order of arrival, given as (arrival in ps, prompt tokens, output tokens)."""

    def __init__(self, rows: Iterable[tuple[int, int, int]], num_blocks: int, *, skip: bool = True) -> None:
        """`skip=False` takes every step alone."""
        self.requests = [Served(*row) for row in rows]
        self.skip = skip
        self.free = list(range(num_blocks - 1, -1, -1))
        self.watermark = num_blocks // 100
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []
        self.now = self.num_arrived = self.num_finished = 0
        self.num_steps = self.num_turns = self.num_preemptions = 0
        self.digest = hashlib.blake2b(digest_size=8)

    def run(self) -> Outcome:
        """To the end; without the garbage collector, as `sim.replay` does it."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._serve()
        finally:
            if collecting:
                gc.enable()
        times = [(request.first, request.finish) for request in self.requests]
        tables = self.digest.hexdigest()
        return Outcome(self.now, self.num_steps, self.num_preemptions, tables, times, self.num_turns)

    def _serve(self) -> None:
        requests, waiting = self.requests, self.waiting
        last = len(requests)
        while self.num_finished < last:
            while self.num_arrived < last and requests[self.num_arrived].arrival <= self.now:
                waiting.append(requests[self.num_arrived])
                self.num_arrived += 1
            if not waiting and not self.running:
                self.now = requests[self.num_arrived].arrival
            elif not (waiting and self._prefill()):
                self._decode()

    def _prefill(self) -> bool:
        """Computes the prompts of those that fit; recomputed ones include what had been sampled."""
        waiting, free = self.waiting, self.free
        batch: list[Served] = []
        num_tokens = 0
        while waiting and len(self.running) + len(batch) < MAX_NUM_SEQS:
            head = waiting[0]
            tokens = head.prompt + head.output - head.left
            needed = -(-tokens // BLOCK_SIZE)
            if num_tokens and num_tokens + tokens > MAX_PROMPT_TOKENS:
                break
            if len(free) - needed < self.watermark and (self.running or batch):
                break
            waiting.popleft()
            head.table = free[-needed:]
            del free[-needed:]
            head.tokens = tokens
            batch.append(head)
            num_tokens += tokens
        if not batch:
            return False
        self._pass(1, BASE_PS + SEQ_PS * len(batch) + PROMPT_TOKEN_PS * num_tokens)
        for request in batch:
            request.left -= 1
            if request.first < 0:
                request.first = self.now
        self.running.extend(batch)
        if min(request.left for request in batch) == 0:
            self._finish()
        return True

    def _pass(self, num_steps: int, duration: int) -> None:
        self.num_steps += num_steps
        self.num_turns += 1
        self.now += duration

    def _decode(self) -> None:
        running = self.running
        num_seqs, num_tokens = len(running), sum([request.tokens for request in running])
        most = least_left = min([request.left for request in running])
        first, slope = BASE_PS + SEQ_PS * num_seqs + KV_TOKEN_PS * num_tokens, KV_TOKEN_PS * num_seqs
        if not self.skip:
            most = 1
        elif self.num_arrived < len(self.requests) and not self.waiting:
            most = steps_until(first, slope, self.requests[self.num_arrived].arrival - self.now, most)
        steps = 1
        if most > 1:
            # Steps from now until each needs a block: it takes one where its tokens fill those it has.
            phases = [-request.tokens % BLOCK_SIZE for request in running]
            steps = self._steps_with_memory(most, phases)
        if steps > 1:
            self._grow(steps, phases)
            self._pass(steps, steps * first + slope * (steps * (steps - 1) // 2))
        elif not self._single_step():
            return
        if steps == least_left:
            self._finish()

    def _steps_with_memory(self, most: int, phases: list[int]) -> int:
        """Steps, 1 to `most`, that the free blocks carry."""
        num_seqs, num_free = len(phases), len(self.free)
        rounds, rest = divmod(most, BLOCK_SIZE)
        if (rounds + 1) * num_seqs <= num_free:
            return most
        if rounds * num_seqs + sum([phase < rest for phase in phases]) <= num_free:
            return most
        rounds, left = divmod(num_free, num_seqs)
        steps = rounds * BLOCK_SIZE
        for phase in range(BLOCK_SIZE):
            left -= phases.count(phase)
            if left < 0:
                break
            steps += 1
        return max(1, min(most, steps))

    def _grow(self, steps: int, phases: list[int]) -> None:
        """Blocks in the order in which single steps would hand them out."""
        running, take = self.running, self.free.pop
        taken: list[tuple[int, int]] = []
        for index, step in enumerate(phases):
            while step < steps:
                taken.append((step, index))
                step += BLOCK_SIZE
        taken.sort()
        for _, index in taken:
            running[index].table.append(take())
        for request in running:
            request.tokens += steps
            request.left -= steps

    def _single_step(self) -> bool:
        """One step, with preemption where memory runs out; False if nobody is left."""
        running, free = self.running, self.free
        index = 0
        while index < len(running):
            request = running[index]
            if request.tokens % BLOCK_SIZE == 0:
                while not free and index < len(running):
                    self._preempt()
                if index == len(running):
                    break
                request.table.append(free.pop())
            index += 1
        if not running:
            return False
        num_tokens = sum(request.tokens for request in running)
        for request in running:
            request.tokens += 1
            request.left -= 1
        self._pass(1, BASE_PS + SEQ_PS * len(running) + KV_TOKEN_PS * num_tokens)
        return True

    def _preempt(self) -> None:
        victim = self.running.pop()
        self.free.extend(victim.table)
        victim.table = []
        self.waiting.appendleft(victim)
        self.num_preemptions += 1

    def _finish(self) -> None:
        for request in [request for request in self.running if not request.left]:
            request.finish = self.now
            self.digest.update(str(request.table).encode())
            self.free.extend(request.table)
            request.table = []
            self.num_finished += 1
        self.running = [request for request in self.running if request.left]


def steps_until(first: int, slope: int, duration: int, most: int) -> int:
    """Fewest steps, 1 to `most`, that together last `duration`; the i-th lasts first + i x slope."""
    if most * first + slope * (most * (most - 1) // 2) < duration:
        return most
    b = 2 * first - slope
    steps = (isqrt(b * b + 8 * slope * duration) - b) // (2 * slope)
    while steps * first + slope * (steps * (steps - 1) // 2) < duration:
        steps += 1
    return min(max(steps, 1), most)
