"""Random small fleets, and everything about them that must not depend on how steps were grouped."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from engine.core.step import Cut
from sim.cost_executor import CostExecutor
from sim.fleet_run import FleetRun
from sim.fleet_simulation import Split, simulate_fleet
from sim.router import ROUTERS, FleetSpec
from tests.sim.cases import Case, prepared, random_case, random_shared_case, random_trace


def random_fleet(seed: int, router: str | None = None, *, groups: bool = False) -> Case:
    """A random case, for one to five replicas; prefixes count from the first token on, and any imbalance."""
    rng = Random(f"fleet {seed}")
    case = random_shared_case(seed) if groups else random_case(seed)
    if not groups:  # enough requests for several pools to run dry
        content = rng.choice(("none", "blocks", "tokens", "runs"))
        trace, tokens = random_trace(rng, case.spec.pool.max_model_len, content, 30)
        case = replace(case, trace=trace, tokens=tokens)
    fleet = FleetSpec(
        rng.choice((1, 2, 2, 3, 5)),
        router or rng.choice(tuple(ROUTERS)),  # type: ignore[arg-type]
        load=rng.choice(("requests", "kv")),
        cache_threshold=rng.choice((0.0, 0.3)),
        balance_abs_threshold=rng.choice((0, 1, 64)),
        balance_rel_threshold=rng.choice((1.0, 1.5)),
    )
    return replace(case, spec=replace(case.spec, fleet=fleet))


def executor_of(case: Case) -> Any:
    costs = {"copy_block_ps": case.copy_block_ps, "swap_block_ps": case.swap_block_ps}
    return lambda allocator: CostExecutor(case.model, **costs)


def play_fleet(case: Case, cut: Cut | None = None, *, skip: bool = True) -> FleetRun:
    with prepared(case):
        return simulate_fleet(replace(case.spec, skip=skip), case.trace, executor_of(case), cut=cut)


def play_shares(case: Case) -> FleetRun:
    """The same in shares of the trace, each replayed by itself."""
    with prepared(case):
        split = Split(case.spec, case.trace)
        return split.join([share.replay(case.spec, executor_of(case)) for share in split.shares])


def seen_of_fleet(run: FleetRun) -> dict[str, Any]:
    """Rows, integrals, waits and counters, of the fleet and of each replica."""
    recorder = run.recorder
    seen = {
        "rows": list(run.rows),
        "served by": run.replica_of().tolist(),
        "segments": recorder.integrals.segments(),
        "waits": (sorted(recorder.wait_starts), sorted(recorder.wait_ends)),
        "blocked": sorted(recorder.blocked),
        "makespan": run.makespan,
        "copies": recorder.num_copied_blocks,
        "prefix": run.prefix,
        "summary": run.summary,
    }
    for index, part in enumerate(run.parts):
        seen[f"replica {index}"] = (list(part.rows), part.integrals.segments(), part.blocked, part.prefix)
    return seen
