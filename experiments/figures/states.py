"""Claim: a contiguous allocator keeps most of its memory empty all the time, not only at peaks; paging does not.

Stacked states of all token slots over simulated time, one panel an allocator; the time-resolved form of the paper's
Fig. 2. Columns are means over equal intervals, joined exactly from the stored bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.figures.panels import one_panel_each, panel_height, shared_legend
from experiments.figures.repeats import need
from experiments.figures.spec import Figure
from experiments.style import STRICT_STATES, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

MAX_COLUMNS = 180
FRACTIONS = [f"kv_{state.key}_frac" for state in STRICT_STATES]


def coarser(timeline: pd.DataFrame, columns: list[str], most: int = MAX_COLUMNS) -> pd.DataFrame:
    """Neighbouring bins joined until at most `most` are left: durations add up, means are weighted by them.

    The stored grid ends with an open bin, for whatever lasts far beyond the arrivals; if it is long, it is left out."""
    if len(timeline) > 2 and timeline["duration_s"].iloc[-1] > 1.5 * timeline["duration_s"].median():
        timeline = timeline.iloc[:-1]
    group = np.arange(len(timeline)) // max(1, -(-len(timeline) // most))
    weight = timeline["duration_s"]
    sums = timeline[columns].mul(weight, axis=0).groupby(group).sum()
    duration = weight.groupby(group).sum()
    joined = sums.div(duration, axis=0)
    joined.insert(0, "duration_s", duration)
    joined.insert(0, "time_s", timeline["time_s"].groupby(group).first())
    return joined


def slot_states(timeline: pd.DataFrame, ax: Axes, *, window_s: tuple[float, float] | None = None) -> pd.DataFrame:
    """Stacked areas, from the live slots at the bottom to the free ones at the top; sums to the capacity."""
    need(timeline, ["time_s", "duration_s", *FRACTIONS])
    rows = coarser(timeline, FRACTIONS)
    times = np.append(rows["time_s"], rows["time_s"].iloc[-1] + rows["duration_s"].iloc[-1])
    below = np.zeros(len(times))
    for state, name in zip(STRICT_STATES, FRACTIONS, strict=True):
        above = below + np.append(rows[name], rows[name].iloc[-1])
        ax.fill_between(
            times,
            below,
            above,
            step="post",
            facecolor=state.colour,
            edgecolor="#707070",
            hatch=state.hatch,
            linewidth=0,
        )
        below = above
    ax.set_xlim(times[0], times[-1])
    ax.set_ylim(0, 1)
    ax.grid(visible=False)
    percent_axis(ax.yaxis, "share of all slots")
    ax.set_xlabel("simulated time (s)")
    if window_s is not None:
        _mark_window(ax, window_s)
    return rows


def _mark_window(ax: Axes, window_s: tuple[float, float]) -> None:
    low, high = ax.get_xlim()
    for bound in window_s:
        if low < bound < high:
            ax.axvline(bound, color="black", linewidth=0.8, linestyle=(0, (3, 2)))


def state_handles() -> list[object]:
    """Legend entries in the order in which the states are stacked."""
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=state.colour, edgecolor="#707070", hatch=state.hatch, linewidth=0.5, label=state.label)
        for state in STRICT_STATES
    ]


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    window = stored.window_s()
    plotted = one_panel_each(
        stored.one_each("timeline"),
        canvas,
        lambda _, table, ax: slot_states(table, ax, window_s=window),
        missing="no cell of this result has a timeline.parquet",
    )
    shared_legend(canvas, state_handles(), 3)
    return plotted


FIGURE = Figure(
    name="slot_states",
    title="What every slot of memory is doing, over time",
    claim="Each panel is the whole KV memory of one allocator; the green area is memory that really holds tokens. "
    "Everything between green and white is memory that somebody has but does not use, or that is free in a form "
    "nobody can use. The more green, the better. Dashed lines bound the interval that the averages are taken "
    "over; a long drain after the last arrival is left out.",
    paper="The paper's Fig. 2, resolved in time.",
    draw=_draw,
    height_in=panel_height,
)
