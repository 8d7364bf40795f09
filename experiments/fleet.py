"""Several replicas in a configuration, and their cells: on one clock, or in shares over processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.backends import is_real
from experiments.exits import UsageError
from experiments.settings import Config, Replicas
from experiments.sharing import shares

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.executor import Executor
    from experiments.cells import Task
    from sim.fleet_run import FleetRun, Part
    from sim.fleet_simulation import Share
    from sim.router import FleetSpec
    from sim.simulate import RunSpec
    from workloads import Trace

OnTurn = Callable[[int], None]
READ_BY = {
    "balance_by": "least-loaded",
    "cache_threshold": "prefix-aware",
    "balance_abs_threshold": "prefix-aware",
    "balance_rel_threshold": "prefix-aware",
}
"""Keys that only one router reads."""


def num_replicas(config: Config) -> int:
    """Of a resolved configuration."""
    return config.fleet.replicas or 1


def with_fleet(config: Config) -> Config:
    """A resolved configuration with the router's defaults, where there are several replicas; one is as none was said.
    Idempotent. UsageError for what cannot be."""
    fleet = config.fleet
    given = {key: value for key, value in fleet.model_dump().items() if value is not None and key != "replicas"}
    if fleet.replicas is None and given:
        key, value = next(iter(given.items()))
        raise UsageError(f"{_flag(key)}{value}: there is one replica and nothing to route: say --replicas N")
    if num_replicas(config) == 1:
        return config.model_copy(update={"fleet": Replicas()})
    router = fleet.router or "round-robin"
    for key, reader in READ_BY.items():
        if key in given and router != reader:
            raise UsageError(f"{_flag(key)}{given[key]}: only --router {reader} reads it, and the router is {router}")
    _refuse(config)
    spec = _spec(fleet.model_copy(update={"router": router}))
    names = {"balance_by": "load"}
    wanted = {key: getattr(spec, names.get(key, key)) for key, reader in READ_BY.items() if reader == router}
    measure = config.measure.model_copy(update={"map_frames": 0})
    return config.model_copy(
        update={"measure": measure, "fleet": fleet.model_copy(update={"router": router, **wanted})}
    )


def _flag(key: str) -> str:
    return f"--{key} ".replace("_", "-")


def _refuse(config: Config) -> None:
    """What one replica alone can do."""
    measure = config.measure
    reasons = {
        f"--backend {measure.backend}: one engine runs in this process": is_real(config),
        "samples, beams and swapping count what is shared in one pool": shares(config),
        "--record steps, residency and sharing follow one pool": any(
            (measure.record_steps, measure.record_residency, measure.record_sharing)
        ),
        f"--map-frames {measure.map_frames}: a map is of one pool": bool(measure.map_frames),
        "--step-model recorded: is one engine's steps": (measure.step_model or "").startswith("recorded:"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"--replicas {config.fleet.replicas}: {reason}: leave one of them out")


def _spec(fleet: Replicas) -> FleetSpec:
    from sim.router import FleetSpec

    given = {
        "num_replicas": fleet.replicas,
        "router": fleet.router,
        "load": fleet.balance_by,
        "cache_threshold": fleet.cache_threshold,
        "balance_abs_threshold": fleet.balance_abs_threshold,
        "balance_rel_threshold": fleet.balance_rel_threshold,
    }
    return FleetSpec(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def fleet_spec(config: Config) -> FleetSpec:
    """What the cells of a resolved configuration are replayed on."""
    return _spec(config.fleet)


class _MakeExecutor:
    """An executor for each replica; can be sent to another process."""

    def __init__(self, task: Task) -> None:
        self._task = replace(task, trace=None)  # type: ignore[arg-type]

    def __call__(self, allocator: KVAllocator) -> Executor:
        from experiments.cells import executor_of

        made: Any = executor_of(self._task)
        return made(allocator) if callable(made) else made  # type: ignore[no-any-return]


def replay_fleet(task: Task, on_turn: OnTurn | None) -> FleetRun:
    """In shares where the router allows it, in `task.jobs` processes; otherwise on one clock."""
    from sim.fleet_simulation import may_be_split, simulate_fleet

    executor = _MakeExecutor(task)
    if may_be_split(task.spec, task.trace):
        return _in_shares(task.spec, task.trace, executor, task.jobs, on_turn)
    return simulate_fleet(task.spec, task.trace, executor, on_turn=on_turn)


def _in_shares(spec: RunSpec, trace: Trace, executor: _MakeExecutor, jobs: int, on_turn: OnTurn | None) -> FleetRun:
    from sim.fleet_simulation import Split

    split = Split(spec, trace)
    jobs = min(jobs, len(split.shares))
    if jobs == 1:
        return split.join([share.replay(spec, executor, on_turn) for share in split.shares])
    # Started anew, so that nothing is inherited.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        futures = [workers.submit(_replay_share, share, spec, executor) for share in split.shares]
        return split.join([future.result() for future in futures])


def _replay_share(share: Share, spec: RunSpec, executor: _MakeExecutor) -> Part:
    if ":" in spec.allocator:
        from experiments.resolve import see_own_modules

        see_own_modules()
    return share.replay(spec, executor)


def fleet_summary(run: FleetRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cell's row, and its tables."""
    replicas = run.replicas()
    tables = {"requests": run.requests(), "timeline": run.timeline(), "replicas": replicas}
    return {**run.summary, **run.columns(replicas)}, tables
