"""The manifest: what was run, on what, with which files as the result. The only place for clocks and host names."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.versions import version_of
from experiments.backends import is_real
from experiments.cells import Outcome
from experiments.config import dump, map_paths
from experiments.environment import told
from experiments.provenance import name_only, without_folders
from experiments.resolve import Plan
from experiments.sharing import shares, transfers_of
from experiments.store import Store, row_counts
from experiments.trace_lengths import entry_of

SCHEMA_VERSION = 1
PACKAGES = ("numpy", "pandas", "pyarrow", "pydantic", "cyclopts", "rich", "simpy", "matplotlib", "seaborn", "torch")


@dataclass(frozen=True, slots=True)
class Invocation:
    """One invocation: what was typed, and when it began."""

    verb: str
    argv: Sequence[str]
    started: datetime


def now() -> datetime:
    """UTC."""
    return datetime.now(UTC)


def manifest_of(
    plan: Plan, invocation: Invocation, outcomes: Sequence[Outcome], store: Store, status: str
) -> dict[str, Any]:
    """Everything but the files that are made from the results."""
    finished = now()
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": store.folder.name,
        "verb": invocation.verb,
        "status": status,
        "argv": [name_only(word) for word in invocation.argv],
        "config": named(plan),
        "config_sha256": plan.sha256,
        "seeds": sorted(plan.arriving.traces),
        "git": git_state(Path(__file__).parent),
        "trace": plan.arriving.provenance,
        "trace_lengths": entry_of(plan.arriving),
        "capacity": plan.pool.to_dict(),
        "step_model": plan.step_times,
        **_transfers(plan),
        "device": "simulated",
        **engine_entries(outcomes),
        **environment(),
        "started": invocation.started.isoformat(timespec="milliseconds"),
        "finished": finished.isoformat(timespec="milliseconds"),
        "wall_s": (finished - invocation.started).total_seconds(),
        "cells": [_cell(plan, outcome) for outcome in outcomes],
        "num_cells_planned": len(plan.cells),
        "num_rows": row_counts(outcomes),
        "notes": plan.notes,
        "files": store.hashes(derived=False),
    }


def _transfers(plan: Plan) -> dict[str, Any]:
    """What copying a block costs, by block size; nothing where nothing is copied."""
    if is_real(plan.config) or not shares(plan.config):
        return {}
    sizes = sorted({cell.block_size for cell in plan.cells})
    return {"transfers": {str(size): transfers_of(plan.config, size).to_dict() for size in sizes}}


def engine_entries(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Device and provenance of the engine that ran the steps; nothing where they were simulated."""
    engine = next((outcome.engine for outcome in outcomes if outcome.engine), None)
    return {} if engine is None else {"device": engine["device"], "engine": without_folders(engine)}


def named(plan: Plan) -> dict[str, Any]:
    """The resolved configuration with files by name only: a manifest can be shown to anyone."""
    tree = dump(plan.config)
    flat = map_paths({f"{s}.{k}": v for s in ("workload", "model", "measure") for k, v in tree[s].items()}, _last_part)
    if plan.config.model.name is not None and Path(plan.config.model.name).exists():
        flat["model.name"] = _last_part(plan.config.model.name)
    for dotted, value in flat.items():
        section, _, key = dotted.partition(".")
        tree[section][key] = value
    return tree


def _last_part(path: str) -> str:
    return Path(path).name


def _cell(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    cell = outcome.cell
    state = "failed" if outcome.summary is None else "invalid" if outcome.failed_checks else "ok"
    return {
        "cell": cell.name,
        "allocator": cell.allocator,
        "block_size": cell.block_size,
        "num_blocks": cell.num_blocks,
        **({"kernel": cell.kernel} if outcome.engine else {}),
        "seed": cell.seed,
        "trace_sha256": plan.trace(cell).sha256(),
        "map_frames": cell.map_frames,
        "status": state,
        "error": outcome.error or None,
        "failed_checks": outcome.failed_checks,
        "wall_s": outcome.wall_s,
    }


def environment() -> Mapping[str, Any]:
    """Interpreter, packages and machine; and the variables that say something of the configuration, if any do."""
    given = {name: name_only(value) for name, value in told().items()}
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in ("pagelab", *PACKAGES) if (version := version_of(name))},
        "os": platform.platform(),
        "cpu": _cpu(),
        "num_cpus": os.cpu_count(),
        **({"variables": given} if given else {}),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if sys.platform == "linux" and info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether the checkout differs from it; None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
