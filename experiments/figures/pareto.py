"""Claim: of two goals no configuration off the frontier is best at any exchange between them.

A point is on the frontier if no other is at least as good in both goals and better in one: ties stay, all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.figures.columns import resolved
from experiments.figures.intervals import with_intervals
from experiments.figures.labels import axis_label, in_lines
from experiments.figures.looks import curve_names, looks_of
from experiments.figures.panels import legend_of
from experiments.figures.saturation import is_saturated, marked, name_mark
from experiments.figures.spec import NothingToDrawError
from experiments.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

ON = "on_frontier"
CROSS: dict[str, Any] = {"marker": "x", "color": "#000000", "markersize": 3, "markeredgewidth": 0.8, "zorder": 4}
"""On points of saturated runs: here filled or hollow says something else."""
_GOAL = re.compile(r"\s*(max|min):([A-Za-z_][\w.]*)\s*")


@dataclass(frozen=True, slots=True)
class Goal:
    """A column, and which way it is to go."""

    column: str
    sign: int
    """1 for more, -1 for less."""


def goals_of(text: str, frame: pd.DataFrame) -> tuple[Goal, Goal]:
    """`max:output_tok_per_s,min:mean_tpot_s`: the y axis, then the x axis. ValueError for anything else."""
    parts = [_GOAL.fullmatch(part) for part in text.split(",")]
    found = [part for part in parts if part]
    if len(found) != 2 or len(parts) != 2:
        raise ValueError(f"--pareto takes two goals, as in max:output_tok_per_s,min:mean_tpot_s, got {text!r}")
    first, second = (Goal(resolved(part[2], frame), 1 if part[1] == "max" else -1) for part in found)
    if first.column == second.column:
        raise ValueError(f"--pareto needs two different columns, got {first.column!r} twice")
    for goal in (first, second):
        if not pd.api.types.is_numeric_dtype(frame[goal.column]):
            raise ValueError(f"--pareto: column {goal.column!r} is not a number in every row")
    return first, second


def on_frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of points of which both numbers are to be large; one with a missing number is never on the frontier."""
    values = np.asarray(points, dtype=float).reshape(-1, 2)
    whole = ~np.isnan(values).any(axis=1)
    found = []
    for point, is_whole in zip(values, whole, strict=True):
        beaten = (values >= point).all(axis=1) & (values > point).any(axis=1)
        found.append(bool(is_whole and not beaten.any()))
    return found


def frontier(frame: pd.DataFrame, keys: Sequence[str], goals: tuple[Goal, Goal]) -> pd.DataFrame:
    """One row a configuration, means over repeats, with `on_frontier`; NothingToDrawError if none has both values."""
    columns = [goal.column for goal in goals]
    table = marked(with_intervals(frame, keys, columns), frame, keys, columns)
    up, across = goals
    pairs = zip(up.sign * table[up.column], across.sign * table[across.column], strict=True)
    table[ON] = on_frontier(list(pairs))
    if not table[ON].any():
        raise NothingToDrawError(f"no configuration has both {up.column} and {across.column}")
    return table


def draw_pareto(
    frame: pd.DataFrame, keys: Sequence[str], goals: tuple[Goal, Goal], curve_by: Sequence[str], canvas: Canvas
) -> pd.DataFrame:
    """Every configuration as a point, those on the frontier joined and filled; returns the table of `frontier`."""
    table = frontier(frame, keys, goals)
    ax = canvas.subplots()
    up, across = goals
    best = table[table[ON]].sort_values(across.column, kind="stable")
    steps = "steps-pre" if across.sign > 0 else "steps-post"  # nothing between two points was tried
    line: dict[str, Any] = {"color": "#3D3D3D", "linewidth": 1, "zorder": 1, "label": "frontier", "drawstyle": steps}
    ax.plot(best[across.column], best[up.column], **line)
    names = curve_names(table, curve_by)
    for name, look in looks_of(table, curve_by).items():
        rows = table[names == name]
        _points(ax, rows[~rows[ON]], goals, look, filled=False)
        _points(ax, rows[rows[ON]], goals, look, filled=True)
        ax.plot(
            [], [], linestyle="", marker=look.marker, color=look.colour, label=name if curve_by else "configuration"
        )
    if len(late := table[is_saturated(table)]):
        ax.plot(late[across.column], late[up.column], linestyle="", **CROSS)
        name_mark(ax, **CROSS)
    ax.set_title(f"better: {'up' if up.sign > 0 else 'down'} and {'right' if across.sign > 0 else 'left'}")
    ax.set_xlabel(axis_label(across.column))
    ax.set_ylabel(in_lines(axis_label(up.column)))
    legend_of(canvas, ax)
    return table


def _points(ax: Axes, rows: pd.DataFrame, goals: tuple[Goal, Goal], look: Look, *, filled: bool) -> None:
    up, across = goals
    drawn: dict[str, Any] = {"marker": look.marker, "markersize": 6 if filled else 4, "markeredgecolor": look.colour}
    drawn |= {"markerfacecolor": look.colour if filled else "none", "zorder": 3 if filled else 2}
    ax.plot(rows[across.column], rows[up.column], linestyle="", **drawn)
