"""The verb `sweep`: plan, run what is left, keep every cell as it ends, and unite what is there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import exits, store
from experiments.announcement import counted
from experiments.compare import STATUS, finish_manifest, folder_of, write_report
from experiments.console import Talk, say, say_json, show
from experiments.csv_text import to_csv
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.manifest import Invocation, now
from experiments.store import Store
from experiments.sweep.estimate import estimate
from experiments.sweep.execution import Ended, Entry, execute
from experiments.sweep.flags import SweepFlags
from experiments.sweep.folder import SweepFolder
from experiments.sweep.job import Job, JobResult, job_of
from experiments.sweep.ledger import ledgers_of, read_history
from experiments.sweep.lock import at_work
from experiments.sweep.manifest import axes_entries, manifest_of
from experiments.sweep.planning import SweepPlan
from experiments.sweep.progress import watched
from experiments.sweep.request import Request, check_launcher, launcher_of, num_jobs, request_of
from experiments.sweep.summary import MOST_SHOWN, exit_code, is_whole, notes_of, rows_of, table_of


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


def sweep_verb(flags: Flags, out: SweepFlags, argv: Sequence[str]) -> int:
    """The whole command; the exit code."""
    invocation = Invocation("sweep", argv, now())
    talk = Talk(out.quiet, out.verbose, out.progress)
    check_launcher(out)
    folder = folder_of("sweep", out, flags.trace or flags.workload)
    request = request_of(flags, out, folder)
    announce(request, talk)
    if out.dry_run:
        return say_plan(request, out)
    if out.overwrite and (out.resume or request.shard != (1, 1)):
        raise UsageError("--overwrite replaces what --resume and --shard would go on with: say one of them")
    refuse_unasked(folder, out, request)
    launcher = launcher_of(out, request.plan, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with at_work(folder, request.shard):
            place = SweepFolder(folder, request.shard)
            history = place.begin(request.plan, request.tables, overwrite=out.overwrite)
            for line in history.damaged:
                talk.warn(f"warning: {folder}: {line} is not a line of a ledger: passed over, its cell is redone")
            todo = left(request, place.finished(request.plan, history), out)
            with watched(len(todo), {cell.name: cell.label for cell in request.plan.cells}, talk) as on_end:
                if todo:
                    (folder / store.MANIFEST).unlink(missing_ok=True)
                keeper = FolderKeeper(place)
                ended = execute(todo, launcher, keeper, fail_fast=out.fail_fast, on_end=on_end)
            return conclude(request, place, ended, len(todo), invocation, out, talk)
    except OSError as error:
        return full(folder, error, talk)


def announce(request: Request, talk: Talk) -> None:
    """How many cells, and why so many; the notes."""
    plan = request.plan
    axes = " x ".join(f"{len(values)} {key}" for key, values in plan.axes.values.items())
    parts = [f"{axes or 'no axis'}: {counted(len(plan.cells), 'cell')}"]
    parts += [f"{plan.num_runs} repeats"] * (plan.num_runs > 1)
    parts += [f"{plan.num_excluded} points excluded"] * (plan.num_excluded > 0)
    parts += [f"{plan.num_merged} merged"] * (plan.num_merged > 0)
    parts += [f"{len(plan.infeasible)} cannot be run"] * bool(plan.infeasible)
    talk.note("; ".join(parts))
    for note in plan.notes:
        talk.note(f"note: {note}")
    for one in plan.infeasible:
        talk.detail(f"cannot be run: {one.point}: {one.reason}")


def say_plan(request: Request, out: SweepFlags) -> int:
    """Of --dry-run: nothing is written."""
    plan = request.plan
    found = estimate(plan, num_jobs(out, plan))
    if out.json:
        cells = [
            {"cell": c.name, "repeat": c.repeat, "seed": c.seed, "point": c.point, "key": c.key} for c in plan.cells
        ]
        seconds = found and {"wall_s": found.wall_s, "cell_s": found.cell_s, "jobs": found.jobs}
        infeasible = [{"point": one.point, "reason": one.reason} for one in plan.infeasible]
        say_json(
            {**axes_entries(plan), "cells": cells, "infeasible": infeasible, "estimate": seconds, "notes": plan.notes}
        )
        return exits.OK
    for cell in plan.cells:
        say(f"{cell.name}  {cell.label}  {cell.num_blocks:,} blocks  seed {cell.seed}")
    for one in plan.infeasible:
        say(f"cannot be run: {' '.join(f'{key}={value}' for key, value in one.point.items())}: {one.reason}")
    say(f"{counted(len(plan.cells), 'cell')}: {found or 'steps are measured, how long they take is not estimated'}")
    return exits.OK


def refuse_unasked(folder: Path, out: SweepFlags, request: Request) -> None:
    """Nothing is replaced or gone on with unasked; a shard joins the others of its sweep."""
    if out.overwrite or out.resume or request.shard != (1, 1) or not folder.is_dir():
        return
    if any(entry.name != store.LOCKS for entry in folder.iterdir()):
        raise UsageError(f"{folder} has results already: say --resume, --overwrite, or choose another -o DIR")


def left(request: Request, finished: dict[str, Entry], out: SweepFlags) -> list[Job]:
    """The jobs of this shard that have no finished cell, failed ones among them."""
    first, of = request.shard
    mine = request.plan.cells[first - 1 :: of]
    jobs = [job_of(cell, request.tables) for cell in mine if cell.name not in finished]
    if out.shuffle:
        random.Random(request.plan.cells[0].key).shuffle(jobs)
    return jobs


def conclude(
    request: Request,
    place: SweepFolder,
    ended: Ended,
    num_todo: int,
    invocation: Invocation,
    out: SweepFlags,
    talk: Talk,
) -> int:
    """The summary of what is on disk, manifest last, if every cell has ended; then the answer on stdout."""
    plan, kept = request.plan, Store(place.folder)
    history = read_history(ledgers_of(place.folder))
    finished = place.finished(plan, history)
    failed = {c.name: history.ended[c.key][-1] for c in plan.cells if c.name not in finished and c.key in history.ended}
    code = exit_code(plan, finished, failed, ended)
    if ended.full_disk is not None:
        return full(place.folder, ended.full_disk, talk, f"{len(finished)} of {len(plan.cells)} cells are finished; ")
    notes = [*plan.notes, *notes_of(plan, finished)]
    for note in notes[len(plan.notes) :]:
        talk.warn(f"warning: {note}")
    rows, report = rows_of(plan, finished, place.summary_of), None
    whole = is_whole(plan, finished, failed)
    if whole and (num_todo or not (place.folder / store.MANIFEST).is_file()):
        kept.write_text(store.SUMMARY, to_csv(rows))
        manifest = manifest_of(plan, invocation, finished, failed, kept, notes, STATUS.get(code, "failed"))
        kept.write_text(store.MANIFEST, store.strict(manifest) + "\n")
        if out.report and rows:
            report, drawn = write_report(kept, talk)
            code = code or (exits.OK if drawn else exits.FAILED_CELLS)
        finish_manifest(kept, manifest, STATUS.get(code, "failed"))
    answer(request, rows, notes, report, code, out, place.folder)
    say_rest(plan, finished, failed, ended, place.folder, whole, talk)
    return code


def answer(
    request: Request,
    rows: list[dict[str, Any]],
    notes: list[str],
    report: Path | None,
    code: int,
    out: SweepFlags,
    folder: Path,
) -> None:
    """On stdout: one object, or a table and where the rest is."""
    plan = request.plan
    if out.json:
        entries = axes_entries(plan)
        say_json({"folder": str(folder), "status": STATUS.get(code, "failed"), **entries, "runs": rows, "notes": notes})
        return
    if rows:
        more = f", the first {MOST_SHOWN}" if len(rows) > MOST_SHOWN else ""
        show(table_of(plan, rows), f"{counted(len(rows), 'cell')}{more}")
    say(f"report: {report}" if report else f"results: {folder}")


def say_rest(
    plan: SweepPlan,
    finished: dict[str, Entry],
    failed: dict[str, Entry],
    ended: Ended,
    folder: Path,
    whole: bool,
    talk: Talk,
) -> None:
    """What is not done, and how to go on."""
    done, total = len(finished), len(plan.cells)
    how = "interrupted: " if ended.interrupted else f"stopped at {ended.stopped_by}: " if ended.stopped_by else ""
    if ended.device_missing:
        talk.warn(ended.device_missing)
    if failed:
        talk.warn(
            f"{counted(len(failed), 'cell')} failed; the reason is in cells/*/error.txt; --resume runs them again"
        )
    if not whole:
        talk.warn(f"{how}{done} of {total} cells are finished and kept; go on with: pagelab sweep --resume -o {folder}")


def full(folder: Path, error: OSError, talk: Talk, done: str = "") -> int:
    """A disk that takes no more: what is finished stays whole."""
    talk.warn(
        f"pagelab: {folder}: cannot be written: {error.strerror or error}; {done}what is finished is kept: make room, "
        f"then say: pagelab sweep --resume -o {folder}"
    )
    return exits.FAILED_CELLS
