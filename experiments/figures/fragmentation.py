"""Claim: only where adjacency matters is free memory cut up; a paged pool's index is 0 by construction.

External-fragmentation index 1 - largest free extent / total free over simulated time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from experiments.figures.panels import legend_of
from experiments.figures.repeats import need
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.figures.states import coarser
from experiments.style import in_order, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

INDEX = "external_fragmentation_index"
MAX_COLUMNS = 60


def index_over_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """The index over longer intervals, from the sums it is made of: means of a ratio would be wrong."""
    need(timeline, ["time_s", "duration_s", INDEX, "kv_external_frac", "kv_free_frac"])
    free = timeline["kv_external_frac"] + timeline["kv_free_frac"]
    largest = ((1 - timeline[INDEX]) * free).fillna(0.0)
    rows = coarser(timeline.assign(free=free, largest=largest), ["free", "largest"], MAX_COLUMNS)
    rows[INDEX] = 1 - rows["largest"] / rows["free"].where(rows["free"] > 0)
    return rows[["time_s", "duration_s", INDEX]]


def external_fragmentation(timeline_by_allocator: Mapping[str, pd.DataFrame], ax: Axes) -> pd.DataFrame:
    """One line an allocator, through the middles of the intervals; a gap where nothing was free."""
    parts = []
    for allocator in in_order(timeline_by_allocator):
        rows = index_over_time(timeline_by_allocator[allocator])
        look = look_of(allocator)
        drawn = {"color": look.colour, "linestyle": look.line, "linewidth": 1.2}
        ax.plot(rows["time_s"] + rows["duration_s"] / 2, rows[INDEX], label=allocator, **drawn)
        parts.append(rows.assign(allocator=allocator))
    ax.set_ylim(-0.01, 1)
    ax.set_xlim(0, max((float((rows["time_s"] + rows["duration_s"]).max()) for rows in parts), default=1.0))
    ax.set_ylabel("1 - largest free / all free")
    ax.set_xlabel("simulated time (s)")
    return pd.concat(parts, ignore_index=True)[["allocator", "time_s", "duration_s", INDEX]]


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    timelines = stored.one_each("timeline")
    if not timelines:
        raise NothingToDrawError("no cell of this result has a timeline.parquet")
    ax = canvas.subplots()
    plotted = external_fragmentation(timelines, ax)
    legend_of(canvas, ax)
    return plotted


FIGURE = Figure(
    name="external_fragmentation",
    title="How much of the free memory is out of reach of one allocation",
    claim="0 means that all free memory could serve one request; 0.6 means that the largest single piece is only 40 % "
    "of what is free. A paged allocator can combine any blocks, so it stays at 0.",
    paper="Not in the paper; its section 3.1 describes the effect.",
    draw=_draw,
    height_in=lambda stored: 2.6,
)
