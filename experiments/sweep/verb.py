"""The verb `sweep`: plan, run what is left, keep every cell as it ends, and unite what is there."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from experiments import exits, store
from experiments.announcement import counted
from experiments.compare import STATUS, folder_of, write_report
from experiments.console import Talk, say, say_json, show
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.manifest import Invocation, now
from experiments.sweep.arrivals import side_by_side
from experiments.sweep.axes import Axes
from experiments.sweep.estimate import estimate
from experiments.sweep.execution import Ended, Entry, execute
from experiments.sweep.flags import SweepFlags
from experiments.sweep.folder import SweepFolder
from experiments.sweep.job import Job, job_of
from experiments.sweep.lock import at_work
from experiments.sweep.manifest import axes_entries
from experiments.sweep.merging import told
from experiments.sweep.planning import SweepPlan
from experiments.sweep.progress import planning, watched
from experiments.sweep.request import Request, check_launcher, launcher_of, num_jobs, request_of
from experiments.sweep.summary import MOST_SHOWN, table_of
from experiments.sweep.unite import Finish, FolderKeeper, State, finish, state_of

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sweep_verb(flags: Flags, out: SweepFlags, argv: Sequence[str]) -> int:
    """The whole command; the exit code."""
    invocation = Invocation("sweep", argv, now())
    talk = Talk(out.quiet, out.verbose, out.progress)
    check_launcher(out)
    with planning(talk) as on_point:
        request = request_of(flags, out, folder_of("sweep", out, None), on_point)
    work = request.plan.base.workload
    folder = folder_of("sweep", out, work.trace or work.name)
    announce(request, talk)
    if out.dry_run:
        return say_plan(request, out)
    if out.overwrite and (out.resume or request.shard != (1, 1)):
        raise UsageError("--overwrite replaces what --resume and --shard would go on with: say one of them")
    store.refuse_unfit(folder)
    refuse_unasked(folder, out, request)
    launcher = launcher_of(out, request.plan, folder)
    try:
        make(folder)
        with at_work(folder, request.shard):
            place = SweepFolder(folder, request.shard)
            history = place.begin(request.plan, request.tables, overwrite=out.overwrite)
            for line in history.damaged:
                talk.warn(f"warning: {folder}: {line} is not a line of a ledger: passed over, its cell is redone")
            todo = left(request, place.finished(request.plan, history), out)
            with watched(len(todo), {cell.name: cell.label for cell in request.plan.cells}, talk) as on_end:
                place.clear_manifest(todo)
                ended = execute(todo, launcher, FolderKeeper(place), fail_fast=out.fail_fast, on_end=on_end)
            state = state_of(request.plan, place)
            if ended.full_disk is not None:
                return full(folder, ended.full_disk, talk, state)
            report = partial(write_report, talk=talk) if out.report else None
            done = finish(request.plan, place, state, ended, invocation, changed=bool(todo), report=report)
            conclude(request, state, ended, done, out, folder, talk)
            return done.code
    except OSError as error:
        return full(folder, error, talk)


def make(folder: Path) -> None:
    """UsageError where it cannot be made; OSError where only room is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise UsageError(f"{folder}: cannot be written: {error}; choose another -o DIR") from error


def _factors(axes: Axes) -> list[str]:
    """`3 kv.block_size`, and `2 (kv.block_size, scheduler.max_num_seqs)` for axes that go together."""
    groups = [next((group for group in axes.zips if key in group), (key,)) for key in axes.values]
    return [
        f"{len(axes.values[group[0]])} {group[0] if len(group) == 1 else '(' + ', '.join(group) + ')'}"
        for group in dict.fromkeys(groups)
    ]


def announce(request: Request, talk: Talk) -> None:
    """How many cells, and why so many; the notes."""
    plan = request.plan
    axes = " x ".join(_factors(plan.axes))
    parts = [f"{axes or 'no axis'}: {counted(len(plan.cells), 'cell')}"]
    parts += [f"{plan.num_runs} repeats"] * (plan.num_runs > 1)
    parts += [f"{plan.num_excluded} points excluded"] * (plan.num_excluded > 0)
    parts += [f"{len(plan.merged)} merged"] * bool(plan.merged)
    parts += [f"{len(plan.infeasible)} cannot be run"] * bool(plan.infeasible)
    talk.note("; ".join(parts))
    for note in plan.notes:
        talk.note(f"note: {note}")
    for one in plan.infeasible:
        talk.detail(f"cannot be run: {told(one.point)}: {one.reason}")


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
        say(f"cannot be run: {told(one.point)}: {one.reason}")
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
    mine = [cell for cell in request.plan.cells[first - 1 :: of] if cell.name not in finished]
    jobs = [job_of(cell, request.tables) for cell in side_by_side(mine)]
    if out.shuffle:
        random.Random(request.plan.cells[0].key).shuffle(jobs)
    return jobs


def conclude(
    request: Request, state: State, ended: Ended, done: Finish, out: SweepFlags, folder: Path, talk: Talk
) -> None:
    """The answer on stdout, and on stderr what is missing and how to go on."""
    for warning in done.warnings:
        talk.warn(f"warning: {warning}")
    answer(request.plan, done, out, folder)
    if ended.device_missing:
        talk.warn(ended.device_missing)
    if state.failed:
        how = "the reasons are in cells/*/error.txt; --resume runs them again"
        talk.warn(f"{counted(len(state.failed), 'cell')} failed; {how}")
    if not state.whole:
        stopped = f"stopped at {ended.stopped_by}: " if ended.stopped_by else "interrupted: " * ended.interrupted
        talk.warn(f"{stopped}{kept(state, request.plan)}; go on with: pagelab sweep --resume -o {folder}")


def answer(plan: SweepPlan, done: Finish, out: SweepFlags, folder: Path) -> None:
    """One object, or a table and where the rest is."""
    if out.json:
        status = STATUS.get(done.code, "failed")
        say_json(
            {"folder": str(folder), "status": status, **axes_entries(plan), "runs": done.rows, "notes": done.notes}
        )
        return
    if done.rows:
        more = f", the first {MOST_SHOWN}" if len(done.rows) > MOST_SHOWN else ""
        show(table_of(plan, done.rows), f"{counted(len(done.rows), 'cell')}{more}")
    say(f"report: {done.report}" if done.report else f"results: {folder}")


def kept(state: State, plan: SweepPlan) -> str:
    """`12 of 240 cells are finished and kept`."""
    return f"{len(state.finished)} of {len(plan.cells)} cells are finished and kept"


def full(folder: Path, error: OSError, talk: Talk, state: State | None = None) -> int:
    """A disk that takes no more, or nothing: what is finished stays whole."""
    talk.warn(
        f"pagelab: {folder}: cannot be written: {error}; "
        + (f"{len(state.finished)} cells are finished and kept; " if state else "what is finished is kept; ")
        + ("make room" if error.errno in NO_ROOM else "see to that")
        + f", then say: pagelab sweep --resume -o {folder}"
    )
    return exits.FAILED_CELLS
