"""The verbs that look at stored results: report and map."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import exits, store
from experiments.console import in_colour, say, say_json
from experiments.exits import UsageError
from experiments.folders import WRITERS, results_folder


def report_verb(folders: Sequence[Path], *, as_json: bool) -> int:
    """Makes the report again and enters its files into the manifest; exit code 3 if a figure failed."""
    if len(folders) != 1:
        got = f"got {len(folders)}: plot draws several together, compare says how two differ" if folders else "got none"
        raise UsageError(f"report: name one folder that {WRITERS} has written, {got}")
    folder = results_folder(folders[0])
    path, errors = _built(folder)
    enter_derived(folder)
    for failed in errors:
        print(f"pagelab: figure {failed}; everything else is there", file=sys.stderr)
    if as_json:
        say_json({"report": str(path), "failed_figures": errors})
    else:
        say(f"report: {path}")
    return exits.FAILED_CELLS if errors else exits.OK


def _built(folder: Path) -> tuple[Path, list[str]]:
    """The page, and the figures that failed; measurements of kernels have a page of their own."""
    entries = read_manifest(folder)
    if (verb := entries.get("verb")) in ("bench engine", "bench alloc"):
        raise UsageError(f"{folder}: results of {verb} are tables without a report: see {store.SUMMARY}")
    if verb == "bench kernel":
        from experiments.bench.stored import read
        from experiments.bench.verb import remake

        return folder / store.REPORT, remake(folder, read(folder).table(), entries)
    from experiments.report import build_report

    report = build_report(folder)
    return report.path, report.errors


def enter_derived(folder: Path) -> None:
    """The manifest knows what was made from the results."""
    manifest = read_manifest(folder)
    if manifest:
        kept = store.Store(folder)
        manifest["derived_files"] = kept.hashes(derived=True)
        kept.write_text(store.MANIFEST, store.strict(manifest) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, or nothing where there is none; UsageError for one that is damaged."""
    import json

    path = folder / store.MANIFEST
    if not path.is_file():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise UsageError(f"{path}: not a manifest: its top level is not an object")
    return manifest


def map_verb(folder: Path, at_s: float | None, cells: Sequence[str], width: int) -> int:
    """Prints a map a cell; a folder of one cell will do as well."""
    import pandas as pd

    from experiments.figures import memory_map_text

    if width < 1:
        raise UsageError(f"--width needs at least 1, got {width}")
    if at_s is not None and not (math.isfinite(at_s) and at_s >= 0):
        raise UsageError(f"--at is a second of the run, at least 0, got {at_s:g}")
    shown = 0
    for place in map_cells(folder, cells):
        frame = pd.read_parquet(place / "map.parquet")
        if not len(frame):
            continue
        moment = float(frame["time_s"].median()) if at_s is None else at_s
        first = frame[frame["time_s"] == frame["time_s"].iloc[0]]
        num_blocks = int((first["start_block"] + first["num_blocks"]).max()) - 1
        say(("\n" if shown else "") + place.name)
        say(memory_map_text(frame, moment, num_blocks, width, colour=in_colour()))
        shown += 1
    if not shown:
        raise UsageError(f"{folder}: no cell with pictures of its pool; run again with --map-frames 160")
    return exits.OK


def map_cells(folder: Path, cells: Sequence[str]) -> list[Path]:
    """Folders with a map.parquet of which all of `cells` holds: the beginning of a name, or a condition on the
    summary."""
    from experiments.export.chosen import is_condition

    if (folder / "map.parquet").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"{store.CELLS}/*/map.parquet"))
    chosen = [path for path in found if all(path.name.startswith(one) for one in cells if not is_condition(one))]
    if found and not chosen:
        raise UsageError(f"no cell begins with {', '.join(cells)}; there are {', '.join(path.name for path in found)}")
    if conditions := [one for one in cells if is_condition(one)]:
        from experiments.export.runs import runs_of

        met = {run.folder for run in runs_of(folder, conditions)}
        chosen = [path for path in chosen if path in met]
    return chosen
