"""Claim: the more lengths differ, the less of a contiguous pool holds tokens; a paged one does not care.

Live share over the coefficient of variation of lengths at equal means: section 4.1.2 of the chapter, which has no
figure of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pandas as pd

from experiments.figures.repeats import need, over_seeds
from experiments.style import in_order, look_of, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALUE: Final = "live_frac"


def live_over_spread(frame: pd.DataFrame, axes: Sequence[Axes], titles: dict[str, str]) -> pd.DataFrame:
    """A panel a load, a curve an allocator, means and sd over seeds. Columns load, allocator, cv, `live_frac`; `titles`
    has a title for each load, in order. Returns what is plotted."""
    need(frame, ["load", "allocator", "cv", VALUE])
    table = over_seeds(frame, ["load", "allocator", "cv"], [VALUE])
    spreads = sorted(table["cv"].unique())
    for ax, (load, title) in zip(axes, titles.items(), strict=True):
        rows = table[table["load"] == load]
        for allocator in in_order(rows["allocator"].astype(str)):
            _curve(ax, rows[rows["allocator"] == allocator].sort_values("cv"), allocator, spreads)
        ax.set_title(title)
        ax.set_xticks(range(len(spreads)), [f"{cv:g}" for cv in spreads])
        ax.set_xlabel("coefficient of variation of lengths")
        ax.set_ylim(0, 1.04)
        percent_axis(ax.yaxis, "slots with a token")
    return table.reset_index(drop=True)


def _curve(ax: Axes, rows: pd.DataFrame, allocator: str, spreads: list[float]) -> None:
    look = look_of(allocator)
    drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
    places = [spreads.index(cv) for cv in rows["cv"]]
    ax.errorbar(places, rows[VALUE], yerr=rows[f"{VALUE}_sd"], capsize=2, label=allocator, **drawn)
