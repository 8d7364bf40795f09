"""Runs of the chapter's judgements: lengths of one mean and any spread, at any load, against any allocator."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import Trace
from workloads.arrivals import poisson
from workloads.lengths import spread

if TYPE_CHECKING:
    from experiments.paper.runs import Lab

BLOCK: Final = 16
WARM_FRAC: Final = 0.25
"""Of the arrivals: before that the pool fills up."""
Item = TypeVar("Item")
Made = TypeVar("Made")
MOST_SEEDS: Final = 3


class Trial(NamedTuple):
    """One run: Poisson arrivals, cut at the last one; means between the first quarter of the arrivals and the last."""

    allocator: str
    num_blocks: int
    max_model_len: int
    mean_prompt: int
    mean_output: int
    cv: float
    """Of prompts and of outputs."""
    rate_per_s: float
    num_requests: int
    seed: int


class Shares(NamedTuple):
    """What came of a trial; fractions of the pool."""

    live: float
    used: float
    """Held by somebody."""
    external: float
    """Free, but of no use to the request at the head."""
    mean_running: float
    num_preemptions: int
    saturated: bool

    @property
    def live_of_used(self) -> float:
        """Slots with a token among those that are held."""
        return self.live / self.used


def run_trial(trial: Trial) -> Shares:
    """Simulates it. AssertionError if its numbers contradict each other."""
    count, seed = trial.num_requests, trial.seed
    trace = Trace.build(
        poisson(trial.rate_per_s, count, seed),
        spread(count, trial.mean_prompt, trial.cv, [seed, 1]),
        spread(count, trial.mean_output, trial.cv, [seed, 2]),
    )
    last_s = float(trace.arrival_ns[-1]) / 1e9
    pool = PoolConfig(trial.num_blocks, BLOCK, trial.max_model_len, enable_caching=False)
    limits = SchedulerConfig(trial.max_model_len, max_num_seqs=count, max_num_batched_tokens=2560)
    spec = RunSpec(trial.allocator, pool, limits, window_s=(WARM_FRAC * last_s, last_s), end_s=last_s)
    done = simulate(spec, trace, CostExecutor(PAPER_13B))
    broken = [check for check in done.checks if not check.holds]
    assert not broken, f"{trial}: {broken}"
    found = done.summary
    return Shares(
        found["kv_live_frac"],
        found["kv_blocks_used_frac"],
        found["kv_external_frac"],
        found["mean_batch_size"],
        found["num_preemptions"],
        found["saturated"],
    )


def in_processes(work: Callable[[Item], Made], items: Sequence[Item], jobs: int) -> list[Made]:
    """`work` of each item, in order, in up to `jobs` processes; it and the items must be picklable."""
    if jobs <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    # Spawned, not forked: the parent may have threads (progress bars, BLAS).
    with ProcessPoolExecutor(min(jobs, len(items)), multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(work, items))


def seeds(lab: Lab) -> range:
    """Three at most: the effects are far larger than the noise."""
    return range(min(lab.num_seeds, MOST_SEEDS))
