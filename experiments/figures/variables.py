"""Any column of the summary against any other, one curve a value of a third: means and sd over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.figures.repeats import UNSET, need, over_seeds
from experiments.figures.together import RATE
from experiments.style import in_order, log2_axis, look_of
from sim.extra_metrics import RESIDENCY_METRICS, SHARING_METRICS
from sim.metrics import ENGINE_METRICS, METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED = ("median_s", "p20_s", "p80_s")
"""Seconds of a device."""


def plot_variables(frame: pd.DataFrame, var_x: str, var_y: str, curve_by: str | None, ax: Axes) -> pd.DataFrame:
    """Draws `var_y` over `var_x`. A null in `curve_by` is a curve of its own, `unset`; an x that is not a number, or is
    null, makes the axis one of categories. ValueError with a suggestion for a column that is not there."""
    keys = [var_x, *([curve_by] if curve_by and curve_by != var_x else [])]
    need(frame, [*keys, var_y])
    if not pd.api.types.is_numeric_dtype(frame[var_y]):
        raise ValueError(f"column {var_y!r} is not a number in every row, so it cannot be the y axis")
    table = over_seeds(frame, keys, [var_y])
    categories = _categories(table[var_x])
    place = table[var_x].map(written).map(categories.index) if categories else table[var_x]
    table.insert(1, "place", place)
    table = table.sort_values("place", kind="stable")
    for name, rows in _curves(table, curve_by):
        look = look_of(name)
        drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
        spread = rows[f"{var_y}_sd"]
        ax.errorbar(rows["place"], rows[var_y], yerr=spread, capsize=2, label=name, **drawn)
    _scale_x(ax, table, var_x, categories)
    if table[var_y].min() >= 0:
        ax.set_ylim(bottom=0)
    ax.set_ylabel(axis_label(var_y))
    return table.drop(columns="place").reset_index(drop=True)


def axis_label(column: str) -> str:
    """The metric's name and unit; simulated latencies say so."""
    if column == RATE:
        return "requests per second"
    metric = next((m for m in METRICS if m.name == column), None)
    metric = metric or next((m for m in (*RESIDENCY_METRICS, *SHARING_METRICS) if m.name == column), None)
    if measured := next((m for m in ENGINE_METRICS if m.name == column), None):
        return f"{measured.label} ({measured.unit})"
    if metric is None:
        return f"{column} (simulated)" if column.endswith("_s") and column not in MEASURED else column
    unit = {"1": "fraction"}.get(metric.unit, metric.unit)
    return f"{metric.label} ({unit}, simulated)" if unit.startswith("s") else f"{metric.label} ({unit})"


def written(value: Any) -> str:
    """A key as people read it."""
    if pd.isna(value):
        return UNSET
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


def _categories(column: pd.Series[Any]) -> list[str]:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column) and not column.isna().any():
        return []
    return list(dict.fromkeys(written(value) for value in column.sort_values(na_position="first")))


def _curves(table: pd.DataFrame, curve_by: str | None) -> list[tuple[str, pd.DataFrame]]:
    if not curve_by:
        return [("all", table)]
    names = table[curve_by].map(written)
    order = in_order(names) if curve_by == "allocator" else list(dict.fromkeys(names[table[curve_by].argsort()]))
    return [(name, table[names == name]) for name in order]


def _scale_x(ax: Axes, table: pd.DataFrame, var_x: str, categories: list[str]) -> None:
    if categories:
        ax.set_xticks(range(len(categories)), categories)
        ax.set_xlabel(axis_label(var_x))
        return
    values = sorted(set(table[var_x].astype(float)))
    if len(values) > 2 and all(value > 0 and float(np.log2(value)).is_integer() for value in values):
        log2_axis(ax, values, axis_label(var_x))
    else:
        ax.set_xlabel(axis_label(var_x))
