"""Section 4.8 of the chapter tried: 32 conversations of 800 + 256 tokens in 2,457 blocks, estimated and replayed."""

from __future__ import annotations

from functools import partial
from typing import Final

from engine.core.capacity import chapter_capacity
from engine.core.catalogue import lookup
from engine.core.demand import Demand
from engine.core.gpus import lookup_gpu
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments.holding import CVS, Held, backlog, hold
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import SYSTEMS, Lab
from experiments.paper.trials import BLOCK, in_processes, seeds
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor

LOAD: Final = Demand(800, 256, 32)
NUM_BLOCKS: Final = 2457
"""6 GiB of Llama-3-70B's KV on one of two ranks."""
MAX_MODEL_LEN: Final = 8192
"""Llama-3-70B's."""
NUM_REQUESTS: Final = 320
STEP: Final = LinearModel(20 * 10**9, 10**8, 10**5, 10**8)
"""20 ms and a little for sequences and tokens: what runs together depends on it only through the order of events."""


def _held(job: tuple[str, float, int | None, int]) -> Held:
    allocator, cv, limit, seed = job
    trace = backlog(NUM_REQUESTS, LOAD.mean_prompt_tokens, LOAD.mean_output_tokens, cv, seed, MAX_MODEL_LEN)
    pool = PoolConfig(NUM_BLOCKS, BLOCK, MAX_MODEL_LEN, enable_caching=False)
    limits = SchedulerConfig(MAX_MODEL_LEN)
    made = partial(CostExecutor, STEP)
    return hold(allocator, pool, limits, trace, made, workload=f"cv {cv:g}", limit=limit)


def measured(lab: Lab) -> dict[tuple[str, str, int | None], list[Held]]:
    """By allocator, lengths and limit, a value a seed."""

    def make() -> dict[tuple[str, str, int | None], list[Held]]:
        jobs = [
            (allocator, cv, limit, seed)
            for limit in (LOAD.concurrency, None)
            for cv in CVS
            for allocator in SYSTEMS
            for seed in (seeds(lab) if cv else range(1))
        ]
        found: dict[tuple[str, str, int | None], list[Held]] = {}
        for held in in_processes(_held, jobs, lab.jobs):
            found.setdefault((held.allocator, held.workload, held.limit), []).append(held)
        return found

    return lab.once("concurrency", make)


def judge(lab: Lab) -> list[Result]:
    """The estimate from the capacity rule and the load, then what the replay says of equal lengths."""
    readings = chapter_capacity(lookup("llama-3-70b"), lookup_gpu("a100-80g"), tp=2, block_size=BLOCK)
    pool = {capacity.rule: capacity.num_blocks for capacity in readings}["chapter-gib"]
    fit = LOAD.fit(pool, BLOCK)
    found = measured(lab)
    equal = {name: found[name, "cv 0", LOAD.concurrency][0] for name in SYSTEMS}
    assert fit.blocks_needed is not None
    return [
        exact(_claim("tokens", "32 x 1056 tokens", 33_792, "tokens", "A"), LOAD.tokens() or 0),
        exact(_claim("blocks", "the same in blocks of 16", 2112, "blocks", "A"), fit.blocks_needed),
        exact(_claim("pool", "blocks in 6 GiB a rank", NUM_BLOCKS, "blocks", "R", "mixed-units"), pool),
        exact(_claim("largest", "most requests of full length", NUM_BLOCKS // 66, "requests"), fit.largest_concurrency),
        exact(_claim("paged/running", "paged: running, of 32 allowed", 32, "requests"), equal["paged"].mean_running),
        exact(_claim("paged/preemptions", "paged: interrupted", 0, "requests"), equal["paged"].num_preemptions),
        exact(
            _claim("orca-oracle/running", "66 blocks rounded up to 128: running, of 32", NUM_BLOCKS // 128, "requests"),
            equal["orca-oracle"].mean_running,
        ),
        exact(
            _claim("orca-max/running", "8,192 tokens reserved each: running, of 32", NUM_BLOCKS // 512, "requests"),
            equal["orca-max"].mean_running,
        ),
    ]


def _claim(name: str, metric: str, expected: float, unit: str, confidence: str = "R", *deviations: str) -> Claim:
    source = "chapter 4.8: 32 x 1056 tokens against 2,400 blocks"
    tolerance = 1e-6 if name.endswith("running") else 0.0
    return Claim(f"concurrency/{name}", metric, expected, unit, tolerance, source, confidence, deviations)


def tables(lab: Lab) -> list[Table]:
    """What each allocator holds: at the asked concurrency and at any, for equal lengths and for spread ones."""
    rows = []
    for (allocator, lengths, limit), held in measured(lab).items():
        names = ("mean_running", "num_preemptions", "recomputed_frac", "live_frac", "used_frac")
        running, preemptions, recomputed, live, used = (
            sum(getattr(one, name) for one in held) / len(held) for name in names
        )
        cells = (running, preemptions, 100 * recomputed, 100 * live, 100 * used)
        rows.append((allocator, lengths, "any" if limit is None else limit, *cells))
    columns = ("allocator", "lengths", "allowed", "running", "preemptions", "recomputed %", "live %", "held %")
    note = "cv 0: all 800 + 256; cv 1: lognormal of the same means, mean of seeds"
    title = f"{NUM_REQUESTS} requests wait for {NUM_BLOCKS:,} blocks"
    return [Table("concurrency/held", title, columns, tuple(rows), note)]


CONCURRENCY = Experiment("concurrency", "32 conversations in 6 GB (4.8)", judge, tables=tables)
