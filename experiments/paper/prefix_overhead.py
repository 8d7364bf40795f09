"""What prefix caching costs where nothing is ever found: host time, by the block and by the request.

Simulated requests with different prompts run with caching and without; the difference is what lookups, commits and
evictions cost. The engine pays it beside its steps, so it is set against the time that those take; what it costs the
engine itself, on a device, `pagelab run --backend gpu` with and without `--enable-prefix-caching` measures.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments.bench.block_costs import Cost, measured_apart
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import MAX_MODEL_LEN, Lab
from sim.cost import LinearModel, parse_step_model
from sim.cost_executor import CostExecutor
from sim.simulate import Run, RunSpec, Simulation
from workloads import Trace, synthetic_trace

NAME: Final = "prefix-cache-overhead"
BLOCK: Final = 16
NUM_BLOCKS: Final = 6_912
NUM_REQUESTS: Final = 1_000
LIMITS: Final = SchedulerConfig(MAX_MODEL_LEN, max_num_seqs=128)
STEP_MODEL: Final = "linear:9.75e-3,38e-6,0.287e-6,89e-6"
"""Llama-2-7B on an A100, fitted to another simulator's step times: faster steps make the host weigh more."""
ROUNDS: Final = 7
QUICK_ROUNDS: Final = 3
LIMITS_US: Final = {
    ("lookup", 256): 0.15,
    ("without caching", 16): 0.15,
    ("without caching", 256): 0.15,
    ("unhashed", 16): 0.25,
    ("unhashed", 256): 0.25,
    ("commit and evict", 16): 0.6,
    ("commit and evict", 256): 0.6,
}
"""us a block, at most; vLLM 0.33's Python: 0.8 to find, 0.32 and 0.23 without caching, 0.57 and 0.53 unhashed."""
SOURCE: Final = "aim of this project; vLLM 0.33's Python core beside it in the table"
VLLM_US: Final = {
    ("lookup", 256): 0.77,
    ("without caching", 16): 0.32,
    ("without caching", 256): 0.23,
    ("unhashed", 16): 0.57,
    ("unhashed", 256): 0.53,
    ("hashing", 256): 1.7,
}
"""CPU us a block on a busy machine of this kind, good to 30 %."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Replays of one trace, in turns: the best of each."""

    off_us: float
    """CPU time a request without caching."""
    on_us: float
    step_us: float
    """Modelled time a request, all of them waiting at the start."""
    blocks_per_request: float
    num_evictions: int

    @property
    def added_us(self) -> float:
        """What caching adds to a request."""
        return self.on_us - self.off_us


def unshared(num_requests: int) -> Trace:
    """Requests of ShareGPT's lengths that share no block, all there at the start."""
    drawn = synthetic_trace("all-at-once", "sharegpt", num_requests, 0)
    counts = -(-drawn.num_prompt_tokens // BLOCK)
    return Trace.build(
        drawn.arrival_ns,
        drawn.num_prompt_tokens,
        drawn.num_output_tokens,
        block_offsets=np.concatenate(([0], np.cumsum(counts))),
        block_ids=np.arange(int(counts.sum())),
        block_size=BLOCK,
        block_scope="chained",
        block_partial="ceil",
        name=drawn.name,
    )


def overhead(lab: Lab) -> Overhead:
    """With and without caching, in turns, stepping as the engine does: a run of equal steps taken at once would hide
    what a step costs."""
    return lab.once(NAME, lambda: _overhead(NUM_REQUESTS, QUICK_ROUNDS if lab.quick else ROUNDS))


def _overhead(num_requests: int, rounds: int) -> Overhead:
    trace, model = unshared(num_requests), parse_step_model(STEP_MODEL)
    assert isinstance(model, LinearModel)
    best = {False: float("inf"), True: float("inf")}
    for _ in range(rounds):
        for caching in best:
            seconds, run = _timed(trace, model, caching=caching)
            best[caching] = min(best[caching], seconds)
            _sane(run)
    off, on = (1e6 * best[caching] / num_requests for caching in (False, True))
    tokens = trace.num_prompt_tokens + trace.num_output_tokens - 1
    blocks = float((tokens // BLOCK).mean())
    return Overhead(off, on, run.makespan / 1e6 / num_requests, blocks, run.allocator.stats().num_evictions)


def _timed(trace: Trace, model: LinearModel, *, caching: bool) -> tuple[float, Run]:
    pool = PoolConfig(NUM_BLOCKS, BLOCK, MAX_MODEL_LEN, enable_caching=caching)
    simulation = Simulation(RunSpec("paged", pool, LIMITS, skip=False), trace, CostExecutor(model), load=True)
    gc.collect()
    start = time.process_time()
    simulation.replay()
    return time.process_time() - start, simulation.run()


def _sane(run: Run) -> None:
    """AssertionError where something was found, lost or computed twice: then it is not the overhead that is seen."""
    found = run.summary["prefix_hit_tokens"], run.summary["num_preemptions"]
    assert found == (0, 0), f"hit tokens and preemptions are {found}, but no prompts are shared and memory lasts"
    assert all(check.holds for check in run.checks), run.checks


def costs(lab: Lab) -> list[Cost]:
    """By the block."""
    return lab.once(f"{NAME}/blocks", lambda: measured_apart(30 if lab.quick else 100))


def judge(lab: Lab) -> list[Result]:
    """By the block against what was aimed at; by the request against the time that its steps take."""
    load = f"CPU time, best of many; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    results = []
    for cost in costs(lab):
        limit = LIMITS_US.get((cost.case, cost.batch))
        if limit is not None:
            name = f"{NAME}/{cost.case.replace(' ', '-')}/{cost.batch}"
            metric = f"{cost.case}, {cost.batch} blocks a call"
            claim = Claim(name, metric, limit, "us/block", 0.0, SOURCE, "R", at_most=True)
            results.append(exact(claim, cost.us_per_block, load))
    return results + _of_requests(lab, load)


def _of_requests(lab: Lab, load: str) -> list[Result]:
    found, hashing = overhead(lab), next(cost.us_per_block for cost in costs(lab) if cost.case == "hashing")
    added = found.added_us + hashing * found.blocks_per_request
    why = "not judged: how much of it the rest is, hangs on what else the simulator does"
    name, metric = f"{NAME}/simulator/ratio", "host time of a simulated request, with caching over without"
    ratio = Claim(name, metric, 1, "x", source="no cost at all", confidence="R", why_reported=why)
    share = Claim(
        f"{NAME}/of-step-time",
        "host time that caching adds, hashing included, over the time that the steps take",
        1.0,
        "%",
        0.0,
        "aim: under 1 % of the throughput, even if none of it hid behind the steps",
        "R",
        note=f"step model {STEP_MODEL}: Llama-2-7B on an A100",
        at_most=True,
    )
    note = f"{found.off_us:.0f} us a request without caching, {found.on_us:.0f} with; {load}"
    said = f"{added:.0f} us of {found.step_us:,.0f} us a request"
    return [exact(ratio, found.on_us / found.off_us, note), exact(share, 100 * added / found.step_us, said)]


def tables(lab: Lab) -> list[Table]:
    """By the block, with vLLM's own on another day."""
    rows = [
        (cost.case, cost.batch, cost.us_per_block, VLLM_US.get((cost.case, cost.batch)), LIMITS_US.get(cost[:2]))
        for cost in costs(lab)
    ]
    found = overhead(lab)
    note = (
        f"{NUM_REQUESTS:,} requests that share nothing, {found.blocks_per_request:.0f} full blocks each, "
        f"{found.num_evictions:,} evictions: {found.off_us:.0f} us of host time a request without caching, "
        f"{found.on_us:.0f} with"
    )
    heads = ("case", "blocks a call", "us a block", "vLLM 0.33's Python", "at most")
    return [Table(f"{NAME}/blocks", "Host time of the block pool, CPU us a block", heads, tuple(rows), note)]


PREFIX_OVERHEAD = Experiment(NAME, "Prefix caching where nothing is found", judge, tables=tables)
