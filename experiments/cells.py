"""Running one cell: a replay, its tables and its checks. Nothing is written here."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.backends import engine_config_of, engine_for, is_real, need_torch
from experiments.exits import DeviceMissing
from experiments.fleet import fleet_spec, fleet_summary, replay_fleet
from experiments.measured import EngineRun
from experiments.resolve import Cell, Plan, pool_config, see_own_modules
from experiments.sharing import counts_sharing, shares, transfers_of, width_of
from sim.reconcile import Check
from sim.recorded_executor import RecordedExecutor, Recording

if TYPE_CHECKING:
    import pandas as pd

    from engine.core.allocator import KVAllocator
    from engine.core.executor import Executor
    from engine.worker.engine import EngineConfig
    from experiments.settings import Config
    from sim.cost import StepModel
    from sim.simulate import Run, RunSpec
    from workloads import Trace

OnTurn = Callable[[int], None]
TABLES = ("requests", "timeline")
"""What `run` and `compare` keep of every cell, beside its summary."""


@dataclass(frozen=True, slots=True)
class Task:
    """A cell with all it needs, ready to be sent to another process."""

    cell: Cell
    spec: RunSpec
    trace: Trace
    step_model: StepModel | Recording | None
    executor: str
    backend: str = "sim"
    engine: EngineConfig | None = None
    """None where steps are simulated."""
    costs: dict[str, Any] = field(default_factory=dict)
    """Of copies and swaps, in ps a block, and of a search's beams; {} where there are none."""
    tables: tuple[str, ...] = TABLES
    """Which of these are made; map and steps are made where the run records them."""
    jobs: int = 1
    """Processes that this cell alone may take, where its replicas can be replayed apart."""


@dataclass(slots=True)
class Outcome:
    """What came of a cell."""

    cell: Cell
    summary: dict[str, Any] | None = None
    """None if the run raised."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """requests, timeline, preemptions where there were any, and map or steps where they were asked for."""
    num_rows: dict[str, int] = field(default_factory=dict)
    """Of each table, also after the tables have been let go."""
    error: str = ""
    """One line, if the run raised."""
    details: str = ""
    wall_s: float = 0.0
    engine: dict[str, Any] = field(default_factory=dict)
    """Provenance of the engine that ran the steps: device, versions, types, weights. Empty for simulated ones."""

    @property
    def failed_checks(self) -> list[str]:
        """Names of the equations that do not hold."""
        return [check["name"] for check in self.checks if not check["holds"]]

    @property
    def completed(self) -> int:
        """Requests served to their end."""
        return 0 if self.summary is None else int(self.summary["num_finished"]) + int(self.summary["num_truncated"])


def task_of(plan: Plan, cell: Cell) -> Task:
    """The cell of a plan."""
    from sim.simulate import RunSpec

    config = plan.config
    measure, rules = config.measure, config.scheduler
    spec = RunSpec(
        allocator=cell.allocator,
        pool=pool_config(config, cell),
        limits=plan.limits,
        too_long=rules.too_long,
        final_token_has_slot=bool(rules.final_token_has_slot),
        window_s=measure.window_s if isinstance(measure.window_s, tuple) else None,
        end_s=measure.end_s if isinstance(measure.end_s, float) else None,
        num_snapshots=cell.map_frames,
        max_concurrency=config.workload.max_concurrency,
        record_steps=measure.record_steps or is_real(config),
        record_residency=measure.record_residency,
        skip=measure.skip,
        num_samples=width_of(config),
        beam_search=config.workload.beam_width is not None,
        record_sharing=counts_sharing(config),
        tell_sharing=bool(rules.enable_prefix_caching) and bool(plan.trace(cell).block_size) and not is_real(config),
        bytes_per_token=plan.pool.bytes_per_token,
        fleet=fleet_spec(config),
    )
    engine = engine_config_of(config) if is_real(config) else None
    costs = _costs(config, cell)
    return Task(cell, spec, plan.trace(cell), plan.step_model, measure.executor, measure.backend, engine, costs)


def _costs(config: Config, cell: Cell) -> dict[str, Any]:
    if is_real(config) or not shares(config):
        return {}
    from sim.ancestry import Ancestry

    transfers = transfers_of(config, cell.block_size)
    spread = config.measure.beam_spread
    beams = {} if spread is None else {"ancestry": Ancestry(cell.seed, spread)}
    return {"copy_block_ps": transfers.copy_block_ps, "swap_block_ps": transfers.swap_block_ps, **beams}


def run_task(task: Task, on_turn: OnTurn | None = None) -> Outcome:
    """Replays; an exception of the allocator, the simulator or the engine becomes a failed outcome."""
    started = time.perf_counter()
    if ":" in task.cell.allocator:
        see_own_modules()
    try:
        with redirect_stdout(sys.stderr):  # an allocator may print, but stdout is for results
            outcome = _replayed(task, on_turn)
    except DeviceMissing:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an allocator does, the other cells are kept
        told = " ".join(f"{type(error).__name__}: {error}".split())
        outcome = Outcome(task.cell, error=told, details=traceback.format_exc())
    outcome.num_rows = {name: len(frame) for name, frame in outcome.tables.items()}
    outcome.wall_s = time.perf_counter() - started
    return outcome


def _replayed(task: Task, on_turn: OnTurn | None) -> Outcome:
    from sim.simulate import Simulation

    if task.spec.fleet.num_replicas > 1:
        fleet = replay_fleet(task, on_turn)
        summary, tables = fleet_summary(fleet)
        return Outcome(task.cell, summary, [check._asdict() for check in fleet.checks], tables)
    executor = executor_of(task)
    simulation = Simulation(task.spec, task.trace, executor, on_turn=on_turn)
    begun = time.perf_counter()
    simulation.replay()
    replay_wall_s = time.perf_counter() - begun
    run = simulation.run()
    tables = {name: getattr(run, name)() for name in TABLES if name in task.tables}
    if "requests" in tables and len(run.recorder.away.starts):
        tables["preemptions"] = run.preemptions()
    if task.cell.map_frames:
        tables["map"] = run.memory_map()
    outcome = Outcome(task.cell, dict(run.summary), [check._asdict() for check in run.checks], tables)
    if isinstance(executor, EngineRun):
        _add_measured(task, outcome, executor, run, replay_wall_s)
    elif task.spec.record_steps:
        tables["steps"] = run.steps()
    if isinstance(executor, RecordedExecutor):
        left = executor.num_left
        outcome.checks.append(Check("recording: every step was played", left == 0, left, 0)._asdict())
    return outcome


def _add_measured(task: Task, outcome: Outcome, executor: EngineRun, run: Run, replay_wall_s: float) -> None:
    """Columns, checks and the table of steps of a real run."""
    assert outcome.summary is not None
    where = {"backend": task.backend, "kernel": task.cell.kernel}
    outcome.summary = {**where, **outcome.summary, **executor.summary(run, replay_wall_s)}
    outcome.checks += [check._asdict() for check in executor.checks(run)]
    outcome.tables["steps"] = executor.frame(run)
    outcome.engine = dict(executor.engine.provenance)


def executor_of(task: Task) -> Executor | EngineRun | Callable[[KVAllocator], Executor]:
    """The executor by name; DeviceMissing where its package is not installed."""
    if task.engine is not None:
        return EngineRun(engine_for(task.engine), task.cell.kernel)
    if isinstance(task.step_model, Recording):
        return RecordedExecutor(task.step_model)
    assert task.step_model is not None
    if task.executor == "cost":
        from sim.cost_executor import CostExecutor

        return CostExecutor(task.step_model, **task.costs)
    if task.executor == "shadow":
        from sim.shadow import ShadowExecutor

        return partial(ShadowExecutor, model=task.step_model, **task.costs)
    return _one_layer(task.step_model)


def _one_layer(model: StepModel) -> Callable[[KVAllocator], Executor]:
    """Computes on the CPU; the clock is the step-time model's, so that the tables stay the same on every machine."""
    need_torch("the executor torch-cpu")
    from engine.worker.one_layer import OneLayerExecutor
    from sim.cost import features_of

    return partial(OneLayerExecutor, duration_ps=lambda batch: model.duration(features_of(batch)))
