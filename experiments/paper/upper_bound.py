"""Section 4.1.1 of the chapter tried: "33 sequences of 2,048 tokens", beside what each allocator sustains.

The pool is the chapter's upper bound itself, room for just 33 such sequences. Requests wait all the time, so that
memory alone decides how many run: all of 2,048 tokens in one workload, as the paper's ShareGPT in the other.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from engine.core.allocator import Refusal
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from experiments.holding import Held, hold
from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import SYSTEMS, Lab
from experiments.paper.trials import BLOCK, in_processes, seeds
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from workloads import Trace, synthetic_trace

CLAIMED: Final = 33
LONGEST: Final = 2048
NUM_BLOCKS: Final = CLAIMED * LONGEST // BLOCK
HALF: Final = LONGEST // 2
NUM_REQUESTS: Final = {"full-length": 240, "sharegpt": 1400}
NUM_QUICK_REQUESTS: Final = {"full-length": 160, "sharegpt": 700}
DEVIATIONS: Final = ("mixed-units", "step-model")


def _trace(lab: Lab, workload: str, seed: int) -> Trace:
    count = (NUM_QUICK_REQUESTS if lab.quick else NUM_REQUESTS)[workload]
    if workload == "full-length":
        return synthetic_trace("all-at-once", f"fixed:{HALF},{HALF}", count, seed)
    prompt, output = lab.lengths["sharegpt"] if lab.is_real("sharegpt") else (None, None)
    if prompt is None or output is None:
        return synthetic_trace("all-at-once", "sharegpt", count, seed)
    fits = prompt + output <= LONGEST
    return synthetic_trace("all-at-once", (prompt[fits], output[fits]), count, seed)


def _held(job: tuple[str, str, Trace]) -> Held:
    allocator, workload, trace = job
    pool = PoolConfig(NUM_BLOCKS, BLOCK, LONGEST, enable_caching=False)
    limits = SchedulerConfig(LONGEST, max_num_batched_tokens=2560)
    return hold(allocator, pool, limits, trace, partial(CostExecutor, PAPER_13B), workload=workload)


def measured(lab: Lab) -> dict[tuple[str, str], list[Held]]:
    """By workload and allocator, a value a seed; equal requests need but one."""

    def make() -> dict[tuple[str, str], list[Held]]:
        jobs = [
            (allocator, workload, _trace(lab, workload, seed))
            for workload in NUM_REQUESTS
            for seed in (seeds(lab) if workload == "sharegpt" else range(1))
            for allocator in SYSTEMS
        ]
        found: dict[tuple[str, str], list[Held]] = {}
        for held in in_processes(_held, jobs, lab.jobs):
            found.setdefault((held.workload, held.allocator), []).append(held)
        return found

    return lab.once("upper_bound", make)


def whole_sequences(allocator: str) -> int:
    """Sequences of full length that are allocated one beside the other before one is refused."""
    made = make_allocator(allocator, PoolConfig(NUM_BLOCKS, BLOCK, LONGEST, enable_caching=False))
    for count in range(2 * CLAIMED):
        request = Request(count, HALF, HALF)
        if isinstance(made.admit(request, HALF, others_running=bool(count)), Refusal):
            return count
        if isinstance(made.extend([request], [LONGEST]), Refusal):
            return count
    raise AssertionError(f"{allocator} took {2 * CLAIMED} sequences into room for {CLAIMED}")


def judge(lab: Lab) -> list[Result]:
    """33 of full length fit; a reservation of the longest holds 33 whatever arrives; paging holds more of anything."""
    found = measured(lab)
    results = [
        exact(_claim(f"whole/{name}", "sequences of 2,048 tokens side by side", CLAIMED), whole_sequences(name))
        for name in SYSTEMS
    ]
    for workload, names in (("full-length", ("orca-max", "orca-oracle")), ("sharegpt", ("orca-max",))):
        for name in names:
            values = [held.mean_running for held in found[workload, name]]
            made = _claim(f"{workload}/{name}", f"running requests, {_said(workload)}", CLAIMED, lab, workload)
            results.append(over_seeds(made, values))
    for workload in NUM_REQUESTS:
        values = [held.mean_running for held in found[workload, "paged"]]
        made = _claim(f"{workload}/paged", f"paged: short of 33 running, {_said(workload)}", 0, lab, workload)
        lacking = [max(0.0, CLAIMED - value) for value in values]
        results.append(over_seeds(made, lacking, f"{sum(values) / len(values):.1f} run, at mixed ages"))
    return results


def _said(workload: str) -> str:
    return "all of 1,024 + 1,024 tokens" if workload == "full-length" else "ShareGPT's lengths"


def _claim(name: str, metric: str, expected: float, lab: Lab | None = None, workload: str = "") -> Claim:
    source = "chapter 4.1.1: 54 GB / 1.6 GB = 33 requests"
    stand_in = ("stand-in",) if lab is not None and workload == "sharegpt" and not lab.is_real("sharegpt") else ()
    tolerance = 0.05 if workload else 0.0
    return Claim(
        f"upper_bound/{name}", metric, expected, "requests", tolerance, source, "R", (*DEVIATIONS, *stand_in)
    )  # fmt: skip


def tables(lab: Lab) -> list[Table]:
    """What each allocator sustains."""
    rows = []
    for (workload, allocator), held in measured(lab).items():
        count = len(held)
        running, live, used = (
            sum(values) / count
            for values in zip(*((one.mean_running, one.live_frac, one.used_frac) for one in held), strict=True)
        )
        preemptions = sum(one.num_preemptions for one in held) / count
        rows.append((workload, allocator, CLAIMED, running, 100 * live, 100 * used, preemptions))
    columns = ("lengths", "allocator", "chapter", "running", "live %", "held %", "preemptions")
    title = f"What {NUM_BLOCKS:,} blocks of {BLOCK} sustain while requests wait"
    return [Table("upper_bound/sustained", title, columns, tuple(rows))]


UPPER_BOUND = Experiment("upper_bound", "33 requests in 54 GB (4.1.1)", judge, tables=tables)
