"""A sweep that is called from Python: the same cells, kept in memory or in a folder, nothing said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import store
from experiments.exits import DeviceMissing, UsageError
from experiments.manifest import Invocation, now
from experiments.sweep.execution import Ended, Entry, execute
from experiments.sweep.folder import SweepFolder, entry_of
from experiments.sweep.job import Job, JobResult, job_of
from experiments.sweep.launchers import LocalLauncher
from experiments.sweep.lock import at_work
from experiments.sweep.planning import SweepPlan, plan_sweep
from experiments.sweep.summary import rows_of
from experiments.sweep.unite import FolderKeeper, State, finish, state_of

if TYPE_CHECKING:
    from experiments.settings import Config
    from experiments.sweep.axes import Axes

Swept = tuple[SweepPlan, list[dict[str, Any]], dict[str, str]]
"""Plan, rows, and why the other cells have none."""


@dataclass(frozen=True, slots=True)
class MemoryKeeper:
    """Keeps summaries as a folder would give them back."""

    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def started(self, job: Job) -> None:
        """Nobody asks."""

    def keep(self, result: JobResult) -> Entry:
        """Through JSON, so that rows are the same as those of a folder."""
        if not result.error:
            self.summaries[result.name] = json.loads(result.files["summary.json"])
        return entry_of(result)


def swept(base: Config, axes: Axes, jobs: int, out: Path | None, *, resume: bool, tables: Sequence[str]) -> Swept:
    """Plans and runs; KeyboardInterrupt and OSError come through, with what is finished kept in `out`."""
    if jobs < 1:
        raise UsageError(f"jobs needs at least 1, got {jobs}")
    plan = plan_sweep(base, axes)
    launcher = LocalLauncher(1 if "gpu" in plan.backends else jobs)
    if out is None:
        keeper = MemoryKeeper()
        ended = execute([job_of(cell, tables) for cell in plan.cells], launcher, keeper)
        _raise(ended)
        finished = {name: entry for name, entry in ended.entries.items() if not entry["error"]}
        failed = {name: str(entry["error"]) for name, entry in ended.entries.items() if entry["error"]}
        return plan, rows_of(plan, finished, keeper.summaries.__getitem__), failed
    if not resume and out.is_dir() and any(entry.name != store.LOCKS for entry in out.iterdir()):
        raise UsageError(f"{out} has results already: resume=True goes on with them")
    out.mkdir(parents=True, exist_ok=True)
    with at_work(out):
        state = _into(SweepFolder(out), plan, launcher, tables)
    rows = rows_of(plan, state.finished, SweepFolder(out).summary_of)
    return plan, rows, {name: str(entry["error"]) for name, entry in state.failed.items()}


def _into(place: SweepFolder, plan: SweepPlan, launcher: LocalLauncher, tables: Sequence[str]) -> State:
    invocation = Invocation("sweep", ("experiments.api.sweep",), now())
    before = place.finished(plan, place.begin(plan, tables, overwrite=False))
    todo = [job_of(cell, tables) for cell in plan.cells if cell.name not in before]
    place.clear_manifest(todo)
    ended = execute(todo, launcher, FolderKeeper(place))
    _raise(ended)
    state = state_of(plan, place)
    finish(plan, place, state, ended, invocation, changed=bool(todo))
    return state


def _raise(ended: Ended) -> None:
    """What a command line would say is raised here."""
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.full_disk is not None:
        raise ended.full_disk
    if ended.device_missing:
        raise DeviceMissing(ended.device_missing)
