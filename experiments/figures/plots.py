"""Pictures and tables of a choice of columns: sizes, style, provenance, and the numbers beside each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from experiments.figures.caption import LINE_IN, MAX_LINES, above_footer, caption_of, footer_lines
from experiments.figures.columns import configuration_of, mixed
from experiments.figures.drawing import name_clock, write_numbers
from experiments.figures.intervals import INTERVAL
from experiments.figures.latex import latex_table, over_curves, pivot
from experiments.figures.pareto import draw_pareto, goals_of
from experiments.figures.repeats import each_once
from experiments.figures.saturation import CROSSED, DAGGER, HOLLOW, has_marks
from experiments.figures.variables import PANEL_IN, Choice, draw_facets, grid_of, legend_lines, without_value
from experiments.style import COLUMN_IN, PAGE_IN, PLOT_IN, new_figure, save, style
from sim.lookup import least_sample

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

Style = Literal["screen", "paper"]
LEGEND_ROW_IN = 0.15
FOOT_LINES = 8


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture to be: its rows, its file, and how it looks."""

    choice: Choice
    rows: pd.DataFrame
    path: Path
    look: Style = "screen"
    pareto: str = ""
    """Two goals; then x and y of the choice play no part."""
    command: str = ""
    """What made this picture."""

    @property
    def columns(self) -> list[str]:
        """Whose values are shown."""
        return [goal.column for goal in goals_of(self.pareto, self.rows)] if self.pareto else [self.choice.var_y]

    def keys(self, axes: Sequence[str]) -> list[str]:
        """Columns by which repeats are put together."""
        if not self.pareto:
            return self.choice.keys
        return list(dict.fromkeys([*configuration_of(self.rows, axes), *self.choice.curve_by]))

    def remarks(self, axes: Sequence[str]) -> list[str]:
        """What the numbers do not say of themselves."""
        over = mixed(self.rows, self.keys(axes), axes)
        said = [f"each point is a mean over {' and '.join(over)} too, not over repeats alone"] if over else []
        said += [without_value(self.rows, column) for column in self.columns]
        said += [self._mark] if has_marks(self.rows, self.columns) else []
        return [*filter(None, said), *small_samples(self.rows, self.columns)]

    @property
    def _mark(self) -> str:
        return DAGGER if self.path.suffix == ".tex" else CROSSED if self.pareto else HOLLOW

    def num_points(self, axes: Sequence[str]) -> int:
        """Rows of the table behind it."""
        return int(self.rows.groupby(self.keys(axes), dropna=False, sort=False).ngroups)


def small_samples(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """That a percentile is little more than the largest value, where runs finished too few requests."""
    if "num_finished" not in frame or frame.empty:
        return []
    fewest = int(frame["num_finished"].min())
    return [
        f"{column} of {fewest} finished requests: below {least_sample(column)} it is little more than the largest value"
        for column in columns
        if fewest < least_sample(column)
    ]


def draw_plot(stored: Stored, plot: Plot) -> pd.DataFrame:
    """Writes the picture, or the LaTeX table if the file is a .tex, and its numbers as CSV; returns them.

    NothingToDrawError if there are none, ValueError for what cannot be drawn: then nothing is written.
    """
    about = "\n".join([provenance(stored, plot), *plot.remarks(stored.axes)])
    if plot.path.suffix == ".tex":
        table = _write_tex(plot, about)
    else:
        with style(paper=plot.look == "paper"):
            width, height = size_in(plot)
            foot = " · ".join(about.splitlines())
            extra = 0 if plot.look == "paper" else len(footer_lines(foot, width, FOOT_LINES)) - MAX_LINES
            canvas = new_figure(width, height + LINE_IN * max(0, extra))
            inner = canvas if plot.look == "paper" else above_footer(canvas, foot, FOOT_LINES)
            table = _drawn(plot, inner, stored.axes)
            name_clock(stored, canvas)
            plot.path.parent.mkdir(parents=True, exist_ok=True)
            save(canvas, plot.path, about)
    write_numbers(table, plot.path.with_suffix(".csv"))
    return table


def provenance(stored: Stored, plot: Plot) -> str:
    """Requests, seeds, trace, device, the command of the results and that of the picture."""
    made = f" · drawn by {plot.command}" if plot.command else ""
    several = f"spread: {INTERVAL} · " if _repeats(plot, stored.axes) else ""
    return several + caption_of(stored, base=False) + made


def _repeats(plot: Plot, axes: Sequence[str]) -> bool:
    return plot.num_points(axes) < len(each_once(plot.rows, plot.keys(axes)))


def _write_tex(plot: Plot, about: str) -> pd.DataFrame:
    if plot.pareto or plot.choice.row_by or plot.choice.col_by:
        raise ValueError("a .tex is one table: x down, curves across, without panels or a frontier")
    heads, rows, table = pivot(plot.rows, plot.choice)
    plot.path.parent.mkdir(parents=True, exist_ok=True)
    plot.path.write_text(latex_table(heads, rows, about, over_curves(plot.choice)), encoding="utf-8", newline="\n")
    return table


def _drawn(plot: Plot, canvas: Canvas, axes: Sequence[str]) -> pd.DataFrame:
    if not plot.pareto:
        return draw_facets(plot.rows, plot.choice, canvas)
    goals = goals_of(plot.pareto, plot.rows)
    return draw_pareto(plot.rows, plot.keys(axes), goals, plot.choice.curve_by, canvas)


def size_in(plot: Plot) -> tuple[float, float]:
    """Width and height that its panels and its legend need; a longer footer comes on top."""
    rows, columns = (1, 1) if plot.pareto else grid_of(plot.rows, plot.choice)
    paper = plot.look == "paper"
    width = (COLUMN_IN if paper else PLOT_IN) if columns == 1 else PAGE_IN
    height = (0.68 if paper else 0.62) * width if rows == columns == 1 else 0.75 + PANEL_IN * rows
    lines = legend_lines(plot.rows, plot.choice.curve_by, plot.columns, width)
    return width, height + LEGEND_ROW_IN * max(0, lines - 1)


def default_name(choice: Choice, pareto: str, figure: str) -> str:
    """File name without suffix; the value of `fig_by` at its end."""
    base = f"{choice.var_y}-by-{choice.var_x}"
    if pareto:
        base = "pareto-" + pareto.replace(":", "-").replace(",", "-").replace(" ", "")
    return base + suffix_of(figure)


def suffix_of(figure: str) -> str:
    """What a figure among several has behind its name."""
    return "-" + "".join(c if c.isalnum() or c in "._" else "-" for c in figure) if figure else ""
