"""Section 4.1.2 of the chapter tried: memory that is handed out in units of 64 tokens, whoever hands it out.

A contiguous allocator that grows by chunks of 64 and a paged one with blocks of 64 waste the same in their last unit:
(A - 1)/2 slots of a unit of A, on average over lengths, and on average over the time in which a request decodes. In a
replay the contiguous one holds more: an extent that cannot grow where it lies moves, and is held twice for a step.
"""

from __future__ import annotations

import math
from typing import Final

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab
from experiments.paper.trials import in_processes, seeds
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import synthetic_trace

UNIT, LENGTH, SMALL = 64, 100, 16
GROWING: Final = f"contiguous-chunk({UNIT})-first-fit"
SETUPS: Final = (("paged", 16), ("paged", 64), (GROWING, SMALL), ("paged", 128))
"""Allocator and block size; the unit is the block, or the chunk."""
CAPACITY_TOKENS: Final = 61_440
MAX_MODEL_LEN: Final = 2048
NUM_REQUESTS, NUM_QUICK_REQUESTS, RATE_PER_S = 1500, 700, 2.0
TOLERANCE_FRAC: Final = 0.05
"""Of the expected tail: requests are few, and a prompt stays for a moment before it grows."""


def unit_of(allocator: str, block_size: int) -> int:
    """Tokens by which a request grows."""
    return UNIT if allocator == GROWING else block_size


def held_by(allocator: str, block_size: int, length: int) -> int:
    """Slots that a request of `length` tokens is given."""
    made = make_allocator(allocator, PoolConfig(CAPACITY_TOKENS // block_size, block_size, MAX_MODEL_LEN))
    made.admit(Request(0, length, 1), length, others_running=False)
    return made.stats().num_referenced * made.block_size


def _tail(job: tuple[str, int, int, int]) -> tuple[float, float]:
    """Empty slots of a running request, and their share of the held ones, while requests come and go."""
    allocator, block_size, count, seed = job
    trace = synthetic_trace("poisson", "sharegpt", count, seed, rate_per_s=RATE_PER_S)
    pool = PoolConfig(CAPACITY_TOKENS // block_size, block_size, MAX_MODEL_LEN, enable_caching=False)
    limits = SchedulerConfig(MAX_MODEL_LEN, max_num_seqs=count, max_num_batched_tokens=2560)
    found = simulate(RunSpec(allocator, pool, limits), trace, CostExecutor(PAPER_13B)).summary
    empty = found["kv_blocks_used_frac"] - found["kv_live_frac"]
    return empty * CAPACITY_TOKENS / found["mean_batch_size"], 100 * empty / found["kv_blocks_used_frac"]


def _measured(lab: Lab) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """By allocator and block size, a value a seed."""

    def make() -> dict[tuple[str, int], list[tuple[float, float]]]:
        count = NUM_QUICK_REQUESTS if lab.quick else NUM_REQUESTS
        jobs = [(*setup, count, seed) for setup in SETUPS for seed in seeds(lab)]
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for job, tail in zip(jobs, in_processes(_tail, jobs, lab.jobs), strict=True):
            found.setdefault(job[:2], []).append(tail)
        return found

    return lab.once("alignment", make)


def judge(lab: Lab) -> list[Result]:
    """100 tokens by both allocators, all lengths of whole units, and a replay."""
    results = []
    for allocator, size in ((GROWING, SMALL), ("paged", UNIT)):
        held = held_by(allocator, size, LENGTH)
        name = "growing" if allocator == GROWING else "paged"
        results += [
            exact(_claim(f"{name}/slots", f"{allocator}: slots for {LENGTH} tokens", 128, "slots", "A"), held),
            exact(_claim(f"{name}/wasted", "of these empty", 28, "slots", "A"), held - LENGTH),
            exact(
                _claim(f"{name}/wasted_frac", "share of them", 22, "%", "A", "rounded", tolerance=0.5),
                100 * (held - LENGTH) / held,
            ),
        ]
        tails = [held_by(allocator, size, length) - length for length in range(1, 8 * UNIT + 1)]
        made = _claim(f"{name}/mean", f"empty slots, mean over lengths 1 to {8 * UNIT}", (UNIT - 1) / 2, "slots")
        results.append(exact(made, math.fsum(tails) / len(tails)))
    return [*results, *_replayed(lab)]


def _replayed(lab: Lab) -> list[Result]:
    results = []
    for (allocator, size), tails in _measured(lab).items():
        unit = unit_of(allocator, size)
        if allocator == GROWING:
            continue  # holds what it moves twice: see the table
        half = (unit - 1) / 2
        made = _claim(
            *(f"replay/{allocator}-{unit}", f"{allocator}, unit {unit}: empty slots a running request", half, "slots"),
            *("R", "half-a-slot", "stand-in", "step-model"),
            tolerance=TOLERANCE_FRAC * half,
        )
        share = math.fsum(tail[1] for tail in tails) / len(tails)
        results.append(over_seeds(made, [tail[0] for tail in tails], f"{share:.2f} % of what is held"))
    return results


def _claim(
    name: str, metric: str, expected: float, unit: str, confidence: str = "R", *deviations: str, tolerance: float = 0.0
) -> Claim:
    source = "chapter 4.1.2: 100 tokens in units of 64"
    return Claim(f"alignment/{name}", metric, expected, unit, tolerance, source, confidence, deviations)


def tables(lab: Lab) -> list[Table]:
    """The waste of 100 tokens by unit, and of running requests."""
    sizes = (1, 8, 16, 32, 64, 128, 256)
    rows = [
        (size, held := held_by("paged", size, LENGTH), held - LENGTH, 100 * (held - LENGTH) / held) for size in sizes
    ]
    columns = ("unit", "slots", "empty", "empty %")
    return [Table("alignment/units", f"{LENGTH} tokens by unit", columns, tuple(rows)), _running(lab)]


def _running(lab: Lab) -> Table:
    """Means over seeds."""
    rows = []
    for (allocator, size), tails in _measured(lab).items():
        unit, count = unit_of(allocator, size), len(tails)
        empty, share = (math.fsum(column) / count for column in zip(*tails, strict=True))
        rows.append((allocator, unit, (unit - 1) / 2, empty, share))
    columns = ("allocator", "unit", "(unit - 1) / 2", "empty slots a request", "% of what is held")
    note = f"ShareGPT's lengths at {RATE_PER_S:g} requests/s; {GROWING} holds an extent twice while it moves"
    return Table("alignment/running", "Running requests, while they come and go", columns, tuple(rows), note)


ALIGNMENT = Experiment("alignment", "Rounding up to units of 64 tokens (4.1.2)", judge, tables=tables)
