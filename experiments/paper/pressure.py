"""What memory pressure costs: preemption storms without the full-sequence gate, and what a watermark buys and costs.

On small workloads of which vLLM 0.33's decisions were recorded, every total is the recorded one. The watermark's curve
at scale is a shape: each preemption computes its tokens again, each block kept back is a request not run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.recorded_workloads import BLOCK, WORKLOADS, Pressure, replayed
from experiments.paper.runs import MAX_MODEL_LEN, NUM_BLOCKS, Lab, Lengths, Measured, agree, numbers_of
from experiments.paper.trials import seeds
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import synthetic_trace

RECORDING: Final = "recorded decisions of vLLM 0.33, synchronous scheduler"
QUANTITIES: Final = {
    "steps": ("num_steps", "steps"),
    "preemptions": ("num_preemptions", "preemptions"),
    "scheduled": ("num_scheduled_tokens", "tokens"),
}


class Small(NamedTuple):
    """One run of a recorded workload, and its totals in vLLM where they were recorded: those of `QUANTITIES`."""

    name: str
    workload: str
    caching: bool
    gate: bool = True
    watermark: float = 0.0
    totals: tuple[int, int, int] | None = None


GATES: Final = (
    Small("gate-off", "gate", caching=False, gate=False, totals=(260, 46, 5_668)),
    Small("gate-off-caching", "gate", caching=True, gate=False, totals=(253, 14, 2_670)),
    Small("gate-on", "gate", caching=False),
    Small("gate-on-caching", "gate", caching=True, totals=(268, 1, 2_432)),
    Small("tight-pool", "tight", caching=False, totals=(797, 57, 4_041)),
    Small("tight-pool-caching", "tight", caching=True, totals=(797, 60, 3_530)),
)
SMALL_MARKS: Final = (
    Small("small-0", "watermark", caching=False, totals=(499, 16, 3_528)),
    Small("small-0.1", "watermark", caching=False, watermark=0.1, totals=(496, 13, 3_238)),
    Small("small-0.25", "watermark", caching=False, watermark=0.25, totals=(564, 4, 2_885)),
)
UNRECORDED: Final = "not judged: no recording of this combination"


def _replayed(small: Small) -> Pressure:
    recorded = WORKLOADS[small.workload]
    return replayed(recorded, caching=small.caching, gate=small.gate, watermark=small.watermark)


def _judged(prefix: str, runs: tuple[Small, ...]) -> list[Result]:
    results = []
    for small in runs:
        got = _replayed(small)
        for index, (name, (field, unit)) in enumerate(QUANTITIES.items()):
            claim = Claim(
                f"{prefix}/{small.name}/{name}",
                f"{field.removeprefix('num_').replace('_', ' ')}, {len(WORKLOADS[small.workload].rows)} requests",
                small.totals[index] if small.totals else None,
                unit,
                0.0,
                RECORDING,
                "R",
                why_reported="" if small.totals else UNRECORDED,
            )
            results.append(exact(claim, getattr(got, field)))
    return results


def _table(name: str, title: str, runs: tuple[Small, ...]) -> Table:
    rows = []
    for small in runs:
        recorded, got = WORKLOADS[small.workload], _replayed(small)
        shown = ("on" if small.caching else "off", "on" if small.gate else "off", 100 * small.watermark)
        rows.append((small.name, recorded.num_blocks, *shown, *got, got.ratio))
    heads = ("run", "blocks", "caching", "gate", "watermark %", "steps", "preemptions", "scheduled", "useful")
    note = "useful: prompt + output - 1 of each request; with caching, tokens that are found are not scheduled"
    return Table(name, title, (*heads, "scheduled / useful"), tuple(rows), note)


def judge_gates(lab: Lab) -> list[Result]:
    """Every total that was recorded, to the last token."""
    return _judged("gate-storm", GATES)


def gate_tables(lab: Lab) -> list[Table]:
    """The same runs in one view."""
    title = "Admission by the first chunk (gate off) or by the whole sequence, and a pool that is too small for either"
    return [_table("gate-storm/runs", title, GATES)]


# the watermark at scale -----------------------------------------------------------------------------------------------

MARKS: Final = (0.0, 0.01, 0.02, 0.05, 0.10, 0.15, 0.20, 0.30)
NUM_REQUESTS: Final = 1_000
LIMITS: Final = SchedulerConfig(MAX_MODEL_LEN, max_num_seqs=256)
SEEN: Final = (
    "vLLM pull request 44594: 1,065 preemptions, 400 at 2 %, 187 at 5 %; throughput + 5 %, less again at 10-15 %"
)


class MarkKey(NamedTuple):
    """A run of requests that all wait at the start, in the paper's pool of 984 blocks, without caching."""

    watermark: float
    seed: int

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it to its end."""
        pool = PoolConfig(NUM_BLOCKS, BLOCK, MAX_MODEL_LEN, enable_caching=False, watermark=self.watermark)
        trace = synthetic_trace("all-at-once", _lengths(lengths), NUM_REQUESTS, self.seed)
        done = simulate(RunSpec("paged", pool, LIMITS), trace, CostExecutor(PAPER_13B))
        agree(self, done)
        return numbers_of(done.summary)


def _lengths(lengths: Lengths) -> str | tuple[Any, Any]:
    if "sharegpt" not in lengths:
        return "sharegpt"
    prompt, output = lengths["sharegpt"]
    fits = prompt + output <= MAX_MODEL_LEN
    return prompt[fits], output[fits]


def runs(lab: Lab) -> list[MarkKey]:
    """Every watermark, the same seeds."""
    return [MarkKey(mark, seed) for mark in MARKS for seed in seeds(lab)]


def _by_seed(lab: Lab, name: str) -> list[list[float]]:
    """A curve over the watermarks for each seed."""
    return [lab.values([MarkKey(mark, seed) for mark in MARKS], name) for seed in seeds(lab)]


def bends(curve: list[float]) -> int:
    """Steps of a curve that do not belong to one rise and one fall after it; both must be there."""
    peak = curve.index(max(curve))
    up, down = curve[: peak + 1], curve[peak:]
    wrong = sum(b <= a for a, b in pairwise(up)) + sum(b >= a for a, b in pairwise(down))
    return wrong + (len(up) < 2) + (len(down) < 2)


def judge_marks(lab: Lab) -> list[Result]:
    """Small runs as recorded; at scale preemptions fall and throughput rises and falls."""
    preemptions, rates = _by_seed(lab, "num_preemptions"), _by_seed(lab, "makespan_output_tok_per_s")
    rises = [float(sum(b >= a for a, b in pairwise(curve))) for curve in preemptions]
    gains = [100 * (max(curve) / curve[0] - 1) for curve in rates]
    best = [100 * MARKS[curve.index(max(curve))] for curve in rates]
    other = "not judged: another model, load and card"
    shared = (*(() if lab.is_real("sharegpt") else ("stand-in",)), "step-model")

    def claim(name: str, metric: str, expected: float, unit: str, why: str = "") -> Claim:
        return Claim(f"watermark/curve/{name}", metric, expected, unit, 0.0, SEEN, "B", shared, why_reported=why)

    return [
        *_judged("watermark", SMALL_MARKS),
        over_seeds(claim("preemptions", "steps to a higher watermark that preempt no less", 0, "steps"), rises),
        over_seeds(
            claim("throughput", "steps that do not belong to one rise and one fall", 0, "steps"),
            [float(bends(curve)) for curve in rates],
        ),
        over_seeds(claim("gain", "most that a watermark adds to the throughput", 5, "%", other), gains),
        over_seeds(claim("best", "watermark with the highest throughput", 5, "%", other), best),
    ]


def mark_tables(lab: Lab) -> list[Table]:
    """The small runs, and the curve: means over seeds."""
    names = ("num_preemptions", "recomputed_frac", "makespan_mean_batch_size", "makespan_output_tok_per_s")
    rows = []
    for mark in MARKS:
        keys = [MarkKey(mark, seed) for seed in seeds(lab)]
        count, again, batch, rate = (sum(lab.values(keys, name)) / len(keys) for name in names)
        rows.append((100 * mark, count, 100 * again, batch, rate))
    title = f"{NUM_REQUESTS:,} requests of ShareGPT's lengths, all there at the start, {NUM_BLOCKS} blocks of {BLOCK}"
    heads = ("watermark %", "preemptions", "recomputed %", "running", "tokens/s")
    return [
        _table("watermark/small", "A watermark on 24 recorded requests", SMALL_MARKS),
        Table("watermark/curve", title, heads, tuple(rows)),
    ]


GATE_STORM = Experiment("gate-storm", "Preemption storms, with and without the gate", judge_gates, tables=gate_tables)
WATERMARK = Experiment("watermark", "What a watermark buys and costs", judge_marks, runs, mark_tables)
