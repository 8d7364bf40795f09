"""Runs the grid on an engine: contexts are there without having been computed, so that a point costs its own steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.core.allocator import Hit, Refusal
from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.step import step
from experiments.calibrate.grid import DecodePoint, Limits, MixedPoint
from experiments.calibrate.rows import PS, StepRow

if TYPE_CHECKING:
    from engine.core.allocator import Grant, KVAllocator
    from engine.worker.engine import Engine
    from engine.worker.executor import ModelExecutor
    from engine.worker.step_clock import StepTime
    from experiments.series import AttentionKernel

SKIPPED: Final = 2
"""Steps of a point of decodes that are left out: the one that brings the first tokens, and the one after it, before
which rows are arranged anew. Of points with chunks all steps with chunks count."""
LOAD_STEPS: Final = 16
"""Decode steps of a batch of load."""
AT_ONCE: Final = 20
"""Points between two collections of garbage."""


class Prefilled:
    """An allocator that admits requests as if their first tokens had been computed elsewhere, as a disaggregated
    prefill would leave them: fresh blocks of their own, holding whatever is there."""

    def __init__(self, allocator: KVAllocator) -> None:
        self._inner = allocator
        self.num_computed: dict[Any, int] = {}
        """By request id, before the request is added."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def lookup(self, request: Request) -> Hit:
        """As many as were said, in no block that could be shared."""
        return Hit(self.num_computed.get(request.request_id, 0))

    def admit(
        self, request: Request, num_tokens: int, hit: Hit, *, whole: int = 0, others_running: bool = False
    ) -> Grant | Refusal:
        """Blocks for all of them."""
        return self._inner.admit(request, num_tokens, whole=whole, others_running=others_running)


@dataclass
class Probe:
    """One engine over one pool."""

    limits: Limits
    vocab_size: int
    executor: ModelExecutor
    allocator: Prefilled
    seed: int = 0

    @classmethod
    def of(cls, engine: Engine, limits: Limits, allocator: str, kernel: AttentionKernel, seed: int) -> Probe:
        """Allocates and warms up. The cache is filled with noise: what is multiplied decides what power is drawn."""
        pool = PoolConfig(limits.kv_tokens // limits.block_size, limits.block_size, limits.max_model_len)
        prefilled = Prefilled(make_allocator(allocator, pool))
        executor = engine.executor(prefilled, kernel=kernel)  # type: ignore[arg-type]
        for cache in executor.kv.caches:
            cache.normal_()
        shuffle(prefilled, seed)
        return cls(limits, engine.architecture.vocab_size, executor, prefilled, seed)

    def decode(self, point: DecodePoint, num_steps: int) -> list[StepRow]:
        """Rows of the decode steps, the first ones left out."""
        scheduler = self._scheduler()
        for index, context in enumerate(point.contexts):
            scheduler.add(self._request(scheduler, (point.name, index), context, 1, num_steps + 1))
        turns = []
        while scheduler.has_work:
            turns.append(self._turn(scheduler))
        decodes = [row for row in self._rows(point.name, turns) if row.decodes]
        assert len(decodes) >= num_steps, (point.name, len(decodes))
        return decodes[SKIPPED:]

    def mixed(self, point: MixedPoint) -> list[StepRow]:
        """Rows of the steps with chunks. Between two of them is a decode step, where anybody decodes."""
        scheduler = self._scheduler()
        for index, context in enumerate(point.contexts):
            name = point.name, "decode", index
            scheduler.add(self._request(scheduler, name, context, 1, point.growth))
        asked = [
            [
                self._request(scheduler, (point.name, number, index), context, new, 1)
                for index, (context, new) in enumerate(one.chunks)
            ]
            for number, one in enumerate(point.steps)
        ]  # before the first of them runs: what is made between two steps would be time between them
        turns, between = [], 2 if point.contexts else 0
        for _ in range(between):
            self._turn(scheduler)
        for requests in asked:
            for request in requests:
                scheduler.add(request)
            while scheduler.waiting:
                turns.append(self._turn(scheduler))
            for _ in range(point.between):
                self._turn(scheduler)
        while scheduler.has_work:
            self._turn(scheduler)
        return [row for row in self._rows(point.name, turns) if not row.decodes]

    def load(self, seconds: float, clock: Callable[[], float]) -> int:
        """Decodes at full batch for so long, so that clocks and power have settled; how many steps that were."""
        begun, steps, limits = clock(), 0, self.limits
        context = min(256, limits.max_model_len // 2)
        room = limits.kv_tokens // limits.held((context,), LOAD_STEPS + 2)
        contexts = (context,) * min(limits.max_num_seqs, max(limits.kv_tokens // 512, 1), room)
        while clock() - begun < seconds:
            steps += len(self.decode(DecodePoint(f"load-{steps}", contexts), LOAD_STEPS))
        return steps

    # one step ---------------------------------------------------------------------------------------------------------

    def _scheduler(self) -> Scheduler:
        limits = self.limits
        config = SchedulerConfig(limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens)
        self.allocator.num_computed.clear()
        return Scheduler(config, self.allocator)  # type: ignore[arg-type]

    def _request(self, scheduler: Scheduler, name: tuple[Any, ...], context: int, new: int, output_len: int) -> Request:
        rng = np.random.Generator(np.random.Philox(key=abs(hash_of(name)) + self.seed))
        tokens = rng.integers(0, self.vocab_size, context + new).tolist()
        request = Request(name, context + new, output_len, content=TokenContent(tokens))
        self.allocator.num_computed[name] = context
        assert not scheduler.refuses_forever(request), f"{name}: {context} + {new} tokens never fit"
        return request

    def _turn(self, scheduler: Scheduler) -> tuple[int, int]:
        """One step: its place among the executor's, and its sequences. Little happens here, so that the device waits
        little."""
        batch = step(scheduler, self.executor).batch
        assert batch.num_seqs, "nobody runs"
        assert not batch.preempted, "the pool is too small for this point"
        return len(self.executor.steps) - 1, batch.num_seqs

    def _rows(self, run: str, turns: list[tuple[int, int]]) -> list[StepRow]:
        return [row_of(run, self.executor.steps[index], num_seqs, 0) for index, num_seqs in turns]


def row_of(run: str, step: StepTime, num_seqs: int, rows_changed: int) -> StepRow:
    """A measured step as a row."""
    new = step.num_decodes + step.num_chunk_tokens
    attended = step.num_kv_tokens, step.num_attended_pairs, step.longest_chunk_tokens
    times = step.duration_ps / PS, step.device_ps / PS, step.host_ps / PS
    return StepRow(run, num_seqs, new, *attended, rows_changed, *times)


def shuffle(allocator: Prefilled, seed: int) -> None:
    """Puts the free blocks in random order, as they lie after a server has run for a while."""
    held = []
    for index in range(allocator.capacity_blocks):
        request = Request(("shuffle", index), 1, 1)
        if isinstance(allocator.admit(request, 1, Hit()), Refusal):
            break
        held.append(request)
    for index in np.random.Generator(np.random.Philox(key=seed)).permutation(len(held)):
        allocator.free(held[index])


def hash_of(name: tuple[Any, ...]) -> int:
    """The same in every process."""
    return int.from_bytes("/".join(map(str, name)).encode()[-12:], "little")


@contextmanager
def collected() -> Iterator[None]:
    """Without garbage collection meanwhile, as in runs."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(
    probe: Probe,
    decodes: Sequence[DecodePoint],
    mixed: Sequence[MixedPoint],
    num_steps: int,
    say: Callable[[str], None],
) -> list[StepRow]:
    """All points, in an order that mixes them: a device that warms up spreads over all."""
    rows: list[StepRow] = []
    points: list[DecodePoint | MixedPoint] = [*decodes, *mixed]
    order = np.random.Generator(np.random.Philox(key=probe.seed)).permutation(len(points)).tolist()
    for first in range(0, len(order), AT_ONCE):
        with collected():
            for point in (points[index] for index in order[first : first + AT_ONCE]):
                rows += probe.decode(point, num_steps) if isinstance(point, DecodePoint) else probe.mixed(point)
        say(f"{min(first + AT_ONCE, len(order))} of {len(order)} points, {len(rows)} steps")
    return rows
