"""`bench alloc`: what one call of an allocator costs on the host, in the scheduler's own hands.

A closed queue of requests with lengths drawn from a seed is served to its end, four times what the pool can hold, so
that admissions are refused and memory is fragmented as in a saturated run. No clock is simulated, no model is run.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from engine.core.limits import SchedulerConfig
from engine.core.registry import ALLOCATORS, PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.core.step import never_skip, step
from experiments.bench.engine_rows import Row
from experiments.bench.timed_allocator import OPERATIONS, TimedAllocator, stopwatch_ns
from experiments.bench.timing import quantile
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

Say = Callable[[str], None]
NS: Final = 1e-9
CONTIGUOUS: Final = ("contiguous-oracle-first-fit", "contiguous-oracle-best-fit", "contiguous-chunk(128)-first-fit")
PROMPTS: Final = (20, 600)
OUTPUTS: Final = (20, 300)
LONGEST: Final = 1024
FILLS: Final = 4
"""Times that the requests' tokens fill the pool."""
MEANINGS: Final = {
    "operation": "a call of the allocator; admit-refused: an admission that was refused",
    "num_calls": "calls in the run; advance and extend serve several requests in one",
    "median_s": "host time of a call, the stopwatch's own taken off; p20_s, p80_s: percentiles",
    "total_s": "sum over the calls",
    "per_request_s": "total_s / requests served",
    "mean_batch_size": "requests that run, mean over steps",
}


@dataclass(frozen=True, slots=True)
class AllocWanted:
    """What was asked for."""

    allocators: tuple[str, ...] = (*ALLOCATORS, *CONTIGUOUS)
    pool_tokens: tuple[int, ...] = (16_384, 262_144)
    block_sizes: tuple[int, ...] = (1, 16, 128)
    prefix_caching: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("pool_tokens", "block_sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name}: need numbers of at least 1, got {getattr(self, name)}")

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {**asdict(self), "prompts": PROMPTS, "outputs": OUTPUTS, "max_model_len": LONGEST, "fills": FILLS}


def measure(wanted: AllocWanted, say: Say) -> list[Row]:
    """A row an operation, allocator, pool and block size. ValueError for what cannot be made, before anything runs."""
    pools = [(tokens, size) for tokens in wanted.pool_tokens for size in wanted.block_sizes]
    for name in wanted.allocators:
        for tokens, size in pools:
            make_allocator(name, _pool(wanted, tokens, size))
    rows: list[Row] = []
    for name in wanted.allocators:
        for tokens, size in pools:
            rows += list(_rows(wanted, name, tokens, size))
            say(f"{name}, {tokens:,} tokens in blocks of {size}")
    return rows


def _pool(wanted: AllocWanted, tokens: int, block_size: int) -> PoolConfig:
    if tokens < LONGEST:
        raise ValueError(f"pool_tokens: requests grow to {LONGEST} tokens, got a pool of {tokens}")
    if tokens < block_size:
        raise ValueError(f"block_sizes: not one block of {block_size:,} tokens fits into a pool of {tokens:,} tokens")
    return PoolConfig(tokens // block_size, block_size, LONGEST, enable_caching=wanted.prefix_caching)


def requests_of(pool_tokens: int, seed: int) -> Iterator[Request]:
    """Uniform lengths, until they fill the pool `FILLS` times."""
    rng, left = random.Random(seed), FILLS * pool_tokens
    index = 0
    while left > 0:
        prompt, output = rng.randint(*PROMPTS), rng.randint(*OUTPUTS)
        yield Request(index, prompt, LONGEST - prompt, oracle_output_tokens=output)
        left -= prompt + output
        index += 1


def _rows(wanted: AllocWanted, name: str, tokens: int, block_size: int) -> Iterator[Row]:
    pool = _pool(wanted, tokens, block_size)
    allocator = TimedAllocator(make_allocator(name, pool))
    limits = SchedulerConfig(LONGEST, max_num_seqs=4096, max_num_batched_tokens=8192)
    scheduler = Scheduler(limits, allocator)
    requests = list(requests_of(tokens, wanted.seed))
    for request in requests:
        scheduler.add(request)
    mean_batch = _serve(scheduler, allocator, random.Random(wanted.seed))
    shared = {"allocator": name, "pool_tokens": tokens, "block_size": block_size, "num_blocks": pool.capacity_blocks}
    shared |= {"prefix_caching": wanted.prefix_caching, "mean_batch_size": mean_batch}
    overhead = stopwatch_ns()
    for operation in OPERATIONS:
        times = [max(value - overhead, 0) for value in allocator.times_ns[operation]]
        yield {**shared, "operation": operation, **_numbers(times, len(requests))}


def _serve(scheduler: Scheduler, allocator: TimedAllocator, rng: random.Random) -> float:
    """Serves everybody; each step one running request is asked for its table, as the engine does."""
    executor, num_steps, num_seqs = CostExecutor(LinearModel(1, 0, 0, 0)), 0, 0
    gc.collect()
    gc.disable()
    try:
        while scheduler.has_work:
            stepped = step(scheduler, executor, cut=never_skip)
            num_steps, num_seqs = num_steps + 1, num_seqs + stepped.batch.num_seqs
            if scheduler.running:
                allocator.block_table(rng.choice(list(scheduler.running)))
    finally:
        gc.enable()
    allocator.check()
    return num_seqs / num_steps


def _numbers(times_ns: Sequence[int], num_requests: int) -> Row:
    ascending = [value * NS for value in sorted(times_ns)]
    shares = {"p20_s": 0.2, "median_s": 0.5, "p80_s": 0.8}
    return {
        "num_calls": len(ascending),
        **{key: quantile(ascending, share) if ascending else None for key, share in shares.items()},
        "total_s": sum(times_ns) * NS,
        "per_request_s": sum(times_ns) * NS / num_requests,
    }


def report(rows: Sequence[Row]) -> list[str]:
    """Median microseconds of a call, an allocator and pool a line."""
    names = [name for name in OPERATIONS if any(row["operation"] == name and row["num_calls"] for row in rows)]
    heads = "".join(f"{name:>15}" for name in names)
    lines = [f"{'median us of a call':<32}{'tokens':>9}{'block':>6}{'batch':>7}{heads}{'us a request':>14}"]
    places = dict.fromkeys((row["allocator"], row["pool_tokens"], row["block_size"]) for row in rows)
    for place in places:
        mine = {r["operation"]: r for r in rows if (r["allocator"], r["pool_tokens"], r["block_size"]) == place}
        cells = "".join(f"{_us(mine[name]['median_s']):>15}" for name in names)
        asked = [row for row in mine.values() if row["operation"] != "block_table"]
        total = _us(sum(row["per_request_s"] for row in asked))
        batch = next(iter(mine.values()))["mean_batch_size"]
        lines.append(f"{place[0]:<32}{place[1]:>9,}{place[2]:>6}{batch:>7.0f}{cells}{total:>14}")
    return lines


def _us(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e6:.2f}"
