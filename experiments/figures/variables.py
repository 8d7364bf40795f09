"""Any column of the summary over any other: curves, rows and columns of panels, figures, each by further columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.figures.columns import all_resolved, by_size, filtered, resolved, written
from experiments.figures.curves import Horizontal, ScaleX, draw_curves
from experiments.figures.intervals import with_intervals
from experiments.figures.labels import axis_label, in_lines
from experiments.figures.looks import looks_of
from experiments.figures.panels import legend_columns, legend_of
from experiments.figures.repeats import runs_of
from experiments.figures.saturation import SATURATED, has_marks, marked, name_mark
from experiments.figures.spec import NothingToDrawError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

HEADROOM = 0.05
"""Of the axis, above the highest mark."""
IN_A_ROW = 3
"""Panels, where only columns of panels are asked for."""
PANEL_IN = 1.75
"""Height of one panel among several."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is drawn over what; names of columns as they were given, or as they are once `on` has found them."""

    var_x: str
    var_y: str
    curve_by: tuple[str, ...] = ()
    row_by: str | None = None
    col_by: str | None = None
    fig_by: str | None = None
    filter_by: tuple[str, ...] = ()
    scale_x: ScaleX = "auto"

    def on(self, frame: pd.DataFrame) -> Choice:
        """The same with the columns of that frame; ValueError for one that is not there, that is no number where one
        is needed, or that has two parts to play."""
        var_x = resolved(self.var_x, frame)
        made = replace(
            self,
            var_x=var_x,
            var_y=resolved(self.var_y, frame),
            curve_by=tuple(name for name in all_resolved(self.curve_by, frame) if name != var_x),
            row_by=_maybe(self.row_by, frame),
            col_by=_maybe(self.col_by, frame),
            fig_by=_maybe(self.fig_by, frame),
        )
        used = [name for name in made.keys if name is not None]
        if twice := {name for name in used if used.count(name) > 1}:
            raise ValueError(f"column {min(twice)!r} is asked for twice among x, curves, rows, columns and figures")
        if not pd.api.types.is_numeric_dtype(frame[made.var_y]) or pd.api.types.is_bool_dtype(frame[made.var_y]):
            raise ValueError(f"column {made.var_y!r} is not a number in every row, so it cannot be the y axis")
        return made

    @property
    def keys(self) -> list[str]:
        """Columns whose values are told apart, in the order of the table."""
        given = (self.var_x, *self.curve_by, self.row_by, self.col_by, self.fig_by)
        return [name for name in given if name is not None]

    def figures(self, frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
        """(value, rows) of each figure, after the filters; one without a name if there is no `fig_by`."""
        rows = filtered(frame, self.filter_by)
        if self.fig_by is None:
            return [("", rows)]
        return [(name, rows[of]) for name, of in _by(rows, self.fig_by)]


def _maybe(name: str | None, frame: pd.DataFrame) -> str | None:
    return None if name is None else resolved(name, frame)


def _by(frame: pd.DataFrame, column: str | None) -> list[tuple[str, pd.Series[bool]]]:
    """(value in words, which rows) in order, a missing one first; all rows if there is no column."""
    if column is None:
        return [("", pd.Series(True, index=frame.index))]
    ordered = frame[column].sort_values(kind="stable", na_position="first", key=by_size)
    words = frame[column].map(written)
    return [(name, words == name) for name in dict.fromkeys(written(value) for value in ordered)]


def table_of(frame: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """Means over repeats with sd and interval, one row a point, and of times whether a run was saturated.
    NothingToDrawError if no row has the value."""
    if not frame[choice.var_y].notna().any():
        raise NothingToDrawError(f"{choice.var_y} has no value in any of these {len(frame)} rows")
    return marked(with_intervals(frame, choice.keys, [choice.var_y]), frame, choice.keys, [choice.var_y])


def without_value(frame: pd.DataFrame, column: str) -> str:
    """A sentence on the rows that have no value to show; empty if all have."""
    runs = runs_of(frame)
    missing = int(runs[column].isna().sum())
    return f"{missing} of {len(runs)} runs have no {column}: they are in no mean" if missing else ""


def grid_of(frame: pd.DataFrame, choice: Choice) -> tuple[int, int]:
    """Rows and columns of panels."""
    rows, columns = (len(_by(frame, name)) for name in (choice.row_by, choice.col_by))
    if choice.row_by is None and columns > IN_A_ROW:
        wide = 2 if columns == 4 else IN_A_ROW
        return -(-columns // wide), wide
    return rows, columns


def draw_facets(frame: pd.DataFrame, choice: Choice, canvas: Canvas) -> pd.DataFrame:
    """Draws the figure and returns the plotted numbers; all panels share their axes, and one legend."""
    table = table_of(frame, choice)
    num_rows, num_columns = grid_of(frame, choice)
    horizontal = Horizontal.of(table[choice.var_x], choice.scale_x)
    looks = looks_of(table, choice.curve_by)
    grid = canvas.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    facets = [(row, column) for row in _by(table, choice.row_by) for column in _by(table, choice.col_by)]
    for place, (ax, ((row, in_row), (column, in_column))) in enumerate(zip(panels, facets, strict=False)):
        draw_curves(table[in_row & in_column], horizontal, choice.var_y, choice.curve_by, looks, ax)
        horizontal.put_on(ax)
        _name_panel(ax, choice, row, column, top=place < num_columns, right=place % num_columns == num_columns - 1)
        _outer_only(ax, left=place % num_columns == 0, bottom=place + num_columns >= len(facets))
    for ax in panels[len(facets) :]:
        ax.remove()
    _from_zero(panels[: len(facets)], table[choice.var_y])
    _label_y(canvas, panels[0], choice.var_y, num_rows, alone=len(facets) == 1)
    if has_marks(table, [choice.var_y]):
        name_mark(panels[0], markerfacecolor="white")
    if panels[0].get_legend_handles_labels()[1] or choice.curve_by:
        legend_of(canvas, panels[: len(facets)], title=legend_title(choice.curve_by))
    return table


def legend_lines(frame: pd.DataFrame, curve_by: Sequence[str], columns: Sequence[str], width_in: float) -> int:
    """Rows of the legend, its title among them; 0 where nothing needs a name."""
    names = [*(looks_of(frame, curve_by) if curve_by else ()), *([SATURATED] if has_marks(frame, columns) else [])]
    return -(-len(names) // legend_columns(names, width_in)) + bool(curve_by and legend_title(curve_by))


def _name_panel(ax: Axes, choice: Choice, row: str, column: str, *, top: bool, right: bool) -> None:
    """Columns are named above the first row, rows right of the last column; wrapped columns each above their own."""
    if choice.col_by is not None and (top or choice.row_by is None):
        ax.set_title(_facet(choice.col_by, column))
    if choice.row_by is not None and right:
        place: dict[str, Any] = {"xycoords": "axes fraction", "rotation": 270, "ha": "left", "va": "center"}
        ax.annotate(_facet(choice.row_by, row), (1.03, 0.5), fontsize=ax.title.get_fontsize(), **place)


def _facet(column: str, value: str) -> str:
    """`block_size = 16`; an allocator's name speaks for itself."""
    leaf = column.rpartition(".")[2]
    return value if leaf == "allocator" else f"{leaf} = {value}"


def _outer_only(ax: Axes, *, left: bool, bottom: bool) -> None:
    ax.tick_params(labelleft=left, labelbottom=bottom)
    if not bottom:
        ax.set_xlabel("")


def _from_zero(panels: Sequence[Axes], values: pd.Series[Any]) -> None:
    """Distances from zero are what ratios look like; no curve or band reaches below where values do not."""
    if values.min() >= 0:
        highest = max(float(ax.dataLim.y1) for ax in panels)
        panels[0].set_ylim(0, max(panels[0].get_ylim()[1], (1 + HEADROOM) * highest))


def _label_y(canvas: Canvas, first: Axes, column: str, num_rows: int, *, alone: bool) -> None:
    label = axis_label(column) if num_rows > 1 else in_lines(axis_label(column))
    if alone:
        first.set_ylabel(label)
    else:
        canvas.supylabel(label, fontsize=first.yaxis.label.get_fontsize(), ma="center")


def legend_title(curve_by: Sequence[str]) -> str:
    """Nothing to say of allocators: their names do."""
    leaves = [name.rpartition(".")[2] for name in curve_by]
    return "" if leaves == ["allocator"] else ", ".join(axis_label(name) for name in leaves)
