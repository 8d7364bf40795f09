"""The verb `validate`: are stored results what their manifest says, and is a configuration one?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import exits, store
from experiments.arriving import file_sha256
from experiments.console import say, say_json
from experiments.exits import UsageError
from experiments.views import read_manifest


def validate_verb(target: Path, *, as_json: bool) -> int:
    """A results folder (0 or 4), or a configuration file (0 or 2)."""
    if target.is_file():
        return _config(target, as_json=as_json)
    if not target.is_dir():
        raise UsageError(f"{target}: neither a results folder nor a configuration file")
    manifest = read_manifest(target)
    if not manifest:
        raise UsageError(
            f"{target}: no {store.MANIFEST}: not a results folder, or a run that was killed before its end"
        )
    problems = list(problems_of(target, manifest))
    if as_json:
        say_json({"valid": not problems, "status": manifest.get("status"), "problems": problems})
    else:
        for problem in problems:
            say(problem)
        num = len(manifest.get("files", {}))
        say(f"{target}: {len(problems)} problems" if problems else f"{target}: {num} files and all checks are in order")
    return exits.INVALID if problems else exits.OK


def _config(path: Path, *, as_json: bool) -> int:
    """Reads, fills in and plans, all but the runs."""
    from experiments.resolve import plan_of
    from experiments.settings import Config

    plan = plan_of(Config.load(path))
    if as_json:
        say_json({"valid": True, "config_sha256": plan.sha256, "cells": [cell.name for cell in plan.cells]})
    else:
        say(f"{path}: in order; {len(plan.cells)} cells, config sha256 {plan.sha256}")
    return exits.OK


def problems_of(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Everything that is not as recorded."""
    files = manifest.get("files", {})
    for name, recorded in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name}: missing"
        elif file_sha256(path) != recorded:
            yield f"{name}: its bytes have changed since the manifest was written"
    present = {path.as_posix() for path in store.Store(folder).files() if path.parts[0] not in store.DERIVED}
    for name in sorted(present - files.keys()):
        yield f"{name}: not in the manifest"
    yield from _tables(folder, manifest)
    yield from _checks(folder, manifest)


def _tables(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Rows against the manifest, and requests against the summary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for cell, tables in manifest.get("num_rows", {}).items():
        for name, expected in tables.items():
            path = folder / store.CELLS / cell / f"{name}.parquet"
            try:
                got = pq.read_metadata(path).num_rows
            except (OSError, pa.ArrowException) as error:
                yield f"{path.relative_to(folder)}: cannot be read: {error}"
                continue
            if got != expected:
                yield f"{path.relative_to(folder)}: {got} rows, the manifest says {expected}"


def _checks(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """The equations of every cell, and the totals by status."""
    for cell in manifest.get("cells", []):
        place = folder / store.CELLS / str(cell["cell"])
        if cell["status"] == "failed":
            yield f"{cell['cell']}: the run failed: {cell['error']}"
            continue
        try:
            checks = json.loads((place / "validation.json").read_text(encoding="utf-8"))["checks"]
            summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            yield f"{cell['cell']}: {error}"
            continue
        yield from (f"{cell['cell']}: does not hold: {check['name']}" for check in checks if not check["holds"])
        states = ("finished", "truncated", "rejected", "failed", "unfinished")
        total = sum(summary[f"num_{state}"] for state in states)
        if total != summary["num_requests"]:
            yield f"{cell['cell']}: {summary['num_requests']} requests, but their states sum to {total}"
