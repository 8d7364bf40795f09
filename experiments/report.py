"""One self-contained offline HTML page from a results folder, for a reader who has seen nothing else.

Everything that comes from files is escaped; nothing is fetched. The same folder gives the same bytes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments import report_of_sweep, store
from experiments.figures import FIGURES, MEASURED_FIGURES, Stored
from experiments.figures.answer import answer
from experiments.figures.block_size import unequal_pools
from experiments.figures.caption import caption_of, command_of
from experiments.figures.drawing import Drawn, draw_all
from experiments.figures.swept import figures_of
from experiments.figures.tables import (
    MEMORY,
    PERCENTILES,
    Table,
    exclusions,
    lost_cells,
    replicas,
    results,
    results_by_block_size,
    setup,
    shared,
    speed_columns,
)
from sim.extra_metrics import FLEET_METRICS, RESIDENCY_METRICS, SHARING_METRICS
from sim.metrics import ENGINE_METRICS, METRICS, Metric

TEMPLATES = Path(__file__).parent / "templates"
BLOCK_SIZE_FIGURE = "by_block_size"
REPORT, SWEEP = "report.html.j2", "sweep.html.j2"


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and what became of each figure."""

    path: Path
    figures: list[Drawn]
    problems: list[str]
    """Files that were missing or could not be read."""

    @property
    def errors(self) -> list[str]:
        """Figures that failed, by name; figures without data are none."""
        return [f"{drawn.figure.name}: {drawn.error}" for drawn in self.figures if drawn.error]


def write_report(folder: Path) -> Path:
    """Draws every figure into `folder/figures` and writes `folder/report.html`; its path."""
    return build_report(folder).path


def build_report(folder: Path) -> Report:
    """The same, with the errors."""
    stored = Stored(folder)
    swept = stored.manifest.get("kind") == "sweep"
    wanted = [*(MEASURED_FIGURES if stored.is_measured else ()), *FIGURES.values()]
    figures = draw_all(stored, figures_of(stored) if swept else wanted, folder / "figures")
    text, table = report_of_sweep.write_tables(stored, caption_of(stored, base=False))
    context = sweep_context(stored, figures, text, table) if swept else context_of(stored, figures)
    path = folder / "report.html"
    partial = path.with_name(".report.html.tmp")
    partial.write_text(page(context, SWEEP if swept else REPORT), encoding="utf-8", newline="\n")
    partial.replace(path)
    return Report(path, figures, stored.problems)


def page(context: dict[str, Any], template: str = REPORT) -> str:
    """The template, filled in and escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(context)


def context_of(stored: Stored, figures: list[Drawn]) -> dict[str, Any]:
    """Everything that the template shows."""
    pictures = [_picture(drawn, stored) for drawn in figures]
    return {
        "title": str(stored.manifest.get("experiment", stored.folder.name)),
        "answer": answer(stored),
        "command": command_of(stored.manifest),
        "setup": setup(stored),
        "checks": checks_of(stored),
        "figures": [p for p in pictures if p["name"] != BLOCK_SIZE_FIGURE],
        "block_size_figure": next((p for p in pictures if p["name"] == BLOCK_SIZE_FIGURE), None),
        "memory": results(stored, MEMORY),
        "speed": results(stored, speed_columns(stored)),
        "percentiles": results(stored, PERCENTILES),
        "shared": shared(stored),
        "replicas": replicas(stored),
        "by_block_size": results_by_block_size(stored),
        "unequal_pools": unequal_pools(stored.summary),
        "base_block_size": stored.base_block_size,
        "num_seeds": stored.base["seed"].nunique(),
        "saturated": sorted(stored.saturated()),
        "exclusions": exclusions(stored),
        "lost_cells": lost_cells(stored),
        "problems": stored.problems,
        "notes": _notes(stored),
        "metrics": _metrics(stored),
        "clock": "measured" if stored.is_measured else "simulated",
        "latex": f"{store.TABLES}/{report_of_sweep.TEX}",
        "manifest": manifest_text(stored.manifest),
    }


def sweep_context(stored: Stored, figures: list[Drawn], text: Table, table: pd.DataFrame) -> dict[str, Any]:
    """The same for a sweep."""
    pictures = [_picture(drawn, stored) for drawn in figures]
    return report_of_sweep.context_of(stored, pictures, checks_of(stored), text, table) | {
        "metrics": _metrics(stored),
        "manifest": manifest_text(stored.manifest),
    }


def _metrics(stored: Stored) -> list[Metric]:
    """Definitions of the columns that these runs have."""
    more = [metric for metric in (*SHARING_METRICS, *RESIDENCY_METRICS) if metric.name in stored.base]
    fleet = FLEET_METRICS if FLEET_METRICS[0].name in stored.base else ()
    return [*METRICS, *(ENGINE_METRICS if stored.is_measured else ()), *more, *fleet]


def checks_of(stored: Stored) -> dict[str, Any]:
    """How many equations held, over all cells, and those that did not."""
    cells = stored.validations()
    outcomes = [(cell, name, passed) for cell, checks in cells.items() for name, passed in checks]
    failed = [f"{cell}: {name}" for cell, name, passed in outcomes if not passed]
    names = list(dict.fromkeys(name for _, name, _ in outcomes))
    return {"passed": len(outcomes) - len(failed), "failed": failed, "names": names, "num_cells": len(cells)}


def manifest_text(manifest: dict[str, Any]) -> str:
    """For the end of the page, which cannot hold its own hash."""
    kept = {key: value for key, value in manifest.items() if key != "derived_files"}
    return json.dumps(kept, indent=2, ensure_ascii=False)


def _notes(stored: Stored) -> list[str]:
    notes = stored.manifest.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _picture(drawn: Drawn, stored: Stored) -> dict[str, Any]:
    image = base64.b64encode(drawn.picture.read_bytes()).decode() if drawn.picture else ""
    figure = drawn.figure
    return {
        "name": figure.name,
        "title": figure.title,
        "claim": f"{figure.claim} {figure.remark(stored)}".rstrip() if drawn.picture else figure.claim,
        "caption": caption_of(stored, base=not figure.every_block_size),
        "paper": figure.paper,
        "image": image,
        "numbers": f"figures/{drawn.numbers.name}" if drawn.numbers else "",
        "missing": drawn.missing,
        "error": drawn.error,
    }
