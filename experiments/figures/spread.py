"""What a sweep says, in one paragraph of plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.figures.caption import counted
from experiments.figures.columns import configuration_of, written
from experiments.figures.latex import plus_minus
from experiments.figures.repeats import runs_of
from experiments.figures.swept import swept
from experiments.figures.tables import lost_cells

if TYPE_CHECKING:
    from experiments.figures.stored import Stored

BEST = (
    ("output_tok_per_s", False, "tokens per second", "The most tokens a second"),
    ("mean_ttft_s", True, "s", "The shortest wait for a first token"),
    ("kv_live_frac", False, "of the memory filled with tokens", "The largest live share"),
)


def answer(stored: Stored, table: pd.DataFrame) -> list[str]:
    """How much was tried, where each goal is met best, and what must not be quoted. `table`: one row a
    configuration."""
    if table.empty:
        return ["No cell of this sweep finished, so there is nothing to compare."]
    sentences = [_size(stored, table)]
    if not _completed(stored.summary):
        return [*sentences, "There was no completed request, so there are no latencies and nothing to rank."]
    keys = swept(stored)
    for column, least, unit, words in BEST:
        if column in table and table[column].notna().any():
            sentences.append(_best(stored, table, keys, column, unit, words, least=least))
    return [*sentences, *_saturated(table), *_clock(stored)]


def _size(stored: Stored, table: pd.DataFrame) -> str:
    keys = swept(stored)
    groups = dict.fromkeys(next((tuple(group) for group in stored.zips if key in group), (key,)) for key in keys)
    axes = " × ".join(_values_of(table, [key for key in group if key in keys]) for group in groups)
    runs = len(runs_of(stored.summary))
    lost = len(lost_cells(stored))
    repeats = f" in {counted(runs, 'run')}" if runs != len(table) else ""
    failed = f"; {counted(lost, 'cell')} failed" if lost else ""
    return f"{counted(len(table), 'configuration')}{f' ({axes})' if axes else ''} finished{repeats}{failed}."


def _values_of(table: pd.DataFrame, keys: list[str]) -> str:
    """`3 of block size`; of zipped axes `3 of block size with num blocks`."""
    return f"{len(table[keys].map(written).drop_duplicates())} of {' with '.join(map(_leaf, keys))}"


def _completed(frame: pd.DataFrame) -> bool:
    columns = [name for name in ("num_finished", "num_truncated") if name in frame]
    return not columns or bool(frame[columns].to_numpy().sum() > 0)


def _best(
    stored: Stored, table: pd.DataFrame, keys: list[str], column: str, unit: str, words: str, *, least: bool
) -> str:
    """The best configuration, and the best of each other allocator. Saturated ones have no latency to quote."""
    rows = table[table[column].notna()]
    if least and "saturated" in rows and not rows["saturated"].all():
        rows = rows[~rows["saturated"]]
    best = _first(rows, column, least=least)
    where = ", ".join(f"{_leaf(key)} {written(best[key])}" for key in keys)
    sentence = f"{words} had {where or 'the one configuration'}: {_number(best, column)} {unit}"
    allocator = next((name for name in configuration_of(stored.summary, stored.axes) if _leaf(name) == "allocator"), "")
    if not allocator or allocator not in keys:
        return f"{sentence}."
    others = []
    for name, group in rows.groupby(allocator, sort=False):
        if name != best[allocator]:
            others.append(f"{name} {_number(_first(group, column, least=least), column)}")
    beside = f" (the best of {'; '.join(others)})" if others else ""
    return f"{sentence}{beside}."


def _first(rows: pd.DataFrame, column: str, *, least: bool) -> pd.Series[Any]:
    """The row of the least or the largest value; of equal ones the first."""
    return rows.sort_values(column, ascending=least, kind="stable").iloc[0]


def _number(row: pd.Series[float], column: str) -> str:
    return plus_minus(row[column], row[f"{column}_ci95"], percent=column.endswith("_frac"))


def _leaf(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _saturated(table: pd.DataFrame) -> list[str]:
    count = int(table["saturated"].sum()) if "saturated" in table else 0
    if not count:
        return []
    who = f"In {count} of {len(table)} configurations requests arrived faster than they were served (“saturated”)"
    return [f"{who}: their latencies grow with the length of the trace and should not be quoted."]


def _clock(stored: Stored) -> list[str]:
    device = str(stored.manifest.get("device", "simulated"))
    if device != "simulated":
        return [f"Every step was run on {device} and timed there."]
    return ["All times are simulated with a model of how long a step takes; shares of memory are counted exactly."]
