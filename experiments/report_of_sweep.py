"""The report of a sweep: one offline page; and, of all results, the table of configurations as LaTeX and CSV."""

from __future__ import annotations

from typing import Any

import pandas as pd

from experiments import store
from experiments.figures.caption import command_of
from experiments.figures.columns import configuration_of, written
from experiments.figures.drawing import write_numbers
from experiments.figures.intervals import with_intervals
from experiments.figures.latex import latex_table, plus_minus
from experiments.figures.plots import small_samples
from experiments.figures.saturation import SATURATED, grows, marked
from experiments.figures.spread import answer
from experiments.figures.stored import Stored
from experiments.figures.swept import has_repeats
from experiments.figures.tables import Table, exclusions, lost_cells, setup

COLUMNS = {
    "kv_live_frac": "live",
    "mean_batch_size": "batched requests",
    "output_tok_per_s": "tokens/s",
    "mean_ttft_s": "TTFT (s)",
    "mean_tpot_s": "TPOT (s)",
    "num_preemptions": "preemptions",
}
MOST_ROWS = 400
TEX = "results.tex"
NOT_OF_ONE = ("allocators", "block sizes (tokens)", "KV memory")
"""Rows of the set-up that are about one condition."""


def means(stored: Stored) -> pd.DataFrame:
    """One row a configuration, in the sweep's order, with intervals; whether any of its runs was saturated."""
    frame = stored.summary
    keys = configuration_of(frame, stored.axes)
    if frame.empty or not keys:
        return pd.DataFrame()
    shown = [name for name in COLUMNS if name in frame]
    return marked(with_intervals(frame, keys, shown), frame, keys, shown)


def results(stored: Stored, table: pd.DataFrame) -> Table:
    """As text: mean ± interval, latencies of saturated configurations with a dagger."""
    if table.empty:
        return Table([], [])
    keys = configuration_of(stored.summary, stored.axes)
    shown = [name for name in COLUMNS if name in table]
    rows = []
    for _, row in table.iterrows():
        late = bool(row.get(SATURATED, False))
        cells = [
            plus_minus(row[name], row[f"{name}_ci95"], percent=name.endswith("_frac")) + " †" * (late and grows(name))
            for name in shown
        ]
        rows.append([*(written(row[key]) for key in keys), str(row["num_runs"]), *cells])
    heads = [key.rpartition(".")[2].replace("_", " ") for key in keys]
    return Table([*heads, "runs", *(COLUMNS[name] for name in shown)], rows)


def write_tables(stored: Stored, about: str) -> tuple[Table, pd.DataFrame]:
    """`tables/results.csv` and `.tex`; the text, and the numbers."""
    table = means(stored)
    text = results(stored, table)
    folder = stored.folder / store.TABLES
    folder.mkdir(exist_ok=True)
    write_numbers(table, folder / "results.csv")
    tex = latex_table(text.heads, text.rows, about) if text.rows else "% no cell finished\n"
    (folder / TEX).write_text(tex, encoding="utf-8", newline="\n")
    return text, table


def context_of(
    stored: Stored, figures: list[dict[str, Any]], checks: dict[str, Any], text: Table, table: pd.DataFrame
) -> dict[str, Any]:
    """Everything that sweep.html.j2 shows."""
    axes = stored.manifest.get("axes")
    notes = [str(note) for note in stored.manifest.get("notes") or []]
    return {
        "title": str(stored.manifest.get("experiment", stored.folder.name)),
        "answer": answer(stored, table),
        "command": command_of(stored.manifest),
        "axes": [(key, ", ".join(map(_value, values))) for key, values in axes.items()] if axes else [],
        "setup": [(name, value) for name, value in setup(stored) if name not in NOT_OF_ONE],
        "checks": checks,
        "figures": figures,
        "results": Table(text.heads, text.rows[:MOST_ROWS]),
        "left_out": max(0, len(text.rows) - MOST_ROWS),
        "has_repeats": has_repeats(stored),
        "saturated": bool(table.get(SATURATED, pd.Series(dtype=bool)).any()),
        "exclusions": exclusions(stored, every_cell=True),
        "lost_cells": lost_cells(stored),
        "infeasible": [_infeasible(one) for one in stored.manifest.get("infeasible") or []],
        "problems": stored.problems,
        "notes": [*notes, *small_samples(stored.summary, [name for name in ["p99_e2e_s"] if name in stored.summary])],
        "clock": "measured" if stored.is_measured else "simulated",
    }


def _value(value: Any) -> str:
    return written(value) if value is None or isinstance(value, float) else str(value)


def _infeasible(entry: dict[str, Any]) -> str:
    point = ", ".join(f"{key}={_value(value)}" for key, value in entry.get("point", {}).items())
    return f"{point}: {entry.get('reason', 'unknown reason')}"
