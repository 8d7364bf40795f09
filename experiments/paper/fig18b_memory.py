"""Fig 18b, the part that is memory: block size against waste, batch and latency in the simulator, kernels left out.

The pool, the load and the step times are the same at every block size, so all that differs is what the last, partly
filled block of every request costs.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final, NamedTuple

from experiments.paper.block_size import CAPACITY_TOKENS, SIZES
from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Table
from experiments.paper.runs import Lab, Lengths, Measured, agree, artifact_spec, numbers_of
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import simulate
from workloads import Trace, named_trace

RATES: Final = {"sharegpt": 2.01, "alpaca": 30.1}
"""Requests a second: the artifact's of Fig 18b (Alpaca) and of Fig 19b (ShareGPT)."""
WORKLOADS: Final = {"sharegpt": "paper-fig12a", "alpaca": "paper-fig12d"}
QUICK_SIZES: Final = (1, 16, 64, 256)
DURATION_S: Final = 600
"""The artifact's scripts'."""
QUICK_DURATION_S: Final = 200
MAX_SEEDS: Final = 3
BASE: Final = 16
GOOD: Final = {"sharegpt": (16, 32, 64, 128), "alpaca": (16, 32)}
"""Block sizes that the paper calls best."""
SLACK: Final = {"sharegpt": 25.0, "alpaca": 5.0}
"""Per cent. Without a kernel small blocks cost nothing, and near its limit ShareGPT's latency rises steeply."""
DEGRADED: Final = 90.0
LATENCY: Final = "mean_normalized_latency_s"
COLUMNS: Final = ("kv_tail_frac", "kv_live_frac", "mean_batch_size", LATENCY, "num_preemptions")
HEADS: Final = ("tail %", "live %", "running requests", "s/token", "preemptions")


class SizeKey(NamedTuple):
    """One block size under one load, drained."""

    lengths: str
    block_size: int
    seed: int
    duration_s: int

    def trace(self, lengths: Lengths) -> Trace:
        """What arrives."""
        rate, name = RATES[self.lengths], WORKLOADS[self.lengths]
        return named_trace(name, self.seed, dict(lengths), rate_per_s=rate, duration_s=self.duration_s)

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it. AssertionError if its numbers contradict each other."""
        spec = artifact_spec("paged", CAPACITY_TOKENS // self.block_size, self.block_size)
        done = simulate(spec, self.trace(lengths), CostExecutor(PAPER_13B))
        agree(self, done)
        return numbers_of(done.summary)


def sizes(lab: Lab) -> tuple[int, ...]:
    """All, or four."""
    return QUICK_SIZES if lab.quick else SIZES


def _keys(lab: Lab, lengths: str, block_size: int) -> list[SizeKey]:
    count, duration = (1, QUICK_DURATION_S) if lab.quick else (min(lab.num_seeds, MAX_SEEDS), DURATION_S)
    return [SizeKey(lengths, block_size, seed, duration) for seed in range(count)]


def runs(lab: Lab) -> list[SizeKey]:
    """Both sets at every size."""
    return [key for lengths in RATES for size in sizes(lab) for key in _keys(lab, lengths, size)]


def _values(lab: Lab, lengths: str, block_size: int, name: str) -> list[float]:
    return lab.values(_keys(lab, lengths, block_size), name)


def _mean(lab: Lab, lengths: str, block_size: int, name: str) -> float:
    values = _values(lab, lengths, block_size, name)
    return math.fsum(values) / len(values)


def _claim(lab: Lab, lengths: str, what: str, metric: str, expected: float, source: str) -> Claim:
    stand_in = () if lab.is_real(lengths) else ("stand-in",)
    short = ("short-traces",) if lab.quick else ()
    rest = ("no-kernels", "whole-blocks", "step-model", "head-of-file", "quanta")
    sets = ("alpaca-only",) if lengths == "sharegpt" or "degrades" in what else ()
    deviations = (*stand_in, *short, *rest, *sets)
    return Claim(f"fig18b/memory/{lengths}/{what}", metric, expected, "%", 0.0, source, "A", deviations, at_most=True)


def judge(lab: Lab) -> list[Result]:
    """For each set: waste grows with the block, the sizes that the paper calls best are, and the largest is worse."""
    return [result for lengths in RATES for result in (_grows(lab, lengths), _best(lab, lengths), _worse(lab, lengths))]


def _grows(lab: Lab, lengths: str) -> Result:
    """How much the least step from one size to the next adds, turned round: at most 100 % means that none falls."""
    by_size = [_values(lab, lengths, size, "kv_tail_frac") for size in sizes(lab)]
    worst = [
        max(100 * small / large if large else math.inf for small, large in pairwise(tails))
        for tails in zip(*by_size, strict=True)
    ]
    metric = "tail waste of a block size over that of the next larger one, at most"
    claim = _claim(lab, lengths, "waste-grows", metric, 100.0, "section 7.2: larger blocks waste more")
    shown = ", ".join(f"{size}: {100 * _mean(lab, lengths, size, 'kv_tail_frac'):.2f}" for size in sizes(lab))
    return over_seeds(claim, worst, f"tail, % of the pool, by block size {shown}")


def _best(lab: Lab, lengths: str) -> Result:
    good = GOOD[lengths]
    metric = f"least normalized latency of block sizes {good[0]} to {good[-1]} over the least of all, at most"
    claim = _claim(lab, lengths, "best", metric, 100 + SLACK[lengths], f"Fig 18b: {good[0]} to {good[-1]} are best")
    by_size = {size: _values(lab, lengths, size, LATENCY) for size in sizes(lab)}
    seeds = range(len(by_size[BASE]))
    values = [
        100 * min(by_size[s][i] for s in good if s in by_size) / min(by_size[s][i] for s in by_size) for i in seeds
    ]
    return over_seeds(claim, values, _latencies(lab, lengths))


def _worse(lab: Lab, lengths: str) -> Result:
    metric = f"normalized latency at block size {BASE} over that at {SIZES[-1]}, at most"
    source = "Fig 18b: larger block sizes significantly degrade"
    claim = _claim(lab, lengths, f"{SIZES[-1]}-degrades", metric, DEGRADED, source)
    small, large = (_values(lab, lengths, size, LATENCY) for size in (BASE, SIZES[-1]))
    return over_seeds(claim, [100 * a / b for a, b in zip(small, large, strict=True)])


def _latencies(lab: Lab, lengths: str) -> str:
    shown = ", ".join(f"{size}: {_mean(lab, lengths, size, LATENCY):.4g}" for size in sizes(lab))
    return f"s/token by block size {shown}"


def tables(lab: Lab) -> list[Table]:
    """A row a block size."""
    return [_table(lab, lengths) for lengths in RATES]


def _table(lab: Lab, lengths: str) -> Table:
    rows = []
    for size in sizes(lab):
        tail, live, batch, latency, preemptions = (_mean(lab, lengths, size, name) for name in COLUMNS)
        rows.append((size, CAPACITY_TOKENS // size, 100 * tail, 100 * live, batch, latency, preemptions))
    return Table(
        f"fig18b/memory/{lengths}",
        f"{lengths} at {RATES[lengths]:g} requests/s in {CAPACITY_TOKENS:,} token slots, step model paper-13b",
        ("block size", "blocks", *HEADS),
        tuple(rows),
        "Shares of the pool, means over the time of arrivals. Kernels are left out: step times know no block size.",
    )
