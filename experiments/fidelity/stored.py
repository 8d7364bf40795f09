"""Stored runs of engine and simulator: reading them, and simulating again what an engine ran."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.exits import UsageError
from experiments.fidelity.pairs import ENGINE, SIMULATED

RUNS_FILE, ABOUT_FILE = "runs.csv", "fidelity.json"
KEYS: Final = ("allocator", "load", "system", "repeat")
WORDS: Final = {"allocator", "system", "backend", "kernel", "window_kind", "trace_sha256", "load", "saturated"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """One folder."""

    folder: Path
    about: dict[str, Any]
    rows: list[Row]

    def pairs(self) -> list[tuple[str, float, list[Row], Row]]:
        """(allocator, load, the engine's runs, the simulator's run), in order; loads that both have run."""
        found: dict[tuple[str, float], dict[str, list[Row]]] = {}
        for row in self.rows:
            if row["load"] != "all":
                place = found.setdefault((row["allocator"], float(row["load"])), {})
                place.setdefault(row["system"], []).append(row)
        return [
            (allocator, load, both[ENGINE], both[SIMULATED][0])
            for (allocator, load), both in sorted(found.items())
            if ENGINE in both and SIMULATED in both
        ]


def read_all(folder: Path) -> list[Stored]:
    """The folder's own runs, or those of each folder in it, by name. UsageError where there are none."""
    inner = sorted(path.parent for path in folder.glob(f"*/{ABOUT_FILE}"))
    return [read(one) for one in inner] if inner and not (folder / ABOUT_FILE).exists() else [read(folder)]


def read(folder: Path) -> Stored:
    """What `experiments.fidelity.main` wrote. UsageError for anything else."""
    try:
        about = json.loads((folder / ABOUT_FILE).read_text("utf-8"))
        with (folder / RUNS_FILE).open(newline="", encoding="utf-8") as file:
            rows = [_typed(row) for row in csv.DictReader(file)]
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: no runs of engine and simulator can be read here: {error}") from error
    lacking = [name for name in KEYS if not all(name in row for row in rows)]
    if lacking or not rows:
        raise UsageError(f"{folder / RUNS_FILE}: columns {', '.join(lacking) or 'and rows'} are missing")
    return Stored(folder, about, rows)


def _typed(row: dict[str, str]) -> Row:
    """Numbers as numbers; empty fields are None."""
    return {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    return text if name in WORDS else float(text)
