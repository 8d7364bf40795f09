"""Claim: memory that is not wasted holds more requests, so paging runs more of them at the same time.

Mean number of running requests: the paper's Fig. 13. Bars are means over time; the diamonds are means over iterations,
which is what the paper's artifact plots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.figures.repeats import need, over_seeds, several_seeds
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.style import in_order, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

VALUES = ("mean_batch_size", "iter_mean_batch_size")


def batched_requests(frame: pd.DataFrame, ax: Axes) -> pd.DataFrame:
    """One bar an allocator, its sd over seeds, and its mean over iterations as a diamond."""
    need(frame, ["allocator", "mean_batch_size"])
    table = over_seeds(frame, ["allocator"], VALUES).set_index("allocator")
    table = table.loc[in_order(table.index)]
    for place, (allocator, row) in enumerate(table.iterrows()):
        look = look_of(str(allocator))
        ax.barh(
            place, row["mean_batch_size"], 0.62, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0
        )
    places = np.arange(len(table))
    spread = table["mean_batch_size_sd"]
    ax.errorbar(table["mean_batch_size"], places, xerr=spread, fmt="none", ecolor="black", capsize=2.5)
    if "iter_mean_batch_size" in table:
        ax.plot(table["iter_mean_batch_size"], places, "D", color="white", markeredgecolor="black", markersize=4)
    _values_beside(ax, places, table["mean_batch_size"].to_numpy())
    ax.set_yticks(places, list(table.index))
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.grid(axis="y", visible=False)
    both = "iter_mean_batch_size" in table
    ax.set_xlabel("running requests" + (" (bar: mean over time; diamond: over iterations)" if both else ""))
    return table.reset_index()


def _values_beside(ax: Axes, places: np.ndarray, values: np.ndarray) -> None:
    for place, value in zip(places, values, strict=True):
        text = "–" if np.isnan(value) else f"{value:.1f}"
        ax.annotate(
            text, (1, place), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center"
        )


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    if stored.base.empty:
        raise NothingToDrawError("no cell of this result has finished")
    return batched_requests(stored.base, canvas.subplots())


FIGURE = Figure(
    name="batched_requests",
    title="Requests that run at the same time",
    claim="The longer the bar, the more requests share each step of the model, so the more work one pass over its "
    "weights does. Bars are means over time, diamonds means over iterations (the paper's way).",
    paper="The paper's Fig. 13.",
    draw=_draw,
    remark=lambda stored: "Black lines are the standard deviation over seeds." if several_seeds(stored.base) else "",
    height_in=lambda stored: 1.15 + 0.3 * max(1, len(stored.allocators)),
)
