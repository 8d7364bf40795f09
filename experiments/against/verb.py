"""`pagelab compare A B`: what changed between two results, and whether it changed too much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import exits, store
from experiments.against.flags import AgainstFlags
from experiments.console import Talk, say, say_json, show
from experiments.csv_text import to_csv
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.folders import results_folder
from experiments.output_flags import OutputFlags
from sim.lookup import better

if TYPE_CHECKING:
    from rich.table import Table

    from experiments.against.deltas import Delta, Threshold
    from experiments.against.matching import Matching

METRICS = ("kv_live_frac", "mean_batch_size", "output_tok_per_s", "mean_ttft_s", "mean_tpot_s", "num_preemptions")
MARKS = {"better": "▲", "worse": "▼", "same": "=", "different": "≠", "unknown": "?"}
STYLES = {"better": "green", "worse": "red"}
CAPTION = (
    "second against first; ± is the 95 % confidence interval over repeats; "
    "▲ better, ▼ worse, = no more than the interval, ≠ neither way is better, ? without a value"
)
FILE = "comparison.csv"


def against_verb(folders: Sequence[Path], two: AgainstFlags, flags: Flags, out: OutputFlags) -> int:
    """Exit code 5 if a threshold was passed or could not be judged, 3 if cells failed on either side."""
    from experiments.against.deltas import Threshold, delta_of, number_column
    from experiments.against.matching import match
    from experiments.figures.stored import Stored

    if flags != Flags():
        raise UsageError("compare: two results folders take no options of a replay")
    if len(folders) != 2:
        raise UsageError(f"compare takes two results folders, or none, got {len(folders)}")
    if folders[0].resolve() == folders[1].resolve():
        raise UsageError(f"compare: {folders[0]} against itself")
    first, second = (Stored(results_folder(folder)) for folder in folders)
    try:
        shared = first.summary.iloc[:, [name in second.summary for name in first.summary]]
        asked = [part.strip() for text in two.metric for part in text.split(",")]
        names = [number_column(name, shared) for name in asked or [name for name in METRICS if name in shared]]
        limits = [Threshold.parse(text, shared) for text in two.fail_on]
        matching = match(first, second)
    except ValueError as error:
        raise UsageError(f"{folders[0]} and {folders[1]}: {error}") from error
    columns = list(dict.fromkeys([*names, *(limit.metric for limit in limits)]))
    deltas = [delta_of(pair, name) for pair in matching.pairs for name in columns]
    failures = [text for limit in limits for text in judged(limit, deltas)]
    code = exits.COMPARISON if failures else exits.FAILED_CELLS if matching.lost else exits.OK
    rows = [delta.row(matching.columns) for delta in deltas]
    if out.output_dir is not None:
        _write(out.output_dir / FILE, to_csv(rows), overwrite=out.overwrite)
    if out.json:
        say_json(_object(folders, matching, rows, failures, code))
    else:
        show(_table(matching, deltas, columns), f"{folders[1]} against {folders[0]}")
        _say_rest(matching, limits, failures, Talk(out.quiet))
    return code


def judged(limit: Threshold, deltas: Sequence[Delta]) -> list[str]:
    """Where the threshold is passed, or cannot be judged because one side lost its value."""
    found = []
    for delta in (one for one in deltas if one.metric == limit.metric):
        where = " ".join(delta.key) or "the one configuration"
        if limit.passed_by(delta):
            found.append(f"{limit.text}: {where}: {written(delta)}")
        elif (delta.first is None) != (delta.second is None):
            side = "first" if delta.first is None else "second"
            found.append(f"{limit.text}: {where}: the {side} result has no {limit.metric}")
        elif delta.num_lost:
            found.append(f"{limit.text}: {where}: {delta.num_lost} runs have {limit.metric} in one result alone")
    return found


def written(delta: Delta) -> str:
    """`-5.2 ± 0.3 %`; the difference itself where the first is 0."""
    if delta.relative is None or delta.absolute is None:
        return "–"
    if math.isinf(delta.relative):
        return f"{delta.absolute:+.4g} (from 0)"
    half = "" if delta.relative_half is None else f" ± {100 * delta.relative_half:.2f}"
    return f"{100 * delta.relative:+.2f}{half} %"


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already: say --overwrite, or choose another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_whole(path, text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error}") from error


def _table(matching: Matching, deltas: Sequence[Delta], columns: Sequence[str]) -> Table:
    """A row a configuration, a column a metric."""
    from rich.table import Table
    from rich.text import Text

    made = Table(caption=CAPTION, caption_justify="left")
    for name in matching.columns:
        made.add_column(name.rpartition(".")[2], no_wrap=True)
    made.add_column("runs", justify="right", no_wrap=True)
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    by_key = {(delta.key, delta.metric): delta for delta in deltas}
    for pair in matching.pairs:
        found = [by_key[pair.key, name] for name in columns]
        cells = [Text(f"{written(d)} {MARKS[d.verdict]}", style=STYLES.get(d.verdict, "")) for d in found]
        runs = f"{len(pair.first)}" if pair.paired else f"{len(pair.first)}/{len(pair.second)}"
        made.add_row(*map(Text, pair.key), runs, *cells)
    return made


def _say_rest(matching: Matching, limits: Sequence[Threshold], failures: Sequence[str], talk: Talk) -> None:
    unpaired = [pair for pair in matching.pairs if not pair.paired]
    if unpaired:
        talk.note(f"{len(unpaired)} configurations have other seeds on each side: two samples, not pairs")
    for difference in matching.differences:
        talk.note(f"differs: {difference}")
    for line in (*matching.unmatched, *matching.lost):
        talk.warn(f"unmatched: {line}")
    for limit in limits:
        if limit.fails_on_gains:
            talk.warn(f"--fail-on {limit.text}: {limit.metric} is better {better(limit.metric)}: this fails on gains")
    for failure in failures:
        say(f"exceeded: {failure}")
    if limits and not failures:
        say(f"within {', '.join(limit.text for limit in limits)} in {len(matching.pairs)} configurations")


def _object(
    folders: Sequence[Path], matching: Matching, rows: list[dict[str, Any]], failures: list[str], code: int
) -> dict[str, Any]:
    return {
        "first": str(folders[0]),
        "second": str(folders[1]),
        "matched_by": list(matching.columns),
        "deltas": rows,
        "unmatched": list(matching.unmatched),
        "failed_cells": list(matching.lost),
        "differences": list(matching.differences),
        "exceeded": failures,
        "exit_code": code,
    }
