"""One cell on its way to a worker, and what comes back: plain values and bytes, ready to be written."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cells import TABLES, Outcome, run_task, task_of
from experiments.config import flatten, map_paths, nested
from experiments.exits import DeviceMissing
from experiments.settings import Config
from experiments.store import files_of
from experiments.sweep.cell import planned
from experiments.sweep.identity import key_of

if TYPE_CHECKING:
    from experiments.sweep.cell import SweepCell


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know."""

    name: str
    key: str
    config: dict[str, Any]
    tables: tuple[str, ...] = ()
    """Of requests and timeline, those that are kept."""
    on_gpu: bool = False


@dataclass(frozen=True, slots=True)
class JobResult:
    """What came of a job."""

    name: str
    key: str
    files: dict[str, bytes] = field(default_factory=dict)
    """The cell's files; nothing where the worker was lost."""
    error: str = ""
    """One line, if there is no summary."""
    failed_checks: tuple[str, ...] = ()
    num_requests: int = 0
    num_completed: int = 0
    num_rows: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    host: str = ""
    pid: int = 0
    engine: dict[str, Any] = field(default_factory=dict)
    """Provenance of the engine that ran the steps; empty for simulated ones."""
    device_missing: bool = False
    """Whether it failed because this machine cannot run such cells."""


def job_of(cell: SweepCell, tables: Sequence[str]) -> Job:
    """The job of a planned cell; its paths are absolute, as workers may be in other folders."""
    on_gpu = cell.config["measure"].get("backend") == "gpu"
    flat = map_paths(flatten(cell.config), lambda path: str(Path(path).absolute()))
    return Job(cell.name, cell.key, nested(flat), tuple(name for name in TABLES if name in tables), on_gpu)


def run_job(job: Job) -> JobResult:
    """Plans the cell again, in this process, and replays it. Whatever goes wrong is in the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        result = _ran(job)
    except (DeviceMissing, ValueError, OSError) as error:  # a file or a device that the plan had is not there
        told = " ".join(f"{type(error).__name__}: {error}".split())
        result = lost(job, told, device_missing=isinstance(error, DeviceMissing))
    return replace(
        result,
        wall_s=time.perf_counter() - wall,
        cpu_s=time.process_time() - cpu,
        host=platform.node(),
        pid=os.getpid(),
    )


def _ran(job: Job) -> JobResult:
    plan = planned(Config.model_validate(job.config))
    if (key := key_of(plan)) != job.key:
        raise ValueError(
            f"the cell is {key[:10]} here and {job.key[:10]} in the plan: a trace, a step-time table or pagelab itself "
            "is another one here"
        )
    [cell] = plan.cells
    outcome = run_task(replace(task_of(plan, cell), tables=job.tables))
    return _result(job, outcome)


def _result(job: Job, outcome: Outcome) -> JobResult:
    summary = outcome.summary or {}
    return JobResult(
        name=job.name,
        key=job.key,
        files=dict(files_of(outcome)),
        error=outcome.error,
        failed_checks=tuple(outcome.failed_checks),
        num_requests=int(summary.get("num_requests", 0)),
        num_completed=outcome.completed,
        num_rows=outcome.num_rows,
        engine=outcome.engine,
    )


def lost(job: Job, error: str, *, device_missing: bool = False) -> JobResult:
    """The result of a job without one."""
    files = {"error.txt": f"{error}\n".encode()}
    return JobResult(job.name, job.key, files=files, error=error, device_missing=device_missing)
