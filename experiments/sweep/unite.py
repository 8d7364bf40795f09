"""What a sweep's folder holds by now, and its summary: made from what is on disk, whoever computed it and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import exits, store
from experiments.compare import STATUS, finish_manifest
from experiments.csv_text import to_csv
from experiments.store import Store
from experiments.sweep.execution import Ended, Entry
from experiments.sweep.folder import SweepFolder
from experiments.sweep.job import Job, JobResult
from experiments.sweep.ledger import ledgers_of, read_history
from experiments.sweep.manifest import manifest_of
from experiments.sweep.planning import SweepPlan
from experiments.sweep.summary import exit_code, notes_of, rows_of

if TYPE_CHECKING:
    from experiments.manifest import Invocation

Drawn = Callable[[Store], tuple[Path | None, bool]]
"""Writes the report: its path, and whether all of it could be made."""


@dataclass(frozen=True, slots=True)
class FolderKeeper:
    """Results go to the folder and its ledger."""

    place: SweepFolder

    def started(self, job: Job) -> None:
        """A line without waiting for the disk: if it is lost, the cell is redone anyway."""
        self.place.ledger.append("running", {"cell": job.name, "key": job.key}, sync=False)

    def keep(self, result: JobResult) -> Entry:
        """The files, then the line."""
        return self.place.write(result)


@dataclass(frozen=True, slots=True)
class State:
    """Of a folder, by cell name: the ledger's entries."""

    finished: dict[str, Entry]
    """Whose files are whole."""
    failed: dict[str, Entry]
    """Whose last run failed."""
    whole: bool
    """Whether every cell of the plan is one or the other."""


@dataclass(slots=True)
class Finish:
    """What is to be said."""

    rows: list[dict[str, Any]]
    code: int
    notes: list[str]
    report: Path | None = None
    warnings: list[str] = field(default_factory=list)


def state_of(plan: SweepPlan, place: SweepFolder) -> State:
    """From all ledgers of the folder, shards' too."""
    history = read_history(ledgers_of(place.folder))
    finished = place.finished(plan, history)
    ends = {cell.name: history.ended.get(cell.key, []) for cell in plan.cells if cell.name not in finished}
    failed = {name: entries[-1] for name, entries in ends.items() if entries and entries[-1]["state"] == "failed"}
    return State(finished, failed, all(cell.name in finished or cell.name in failed for cell in plan.cells))


def finish(
    plan: SweepPlan,
    place: SweepFolder,
    state: State,
    ended: Ended,
    invocation: Invocation,
    *,
    changed: bool,
    report: Drawn | None = None,
) -> Finish:
    """Where every cell has ended: the summary, the report, the manifest last. A folder in which nothing has `changed`
    since its manifest stays as it is. OSError where the disk is full."""
    kept = Store(place.folder)
    warnings = notes_of(plan, state.finished)
    rows = rows_of(plan, state.finished, place.summary_of)
    done = Finish(rows, exit_code(plan, state.finished, state.failed, ended), [*plan.notes, *warnings], None, warnings)
    if not state.whole or not (changed or not (place.folder / store.MANIFEST).is_file()):
        return done
    kept.write_text(store.SUMMARY, to_csv(rows, _columns(plan, rows)))
    manifest = manifest_of(plan, invocation, state.finished, state.failed, kept, done.notes, _status(done.code))
    kept.write_text(store.MANIFEST, store.strict(manifest) + "\n")
    if report is not None and rows:
        done.report, drawn = report(kept)
        done.code = done.code or (exits.OK if drawn else exits.FAILED_CELLS)
    finish_manifest(kept, manifest, _status(done.code))
    return done


def _columns(plan: SweepPlan, rows: Sequence[dict[str, Any]]) -> list[str] | None:
    """Those of the rows; without rows, those that any would begin with."""
    return None if rows else ["cell", "repeat", "seed", *plan.axes.keys]


def _status(code: int) -> str:
    return STATUS.get(code, "failed")
