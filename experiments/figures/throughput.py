"""Claim: what paging saves in memory it gives back as tokens per second, measured on the real engine.

Output tokens per second in the window, by allocator and attention kernel, and by block size where several were run. An
allocator whose attention reads without a block table is shown beside itself with the paged kernel: the difference
between the two is what the table costs, and no part of what the memory policy costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from experiments.figures.panels import legend_of
from experiments.figures.repeats import need, over_seeds, several_seeds
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.style import in_order, log2_axis, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

VALUE: Final = "output_tok_per_s"
AXIS: Final = "output tokens per second"


def measured_throughput(frame: pd.DataFrame, ax: Axes) -> pd.DataFrame:
    """A bar a series at one block size, its sd over seeds, the value at its end."""
    need(frame, ["allocator", VALUE])
    table = over_seeds(frame, ["allocator"], [VALUE]).set_index("allocator")
    table = table.loc[in_order(table.index)]
    for place, (series, value) in enumerate(table[VALUE].items()):
        look = look_of(str(series))
        ax.barh(place, value, 0.62, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
        ax.annotate(
            f"{value:,.0f}", (1, place), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center",
        )  # fmt: skip
    places = np.arange(len(table))
    ax.errorbar(table[VALUE], places, xerr=table[f"{VALUE}_sd"], fmt="none", ecolor="black", capsize=2.5)
    ax.set_yticks(places, list(table.index))
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(AXIS)
    return table.reset_index()


def throughput_by_block_size(frame: pd.DataFrame, ax: Axes) -> pd.DataFrame:
    """A line a series over block sizes; error bars are sd over seeds."""
    need(frame, ["allocator", "block_size", VALUE])
    table = over_seeds(frame, ["allocator", "block_size"], [VALUE]).sort_values("block_size", kind="stable")
    for series in in_order(table["allocator"].astype(str)):
        rows, look = table[table["allocator"] == series], look_of(series)
        drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
        ax.errorbar(rows["block_size"], rows[VALUE], yerr=rows[f"{VALUE}_sd"], capsize=2, label=series, **drawn)
    log2_axis(ax, table["block_size"], "block size (tokens)")
    ax.set_ylim(0, 1.08 * table[VALUE].max())
    ax.set_ylabel(AXIS)
    return table.reset_index(drop=True)


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    if stored.base.empty:
        raise NothingToDrawError("no cell of this result has finished")
    if stored.summary["block_size"].nunique() < 2:
        return measured_throughput(stored.base, canvas.subplots())
    above, below = canvas.subfigures(2, 1, height_ratios=[_bars_in(stored), 2.5])  # type: ignore[misc]
    measured_throughput(stored.base, above.subplots())
    ax = below.subplots()
    plotted = throughput_by_block_size(stored.summary, ax)
    legend_of(below, ax)
    return plotted


def _bars_in(stored: Stored) -> float:
    return 1.0 + 0.3 * max(1, len(stored.allocators))


def _height_in(stored: Stored) -> float:
    return _bars_in(stored) + (2.5 if stored.summary["block_size"].nunique() > 1 else 0.0)


FIGURE: Final = Figure(
    name="measured_throughput",
    title="Tokens per second on the device",
    claim="The longer the bar, the more tokens the engine produced per second with that allocator, in the same memory "
    "and for the same requests. An allocator that appears twice ran once with the paged attention kernel and once with "
    "one that reads without a block table: only the difference between these two is the price of the table.",
    paper="The paper's Fig. 12 has latency over request rates; this is throughput at one rate.",
    draw=_draw,
    height_in=_height_in,
    every_block_size=True,
    remark=lambda stored: "Black lines are the standard deviation over seeds." if several_seeds(stored.base) else "",
)
