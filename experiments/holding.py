"""What an allocator really holds of a pool while requests never cease to wait.

A backlog of requests is replayed twice: once to its end, to learn when the last one is admitted, and once more to
measure between the first quarter of that time and its end. In between nothing but memory, or the limit of running
requests, decides how many run: a step of a replayed load may have any number of tokens, since with the scheduler's own
limit short requests would come and go too fast to fill the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.simulate import Run, RunSpec, simulate
from workloads import Trace
from workloads.lengths import spread

if TYPE_CHECKING:
    from engine.core.capacity import Capacity
    from engine.core.demand import Demand
    from engine.core.executor import Executor
    from engine.core.model_shape import ModelShape
    from experiments.settings import Config

WARM_FRAC: Final = 0.25
"""Of the time until the last admission: left out, as all requests begin together."""

CVS: Final = (0.0, 1.0)
"""Spreads of lengths that a load is tried with: as the estimate has it, and as conversations rather are."""
ROUNDS: Final = 6
"""Times that the pool is filled, where that takes no more than `ENOUGH_REQUESTS`; fewer beyond."""
LEAST_ROUNDS: Final = 2
"""One is all that the pool takes at once: nobody would wait."""
ENOUGH_REQUESTS: Final = 3_000
MOST_REQUESTS: Final = 40_000
"""A minute or two for each allocator."""


@dataclass(frozen=True, slots=True)
class Held:
    """Means over the time in which the queue is never empty."""

    allocator: str
    workload: str
    """Which lengths."""
    limit: int | None
    """Most requests that may run; None: memory alone decides."""
    mean_running: float
    num_preemptions: int
    """Over the whole run."""
    recomputed_frac: float
    live_frac: float
    """Slots that hold a token / capacity."""
    used_frac: float
    """Blocks that somebody holds / capacity."""
    num_rejected: int
    """Requests that the allocator can never serve."""

    @property
    def holds(self) -> bool | None:
        """Whether as many run as are allowed to, and none is interrupted; None without a limit."""
        if self.limit is None:
            return None
        return not self.num_preemptions and not self.num_rejected and self.mean_running >= self.limit - 1e-9

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, "holds")}


def backlog(num_requests: int, mean_prompt: float, mean_output: float, cv: float, seed: int, longest: int) -> Trace:
    """Requests that all wait at time 0; prompts and outputs of these means, each spread by `cv`, independently.

    Both are cut where together they could exceed `longest`, each at its share of it. ValueError where the means do not
    fit.
    """
    share = mean_prompt / (mean_prompt + mean_output)
    most = int(longest * share)
    prompt = spread(num_requests, mean_prompt, cv, seed, most)
    output = spread(num_requests, mean_output, cv, [seed, 1], longest - most)
    return Trace.build([0] * num_requests, prompt, output, name=f"backlog of {num_requests}, cv {cv:g}")


def hold(
    allocator: str,
    pool: PoolConfig,
    limits: SchedulerConfig,
    trace: Trace,
    executor: Callable[[], Executor],
    *,
    workload: str = "",
    limit: int | None = None,
) -> Held:
    """Replays a backlog against one allocator. `executor` makes a new one for each replay."""
    spec = RunSpec(allocator, pool, replace(limits, max_num_seqs=limit or len(trace)))
    full = simulate(spec, trace, executor())
    last = max((row.first_scheduled for row in full.rows), default=-1) / 1e12
    done = full if last <= 0 else simulate(replace(spec, window_s=(WARM_FRAC * last, last)), trace, executor())
    return _held(done, allocator, workload, limit)


def _held(run: Run, allocator: str, workload: str, limit: int | None) -> Held:
    broken = [check for check in run.checks if not check.holds]
    assert not broken, f"{allocator}: {broken}"
    summary = run.summary
    return Held(
        allocator,
        workload,
        limit,
        float(summary["mean_batch_size"] or 0.0),
        int(summary["num_preemptions"]),
        float(summary["recomputed_frac"] or 0.0),
        float(summary["kv_live_frac"] or 0.0),
        float(summary["kv_blocks_used_frac"] or 0.0),
        int(summary["num_rejected"]),
    )


def num_waiting(demand: Demand, capacity: Capacity) -> int:
    """Requests of a backlog that keep the pool full. ValueError where they are too many to replay."""
    together = round(capacity.capacity_tokens / demand.mean_tokens_each)
    at_once = max(together, demand.concurrency or 1, 16)
    count = max(min(ROUNDS * at_once, ENOUGH_REQUESTS), LEAST_ROUNDS * at_once)
    if count > MOST_REQUESTS:
        raise ValueError(
            f"--simulate: about {together:,} requests of {demand.tokens_each:g} tokens fit at once and "
            f"{demand.concurrency or together:,} were asked for; {count:,} would have to be replayed, more than "
            f"{MOST_REQUESTS:,}: ask for fewer, or pin a smaller pool (--kv-tokens)"
        )
    return count


def hold_load(config: Config, shape: ModelShape, capacity: Capacity, demand: Demand) -> list[Held]:
    """The load on each allocator of a resolved configuration: with the asked concurrency as limit, and with memory as
    the only one. ValueError where a length cannot be served at all."""
    from experiments.resolve import scheduler_config
    from experiments.step_cost import step_model_of
    from sim.cost_executor import CostExecutor
    from sim.recorded_executor import Recording

    model, limits = step_model_of(config, shape), scheduler_config(config)
    if model is None or isinstance(model, Recording):
        raise ValueError("--simulate needs a step-time model: drop --backend, or the recording")
    pool = PoolConfig(capacity.num_blocks, capacity.block_size, limits.max_model_len, enable_caching=False)
    longest = min(limits.max_model_len, capacity.capacity_tokens)
    count = num_waiting(demand, capacity)
    limits = replace(limits, max_num_batched_tokens=max(limits.max_num_batched_tokens, count * longest))
    found = []
    for limit in dict.fromkeys((demand.concurrency, None)):
        for cv in CVS:
            trace = backlog(count, demand.mean_prompt_tokens, demand.mean_output_tokens, cv, config.seed, longest)
            for name in config.kv.allocator or ():
                made = partial(CostExecutor, model)
                found.append(hold(name, pool, limits, trace, made, workload=f"cv {cv:g}", limit=limit))
    return found
