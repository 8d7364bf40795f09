"""The verbs `compare` and `run`: plan, replay cell by cell, keep what is finished, say what came of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import exits, store
from experiments.announcement import announce, counted
from experiments.backends import engine_config_of, is_real, need_torch, try_out
from experiments.cells import Outcome, Task, run_task, task_of
from experiments.comparison_table import percentile_notes, table, verdict, window_notes
from experiments.config import dump, flatten, map_paths, nested, resolve_layers, to_toml
from experiments.console import PS, Talk, say, say_json, show, stdout_width
from experiments.csv_text import to_csv
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.manifest import Invocation, engine_entries, manifest_of, now
from experiments.output_flags import OutputFlags
from experiments.rejections import rejection_notes
from experiments.resolve import Plan, plan_of, pool_config
from experiments.series import AttentionKernel, series_of
from experiments.store import Store, summary_row
from experiments.trace_lengths import lengths_csv

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator


@dataclass(slots=True)
class Progress:
    """Outcomes so far, by cell, and how it ended."""

    by_cell: dict[str, Outcome] = field(default_factory=dict)
    interrupted: bool = False

    def in_order(self, plan: Plan) -> list[Outcome]:
        """In the plan's order, whatever finished first."""
        return [self.by_cell[cell.name] for cell in plan.cells if cell.name in self.by_cell]


def run_verb(verb: str, flags: Flags, out: OutputFlags, argv: Sequence[str]) -> int:
    """The whole command; the exit code."""
    invocation = Invocation(verb, argv, now())
    talk = Talk(out.quiet, out.verbose, out.progress)
    writes = not out.json or out.output_dir is not None or out.experiment_name is not None
    if out.jobs < 1:
        raise UsageError(f"--jobs needs at least 1, got {out.jobs}")
    try:
        config = resolve_layers(flags.layers())
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    if config.measure.executor == "torch-cpu":
        need_torch("the executor torch-cpu")
    folder = folder_of(verb, out, config.workload.trace or config.workload.name) if writes else None
    if folder is not None:
        refuse_existing(folder, out.overwrite)
    plan = plan_of(config, verb=verb, writes=writes)
    if is_real(plan.config):
        try_engine(plan, folder, out)
    kept = Store.create(folder, overwrite=out.overwrite) if folder is not None else None
    if kept is not None:
        write_inputs(kept, plan, flags)
    announce(plan, talk)
    progress = replay(plan, kept, talk, out.jobs)
    return conclude(plan, progress, kept, invocation, out, talk)


def try_engine(plan: Plan, folder: Path | None, out: OutputFlags) -> None:
    """Everything that can go wrong with a real run before its first request goes wrong here, with nothing written."""
    if plan.config.measure.backend == "gpu" and out.jobs > 1:
        raise UsageError(f"--jobs {out.jobs}: --backend gpu runs its cells one by one, they would share the device")
    if folder is not None:
        Store.replaceable(folder, overwrite=out.overwrite)
    try_out(engine_config_of(plan.config), pools_of(plan))


def pools_of(plan: Plan) -> list[tuple[KVAllocator, AttentionKernel]]:
    """An allocator and a kernel for each pool that the plan needs, its allocators apart."""
    from engine.core.registry import make_allocator

    first = {(cell.block_size, cell.num_blocks, cell.kernel): cell for cell in reversed(plan.cells)}
    return [(make_allocator(cell.allocator, pool_config(plan.config, cell)), cell.kernel) for cell in first.values()]


def folder_of(verb: str, out: OutputFlags, workload: str | None) -> Path:
    """DIR, DIR/NAME, results/NAME, or results/VERB-TRACE."""
    if out.experiment_name is not None:
        return (out.output_dir or Path("results")) / store.checked_name(out.experiment_name)
    if out.output_dir is not None:
        return out.output_dir
    from experiments.defaults import WORKLOAD

    plain = "".join(c if c.isalnum() else "-" for c in Path(workload or WORKLOAD).name.split(".")[0])
    return Path("results") / f"{verb}-{plain}"


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Before any work is done."""
    store.refuse_unfit(folder)
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UsageError(f"{folder} has results already: say --overwrite, or choose another -e/--experiment-name")


def write_inputs(kept: Store, plan: Plan, flags: Flags) -> None:
    """The configuration as given and as resolved, its paths seen from the results folder; the trace's lengths."""
    kept.write_text(store.RESOLVED, to_toml(nested(seen_from(kept.folder, flatten(dump(plan.config))))))
    kept.write_text(store.LENGTHS, lengths_csv(plan.arriving))
    if flags.config:
        texts = (f"# {path.name}\n{path.read_text(encoding='utf-8')}" for path in flags.config)
        kept.write_text(store.INPUT, "\n".join(texts))


def seen_from(folder: Path, flat: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration by dotted key, its paths relative to a folder."""
    here = folder.resolve()
    return map_paths(flat, lambda path: Path(os.path.relpath(Path(path).resolve(), here)).as_posix())


def replay(plan: Plan, kept: Store | None, talk: Talk, jobs: int) -> Progress:
    """All cells; after an interrupt, what was finished by then."""
    progress = Progress()
    tasks = [task_of(plan, cell) for cell in plan.cells]
    if len(tasks) == 1:
        tasks = [replace(tasks[0], jobs=jobs)]
    try:
        for outcome in _serial(tasks, talk) if jobs == 1 or len(tasks) == 1 else _parallel(tasks, jobs):
            if kept is not None:
                kept.write_cell(outcome)
                outcome.tables = {}  # on disk by now
            progress.by_cell[outcome.cell.name] = outcome
            _tell(outcome, len(progress.by_cell), len(tasks), talk)
    except KeyboardInterrupt:
        progress.interrupted = True
    return progress


def _serial(tasks: Sequence[Task], talk: Talk) -> Iterator[Outcome]:
    for index, task in enumerate(tasks, 1):
        span = round(task.spec.end_s * PS) if task.spec.end_s is not None else int(task.trace.arrival_ns[-1]) * 1000
        label = f"{series_of(task.cell.allocator, task.cell.kernel)} bs {task.cell.block_size} ({index}/{len(tasks)})"
        with talk.bar(label, span) as on_turn:
            outcome = run_task(task, on_turn)
        yield outcome


def _parallel(tasks: Sequence[Task], jobs: int) -> Iterator[Outcome]:
    """In the order of finishing; processes are started anew, so that nothing is inherited."""
    others = set(multiprocessing.active_children())
    workers = ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn"))
    try:
        futures = {workers.submit(run_task, task): task for task in tasks}
        for future in as_completed(futures):
            yield _outcome(future, futures[future])
        workers.shutdown()
    except BaseException:
        workers.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise


def _outcome(future: Future[Outcome], task: Task) -> Outcome:
    """A worker that died takes its cell with it, not the others."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - whatever came through the pipe, the finished cells are kept
        return Outcome(task.cell, error=f"{type(error).__name__}: {error}", details="the process was lost")


def _tell(outcome: Outcome, done: int, total: int, talk: Talk) -> None:
    cell = outcome.cell
    head = f"[{done}/{total}] {series_of(cell.allocator, cell.kernel)} block size {cell.block_size} seed {cell.seed}"
    if outcome.summary is None:
        talk.warn(f"{head}: failed: {outcome.error.splitlines()[0]}")
        return
    talk.note(f"{head}: {outcome.completed:,} of {outcome.summary['num_requests']:,} done, {outcome.wall_s:.1f} s")
    for name in outcome.failed_checks:
        talk.warn(f"{head}: check does not hold: {name}")


def exit_code(outcomes: Sequence[Outcome], *, interrupted: bool) -> int:
    """The worst of what happened."""
    if interrupted:
        return exits.INTERRUPTED
    if any(outcome.failed_checks for outcome in outcomes):
        return exits.INVALID
    if any(outcome.summary is None for outcome in outcomes) or not any(outcome.completed for outcome in outcomes):
        return exits.FAILED_CELLS
    return exits.OK


STATUS = {exits.OK: "ok", exits.INVALID: "invalid", exits.FAILED_CELLS: "failed", exits.INTERRUPTED: "interrupted"}


def conclude(
    plan: Plan, progress: Progress, kept: Store | None, invocation: Invocation, out: OutputFlags, talk: Talk
) -> int:
    """Summary, report, manifest last; then the answer on stdout."""
    outcomes = progress.in_order(plan)
    rows = [summary_row(outcome) for outcome in outcomes if outcome.summary is not None]
    code = exit_code(outcomes, interrupted=progress.interrupted)
    for note in [*rejection_notes(plan, outcomes), *window_notes(rows)]:
        talk.warn(f"warning: {note}")
        plan.notes.append(note)
    plan.notes.extend(percentile_notes(rows))
    report = None
    if kept is not None:
        kept.write_text(store.SUMMARY, to_csv(rows))
        manifest = manifest_of(plan, invocation, outcomes, kept, STATUS[code])
        kept.write_text(store.MANIFEST, store.strict(manifest) + "\n")
        if out.report and rows and not progress.interrupted:
            report, whole = write_report(kept, talk)
            code = code or (exits.OK if whole else exits.FAILED_CELLS)
        finish_manifest(kept, manifest, STATUS[code])
    if out.json:
        say_json(json_object(plan, outcomes, rows, STATUS[code]))
    else:
        trace = plan.arriving.provenance
        title = f"{trace['name']}, {counted(trace['num_requests'], 'request')}"
        show(table(rows, width=stdout_width()), title)
        say(verdict(rows))
        say_where(kept, report)
    if progress.interrupted:
        talk.warn(f"interrupted: {len(outcomes)} of {len(plan.cells)} cells are finished and kept")
    return code


def finish_manifest(kept: Store, manifest: dict[str, Any], status: str) -> None:
    """The last file written: the same with the report's files in it."""
    full = {**manifest, "status": status, "derived_files": kept.hashes(derived=True)}
    kept.write_text(store.MANIFEST, store.strict(full) + "\n")


def write_report(kept: Store, talk: Talk) -> tuple[Path | None, bool]:
    """The report of stored results, and whether all of it could be made; a figure that breaks never loses data."""
    try:
        from experiments.report import build_report

        report = build_report(kept.folder)
    except Exception as error:  # noqa: BLE001 - the results are on disk and stay valid
        talk.warn(f"the report failed ({type(error).__name__}: {error}); the results in {kept.folder} are complete")
        return None, False
    for failed in report.errors:
        talk.warn(f"figure {failed}; everything else is kept")
    return report.path, not report.errors


def say_where(kept: Store | None, report: Path | None) -> None:
    """The last line: where to look."""
    if report is not None:
        say(f"report: {report}")
    elif kept is not None:
        say(f"results: {kept.folder}")


def json_object(plan: Plan, outcomes: Sequence[Outcome], rows: list[dict[str, Any]], status: str) -> dict[str, Any]:
    """What `--json` prints."""
    failed = [outcome for outcome in outcomes if outcome.summary is None]
    cells = [
        {"allocator": o.cell.allocator, "block_size": o.cell.block_size, "seed": o.cell.seed, "error": o.error}
        | ({"kernel": o.cell.kernel} if is_real(plan.config) else {})
        for o in failed
    ]
    return {
        "trace": plan.arriving.provenance,
        "capacity": plan.pool.to_dict(),
        "step_model": plan.step_times,
        **engine_entries(outcomes),
        "config_sha256": plan.sha256,
        "config": dump(plan.config),
        "status": status,
        "runs": rows,
        "failed": cells,
        "failed_checks": {o.cell.name: o.failed_checks for o in outcomes if o.failed_checks},
        "notes": plan.notes,
    }
