"""Running one cell: a replay, its tables and its checks. Nothing is written here."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from experiments.exits import DeviceMissing
from experiments.resolve import Cell, Plan, pool_config, see_own_modules

if TYPE_CHECKING:
    import pandas as pd

    from engine.core.allocator import KVAllocator
    from engine.core.executor import Executor
    from sim.cost import StepModel
    from sim.simulate import RunSpec
    from workloads import Trace

OnTurn = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A cell with all it needs, ready to be sent to another process."""

    cell: Cell
    spec: RunSpec
    trace: Trace
    step_model: StepModel
    executor: str


@dataclass(slots=True)
class Outcome:
    """What came of a cell."""

    cell: Cell
    summary: dict[str, Any] | None = None
    """None if the run raised."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """requests, timeline, and map or steps where they were asked for."""
    num_rows: dict[str, int] = field(default_factory=dict)
    """Of each table, also after the tables have been let go."""
    error: str = ""
    """One line, if the run raised."""
    details: str = ""
    wall_s: float = 0.0

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
        record_steps=measure.record_steps,
        skip=measure.skip,
    )
    return Task(cell, spec, plan.trace(cell), plan.step_model, measure.executor)


def run_task(task: Task, on_turn: OnTurn | None = None) -> Outcome:
    """Replays; an exception of the allocator or the simulator becomes a failed outcome."""
    from sim.simulate import simulate

    started = time.perf_counter()
    if ":" in task.cell.allocator:
        see_own_modules()
    try:
        with redirect_stdout(sys.stderr):  # an allocator may print, but stdout is for results
            run = simulate(task.spec, task.trace, executor_of(task), on_turn=on_turn)
        tables = {"requests": run.requests(), "timeline": run.timeline()}
        if task.cell.map_frames:
            tables["map"] = run.memory_map()
        if task.spec.record_steps:
            tables["steps"] = run.steps()
        outcome = Outcome(task.cell, dict(run.summary), [check._asdict() for check in run.checks], tables)
    except DeviceMissing:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an allocator does, the other cells are kept
        told = " ".join(f"{type(error).__name__}: {error}".split())
        outcome = Outcome(task.cell, error=told, details=traceback.format_exc())
    outcome.num_rows = {name: len(frame) for name, frame in outcome.tables.items()}
    outcome.wall_s = time.perf_counter() - started
    return outcome


def executor_of(task: Task) -> Executor | Callable[[KVAllocator], Executor]:
    """The executor by name; DeviceMissing where its package is not installed."""
    from sim.cost_executor import CostExecutor

    if task.executor == "cost":
        return CostExecutor(task.step_model)
    if task.executor == "shadow":
        from sim.shadow import ShadowExecutor

        return partial(ShadowExecutor, model=task.step_model)
    return _one_layer(task.step_model)


def _one_layer(model: StepModel) -> Callable[[KVAllocator], Executor]:
    """Computes on the CPU; the clock is the step-time model's, so that the tables stay the same on every machine."""
    need_torch()
    from engine.worker.one_layer import OneLayerExecutor
    from sim.cost import features_of

    return partial(OneLayerExecutor, duration_ps=lambda batch: model.duration(features_of(batch)))


def need_torch() -> None:
    """DeviceMissing, with what to install, where torch is not."""
    if find_spec("torch") is None:
        raise DeviceMissing("the executor torch-cpu needs torch, which is not installed: pip install -e '.[engine]'")
