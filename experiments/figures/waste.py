"""Claim: reserving memory by the longest possible output leaves a fifth to two fifths of it for tokens; paging 96 %.

The paper's Fig. 2, twice: in the strict accounting, which says for each empty slot why it is empty, and in the paper's
own, whose last part also holds buddy round-up and plain free memory. The paper's is a mean over iterations, as in its
artifact; the strict one is a mean over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from experiments.figures.repeats import need, over_seeds
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.style import PAPER_STATES, STRICT_STATES, State, in_order, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

Accounting = Literal["strict", "paper"]
PARTS: dict[Accounting, tuple[str, tuple[State, ...]]] = {
    "strict": ("kv_", STRICT_STATES),
    "paper": ("iter_paper_", PAPER_STATES),
}


def waste_breakdown(frame: pd.DataFrame, ax: Axes, *, accounting: Accounting = "strict") -> pd.DataFrame:
    """One stacked bar an allocator: mean shares over seeds, the sd of the first part (tokens) as an error bar."""
    prefix, states = PARTS[accounting]
    columns = [f"{prefix}{state.key}_frac" for state in states]
    need(frame, ["allocator", *columns])
    table = over_seeds(frame, ["allocator"], columns).set_index("allocator")
    table = table.loc[in_order(table.index)]
    places = np.arange(len(table))
    left = np.zeros(len(table))
    for state, name in zip(states, columns, strict=True):
        width = table[name].fillna(0.0).to_numpy()
        ax.barh(places, width, 0.62, left, label=state.label, color=state.colour, hatch=state.hatch, **EDGE)
        left += width
    first = table[columns[0]].to_numpy()
    ax.errorbar(first, places, xerr=table[f"{columns[0]}_sd"], fmt="none", **ERROR)
    _tokens_beside(ax, places, first)
    ax.set_yticks(places, list(table.index))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlim(0, 1)
    percent_axis(ax.xaxis, "share of all slots")
    return table.reset_index()


EDGE: dict[str, Any] = {"edgecolor": "#707070", "linewidth": 0.5}
ERROR: dict[str, Any] = {"ecolor": "black", "elinewidth": 0.8, "capsize": 2, "capthick": 0.8}


def _tokens_beside(ax: Axes, places: Sequence[int] | np.ndarray, values: np.ndarray) -> None:
    """The share of live tokens in figures, right of the bars, where nothing is drawn."""
    for place, value in zip(places, values, strict=True):
        text = "–" if np.isnan(value) else f"{value:.1%}"
        ax.annotate(
            text, (1, place), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center"
        )
    ax.annotate("tokens", (1, 1), (4, 2), xycoords="axes fraction", textcoords="offset points", va="bottom", fontsize=7)


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    if stored.base.empty:
        raise NothingToDrawError("no cell of this result has finished")
    return both_accountings(stored.base, canvas)


def both_accountings(frame: pd.DataFrame, canvas: Canvas) -> pd.DataFrame:
    """The strict one and the paper's, side by side under one legend."""
    axes = canvas.subplots(1, 2, sharey=True)
    strict = waste_breakdown(frame, axes[0])
    paper = waste_breakdown(frame, axes[1], accounting="paper")
    axes[0].set_title("strict accounting")
    axes[1].set_title("the paper's accounting")
    axes[0].set_ylim(len(strict) - 0.5, -0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    others, other_labels = axes[1].get_legend_handles_labels()
    canvas.legend([*handles, others[-1]], [*labels, other_labels[-1]], loc="outside lower center", ncols=3)
    return strict.merge(paper.drop(columns="num_runs"), on="allocator")


FIGURE = Figure(
    name="waste_breakdown",
    title="Where the memory goes",
    claim="Each bar is all of the KV memory, averaged; green is the part that holds tokens, and its share is written at"
    " the right. Left, every empty slot has its reason; right, the same runs counted as in the paper, to compare "
    "with its Fig. 2. The paper draws buddy round-up inside “external & others”; the strict accounting counts it "
    "as internal.",
    paper="The paper's Fig. 2.",
    draw=_draw,
    height_in=lambda stored: 1.75 + 0.3 * max(1, len(stored.allocators)),
)
