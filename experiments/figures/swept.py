"""The figures of a sweep: each metric over the axes that were swept, in panels, and the frontier of two goals.

A point is a mean over repeats alone: an axis that finds no place among x, curves, columns and rows is shown at one of
its values, which the figure says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from experiments.figures.columns import by_size, configuration_of, is_allocator, is_number, written
from experiments.figures.intervals import INTERVAL
from experiments.figures.labels import axis_label
from experiments.figures.pareto import draw_pareto, goals_of
from experiments.figures.saturation import CROSSED, HOLLOW, has_marks
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.figures.variables import PANEL_IN, Choice, draw_facets, grid_of, legend_lines, without_value
from experiments.style import PAGE_IN

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

METRICS: dict[str, str] = {
    "kv_live_frac": "The share of the pool’s token slots that hold a token. Where the pool is partly idle, it follows "
    "the load and ranks nothing.",
    "mean_batch_size": "Requests that run at the same time, on average: higher is better.",
    "output_tok_per_s": "Tokens produced in a second: higher is better. Below saturation it is the load itself.",
    "mean_ttft_s": "Time from a request’s arrival to its first token: lower is better.",
    "mean_tpot_s": "Time for each further token: lower is better.",
    "num_preemptions": "Requests that had to give their memory back and start again.",
}
"""What to see in each, in the order of the report."""
GOALS = "max:output_tok_per_s,min:mean_tpot_s"
GOALS_OF = ("output_tok_per_s", "mean_tpot_s")
MOST_CURVES, MOST_COLUMNS, MOST_ROWS = 8, 9, 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Which axis is shown where, and what is not shown."""

    choice: Choice
    rows: pd.DataFrame
    left_out: tuple[str, ...]


def varying(stored: Stored) -> list[str]:
    """Columns of the configuration with more than one value, in the sweep's order."""
    frame = stored.summary
    names = configuration_of(frame, stored.axes) if len(frame) else []
    return [name for name in names if frame[name].map(written).nunique() > 1]


def swept(stored: Stored) -> list[str]:
    """Of these the axes, without what follows from others: a block size from the size of a page, say. Other results
    have no axes: all of them."""
    names = varying(stored)
    return [name for name in names if name in stored.axes] or names


def layout_of(stored: Stored) -> Layout:
    """The axis of most numbers goes across; allocators, or else the fewest values, are curves; then columns, then
    rows. An axis that is zipped with one that is shown is shown by it. NothingToDrawError if nothing was swept."""
    axes, frame = swept(stored), stored.summary
    if not axes:
        raise NothingToDrawError("no axis of this sweep has two values among the finished cells")
    counts = {name: frame[name].map(written).nunique() for name in axes}
    numeric = [name for name in axes if is_number(by_size(frame[name])) and frame[name].notna().all()]
    across = max(numeric or axes, key=lambda name: counts[name])
    rest = sorted(_of_their_own(axes, across, stored.zips), key=lambda name: counts[name])
    curves = next((name for name in rest if is_allocator(name)), rest[0] if rest else None)
    panels = [name for name in rest if name != curves][::-1]
    shown: list[tuple[str, int]] = [] if curves is None else [(curves, MOST_CURVES)]
    shown += list(zip(panels, (MOST_COLUMNS if len(panels) == 1 else 3, MOST_ROWS), strict=False))
    left_out = []
    for name, most in [*shown, *((name, 1) for name in panels[2:])]:
        frame, remark = _at_most(frame, name, most)
        left_out += [remark] if remark else []
    column, row = [*panels[:2], None, None][:2]
    return Layout(Choice(across, "", (curves,) if curves else (), row, column), frame, tuple(left_out))


def _of_their_own(axes: Sequence[str], across: str, zips: Sequence[Sequence[str]]) -> list[str]:
    """The other axes, of each zipped group one: those beside `across` vary with it. An allocator stands for its
    group."""
    places = {key: place for place, group in enumerate(zips) for key in group}
    taken = {places.get(across)} - {None}
    found = []
    for name in sorted((name for name in axes if name != across), key=lambda name: not is_allocator(name)):
        if (place := places.get(name)) not in taken:
            found.append(name)
            taken |= {place} - {None}
    return sorted(found, key=axes.index)


def _at_most(frame: pd.DataFrame, column: str, most: int) -> tuple[pd.DataFrame, str]:
    """Rows of so many values, spread evenly; and a sentence on the others."""
    ordered = frame[column].sort_values(kind="stable", na_position="first", key=by_size)
    values = list(dict.fromkeys(written(value) for value in ordered))
    if len(values) <= most:
        return frame, ""
    kept = [values[place * (len(values) - 1) // max(most - 1, 1)] for place in range(most)]
    remark = f"Shown are {column} = {', '.join(kept)} of {len(values)} values; the others are in summary.csv."
    return frame[frame[column].map(written).isin(kept)], remark


def figures_of(stored: Stored) -> list[Figure]:
    """One a metric that the summary has, and the frontier."""
    shown = [name for name in METRICS if name in stored.summary]
    made = [_over_axes(name) for name in shown]
    return [*made, FRONTIER] if set(GOALS_OF) <= set(shown) else made


def _over_axes(metric: str) -> Figure:
    return Figure(
        name=f"swept_{metric}",
        title=axis_label(metric).capitalize() if axis_label(metric)[1:2].islower() else axis_label(metric),
        claim=METRICS[metric],
        paper="",
        draw=partial(_draw, metric),
        height_in=partial(_height_in, metric),
        every_block_size=True,
        remark=partial(_remark, metric),
    )


def _chosen(stored: Stored, metric: str) -> tuple[pd.DataFrame, Choice, tuple[str, ...]]:
    layout = layout_of(stored)
    given = layout.choice
    choice = Choice(given.var_x, metric, given.curve_by, given.row_by, given.col_by)
    return layout.rows, choice.on(layout.rows), layout.left_out


def _draw(metric: str, stored: Stored, canvas: Canvas) -> pd.DataFrame:
    rows, choice, _ = _chosen(stored, metric)
    if metric == "num_preemptions" and not rows[metric].any():
        raise NothingToDrawError("no request was preempted in any cell")
    return draw_facets(rows, choice, canvas)


def _height_in(metric: str, stored: Stored) -> float:
    try:
        rows, choice, _ = _chosen(stored, metric)
    except NothingToDrawError:
        return PANEL_IN
    num_rows, num_columns = grid_of(rows, choice)
    lines = legend_lines(rows, choice.curve_by, [metric], PAGE_IN)
    return (2.4 if num_rows == num_columns == 1 else PANEL_IN * num_rows + 0.4) + 0.15 * lines + 0.4


def _remark(metric: str, stored: Stored) -> str:
    rows, _, left_out = _chosen(stored, metric)
    said = [without_value(rows, metric), HOLLOW if has_marks(rows, [metric]) else ""]
    return " ".join([*_repeats(stored), *left_out, *(f"{one.capitalize()}." for one in said if one)])


def _repeats(stored: Stored) -> list[str]:
    """What the bands are, where there are any."""
    return [f"Bands and bars are the {INTERVAL}."] if has_repeats(stored) else []


def has_repeats(stored: Stored) -> bool:
    """Whether any configuration ran more than once."""
    frame = stored.summary
    keys = configuration_of(frame, stored.axes)
    return bool(len(frame)) and bool((frame.groupby(keys, dropna=False).size() > 1).any())


def _draw_frontier(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    frame = stored.summary
    if frame.empty:
        raise NothingToDrawError("no cell of this sweep finished")
    axes = configuration_of(frame, stored.axes)
    curve = [name for name in axes if is_allocator(name)]
    return draw_pareto(frame, axes, goals_of(GOALS, frame), curve, canvas)


FRONTIER = Figure(
    name="swept_frontier",
    title="Throughput against speed of each answer",
    claim="Each point is one configuration. Filled ones are on the frontier: no other is at least as good in both and "
    "better in one.",
    paper="",
    draw=_draw_frontier,
    height_in=lambda stored: 3.2,
    every_block_size=True,
    remark=lambda stored: f"{CROSSED.capitalize()}." if has_marks(stored.summary, GOALS_OF) else "",
)
