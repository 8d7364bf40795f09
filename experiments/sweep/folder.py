"""The folder of a sweep: what was asked for, cell by cell what came of it, and whether it may be gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import store
from experiments.arriving import file_sha256
from experiments.compare import seen_from
from experiments.config import nested, to_toml
from experiments.config_hash import sha256_of
from experiments.csv_text import to_csv
from experiments.exits import UsageError
from experiments.store import Store
from experiments.sweep.job import Job, JobResult
from experiments.sweep.ledger import History, Ledger, ledgers_of, read_history
from experiments.sweep.planning import SweepPlan
from experiments.sweep.schema import why_other, without_newer, written_by

MOST_DIFFERENCES = 20
TOLD = {"error", "failed_checks", "num_rows", "num_completed", "wall_s", "host"}
"""What the summary and the manifest read from the line of a finished cell."""


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """A folder that this process holds (`lock.at_work`), or a shard of it."""

    folder: Path
    shard: tuple[int, int] = (1, 1)

    @property
    def ledger(self) -> Ledger:
        """Of this shard."""
        first, of = self.shard
        return Ledger(self.folder / (store.LEDGER if of == 1 else f"{store.SHARDS}/{first}-of-{of}.jsonl"))

    def begin(self, plan: SweepPlan, tables: Sequence[str], *, overwrite: bool) -> History:
        """Empties the folder or goes on in it; the plan is written where there is none yet. UsageError, with the
        difference, where the folder is of another sweep."""
        if overwrite:
            for name in Store.replaceable(self.folder, overwrite=True):
                store.remove(self.folder / name)
        history = read_history(ledgers_of(self.folder))
        asked = asked_of(plan, tables, self.folder)
        for told in history.asked:
            _refuse_changed(self.folder, told, asked, plan)
        if not history.asked and any((self.folder / store.CELLS).glob("*/*")):
            raise UsageError(f"{self.folder}: results, but no sweep's: choose another folder")
        if not history.asked:
            self._write_plan(plan)
        (self.folder / store.CELLS).mkdir(exist_ok=True)
        self.ledger.path.parent.mkdir(exist_ok=True)
        if not self.ledger.path.is_file() or not read_history([self.ledger.path]).asked:
            self.ledger.append("sweep", {"schema": 1, **written_by(), "asked": asked})
        for told in read_history(ledgers_of(self.folder)).asked:  # another shard may have begun at the same moment
            _refuse_changed(self.folder, told, asked, plan)
        return history

    def _write_plan(self, plan: SweepPlan) -> None:
        kept = Store(self.folder)
        kept.write_text(store.RESOLVED, to_toml(nested(seen_from(self.folder, plan.common))))
        kept.write_text(store.SWEEP, to_toml({"sweep": plan.axes.table()}))
        kept.write_text(store.PLAN, plan_csv(plan))

    def finished(self, plan: SweepPlan, history: History) -> dict[str, dict[str, Any]]:
        """Ledger entries of the cells whose files are on disk as they were written, by name."""
        found: dict[str, dict[str, Any]] = {}
        for cell in plan.cells:
            ends = history.ended.get(cell.key, ())
            whole = (entry for entry in reversed(ends) if entry["state"] == "done" and self._is_whole(cell.name, entry))
            if (entry := next(whole, None)) is not None:
                found[cell.name] = entry
        return found

    def _is_whole(self, name: str, entry: Mapping[str, Any]) -> bool:
        place = self.folder / store.CELLS / name
        try:
            return entry.keys() >= TOLD and all(
                file_sha256(place / file) == sha for file, sha in entry["files"].items()
            )
        except (OSError, KeyError, AttributeError):
            return False

    def clear_manifest(self, todo: Sequence[Job]) -> None:
        """Before anything changes: a folder without a manifest is not finished."""
        if todo:
            (self.folder / store.MANIFEST).unlink(missing_ok=True)

    def write(self, result: JobResult) -> dict[str, Any]:
        """The cell's files, then its line in the ledger, which is returned. OSError where the disk is full."""
        kept = Store(self.folder)
        kept.put_cell(result.name, result.files.items())
        place = self.folder / store.CELLS / result.name
        entry = entry_of(result) | {"files": {name: file_sha256(place / name) for name in result.files}}
        state = "failed" if result.error else "done"
        self.ledger.append(state, entry)  # type: ignore[arg-type]
        return {"state": state, **entry}

    def summary_of(self, name: str) -> dict[str, Any]:
        """A finished cell's stored summary: what is read here is what is on disk, whoever computed it."""
        text = (self.folder / store.CELLS / name / "summary.json").read_text(encoding="utf-8")
        summary: dict[str, Any] = json.loads(text)
        return summary


def entry_of(result: JobResult) -> dict[str, Any]:
    """What the ledger tells of a result: all but its files."""
    return {
        "cell": result.name,
        "key": result.key,
        "error": result.error or None,
        "failed_checks": list(result.failed_checks),
        "num_requests": result.num_requests,
        "num_completed": result.num_completed,
        "num_rows": result.num_rows,
        "wall_s": round(result.wall_s, 6),
        "cpu_s": round(result.cpu_s, 6),
        "host": result.host,
        "pid": result.pid,
        **({"engine": result.engine} if result.engine else {}),
    }


def asked_of(plan: SweepPlan, tables: Sequence[str], folder: Path) -> dict[str, Any]:
    """What makes a sweep this one, by key: compared when it is resumed."""
    flat = seen_from(folder, plan.common)
    axes = {f"axis {key}": list(values) for key, values in plan.axes.values.items()}
    more = {
        "axes": list(plan.axes.keys),
        "zip": [list(group) for group in plan.axes.zips],
        "exclude": list(plan.axes.exclude),
    }
    cells = sha256_of({"cells": [cell.key for cell in plan.cells]})
    asked = {**flat, **axes, **more, "record": sorted(tables), "cells": cells}
    return json.loads(json.dumps(asked))  # type: ignore[no-any-return]


def _refuse_changed(folder: Path, told: Mapping[str, Any], now: Mapping[str, Any], plan: SweepPlan) -> None:
    """UsageError with the keys that differ, or with what has changed in pagelab since. `told`: a ledger's first
    line."""
    stored, asked = without_newer(told.get("asked", {})), without_newer(now)
    if stored == asked:
        return
    keys = [key for key in dict.fromkeys((*stored, *asked)) if key != "cells" and stored.get(key) != asked.get(key)]
    lines = [f"  {key}: {_shown(stored, key)} there, {_shown(asked, key)} now" for key in keys[:MOST_DIFFERENCES]]
    lines += [f"  and {len(keys) - MOST_DIFFERENCES} more"] * (len(keys) > MOST_DIFFERENCES)
    if why := why_other(told, plan):
        lines += [f"  {why}"]
    if not lines:
        lines = ["  no key differs: a trace or a table of step times has other contents"]
    whose = "an older sweep" if why and not keys else "another sweep"
    raise UsageError("\n".join([f"{folder}: results of {whose}; choose another folder, or --overwrite them:", *lines]))


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "unset"


def plan_csv(plan: SweepPlan) -> str:
    """One row a cell, then what cannot be run and why."""
    rows: list[dict[str, Any]] = [
        {
            "cell": cell.name,
            "repeat": cell.repeat,
            "seed": cell.seed,
            **cell.point,
            "num_blocks": cell.num_blocks,
            "capacity_tokens": cell.num_blocks * cell.block_size,
            "state": "planned",
            "reason": "",
            "key": cell.key,
        }
        for cell in plan.cells
    ]
    rows += [{**one.point, "state": "infeasible", "reason": " ".join(one.reason.split())} for one in plan.infeasible]
    return to_csv(rows)
