"""The manifest of a sweep: written last, the place for clocks and hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import map_paths, nested
from experiments.manifest import SCHEMA_VERSION, Invocation, environment, git_state, now
from experiments.provenance import name_only, without_folders
from experiments.sweep.merging import merged_entries

if TYPE_CHECKING:
    from experiments.store import Store
    from experiments.sweep.cell import SweepCell
    from experiments.sweep.execution import Entry
    from experiments.sweep.planning import SweepPlan


def manifest_of(
    plan: SweepPlan,
    invocation: Invocation,
    finished: Mapping[str, Entry],
    failed: Mapping[str, Entry],
    kept: Store,
    notes: Sequence[str],
    status: str,
) -> dict[str, Any]:
    """Everything but the files that are made from the results. Entries are the ledger's."""
    ended = now()
    entries = {**failed, **finished}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "sweep",
        "experiment": kept.folder.resolve().name,
        "verb": invocation.verb,
        "status": status,
        "argv": [name_only(word) for word in invocation.argv],
        **axes_entries(plan),
        "config": nested(map_paths(plan.common, lambda path: Path(path).name)),
        "seeds": sorted({cell.seed for cell in plan.cells}),
        "git": git_state(Path(__file__).parent),
        "trace": plan.first.arriving.provenance,
        "capacity": plan.first.pool.to_dict(),
        "step_model": plan.first.step_times,
        **_device(entries),
        **environment(),
        "started": invocation.started.isoformat(timespec="milliseconds"),
        "finished": ended.isoformat(timespec="milliseconds"),
        "wall_s": (ended - invocation.started).total_seconds(),
        "cells": [_cell(cell, entries.get(cell.name)) for cell in plan.cells],
        "infeasible": [{"point": one.point, "reason": one.reason} for one in plan.infeasible],
        "num_cells_planned": len(plan.cells),
        "num_rows": {name: entry["num_rows"] for name, entry in finished.items() if entry["num_rows"]},
        "notes": list(notes),
        "files": kept.hashes(derived=False),
    }


def axes_entries(plan: SweepPlan) -> dict[str, Any]:
    """What was varied, and what became of the points."""
    return {
        "axes": {key: list(dict.fromkeys(values)) for key, values in plan.axes.values.items()},
        "zip": [list(group) for group in plan.axes.zips],
        "exclude": list(plan.axes.exclude),
        "num_runs": plan.num_runs,
        "num_points": plan.num_points,
        "num_excluded": plan.num_excluded,
        "num_merged": len(plan.merged),
        "merged": merged_entries(plan.merged),
        "num_infeasible": len(plan.infeasible),
    }


def _device(entries: Mapping[str, Entry]) -> dict[str, Any]:
    engine = next((entry["engine"] for entry in entries.values() if entry.get("engine")), None)
    return (
        {"device": "simulated"} if engine is None else {"device": engine["device"], "engine": without_folders(engine)}
    )


def _cell(cell: SweepCell, entry: Entry | None) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "point": cell.point,
        "repeat": cell.repeat,
        "seed": cell.seed,
        "allocator": cell.allocator,
        "block_size": cell.block_size,
        "num_blocks": cell.num_blocks,
        "key": cell.key,
        "trace_sha256": cell.trace_sha256,
        "status": status_of(entry),
        "error": entry["error"] if entry else None,
        "failed_checks": entry["failed_checks"] if entry else [],
        "wall_s": entry["wall_s"] if entry else None,
        "host": entry["host"] if entry else None,
    }


def status_of(entry: Entry | None) -> str:
    """ok, invalid, failed, or not run."""
    if entry is None:
        return "not run"
    if entry["error"]:
        return "failed"
    return "invalid" if entry["failed_checks"] else "ok"
