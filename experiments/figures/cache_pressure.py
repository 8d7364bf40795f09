"""Prefix hits over the size of a cache, and what a watermark does: curves of numbers that no run's folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pandas as pd

from experiments.figures.repeats import need, over_seeds
from experiments.style import Look, log2_axis, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POLICY_LOOKS: Final = {
    "optimal": Look("#009E73", "", "-", "^"),
    "vllm": look_of("paged"),
    "lru": Look("#E69F00", "", (0, (4, 1.5)), "s"),
    "fifo": Look("#8C8C00", "", (0, (1, 1)), "v"),
}


def hits_by_size(frame: pd.DataFrame, ax: Axes, unbounded: float, names: dict[str, str]) -> pd.DataFrame:
    """A curve a policy of columns policy, num_blocks and hit_pct; a line at what a cache without a bound finds."""
    need(frame, ["policy", "num_blocks", "hit_pct"])
    for policy, look in POLICY_LOOKS.items():
        rows = frame[frame["policy"] == policy].sort_values("num_blocks")
        drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
        ax.plot(rows["num_blocks"], rows["hit_pct"], label=names[policy], **drawn)
    ax.axhline(unbounded, color="black", linewidth=0.8, linestyle=(0, (3, 2)))
    ax.annotate("no bound", (0, unbounded), (4, -9), ("axes fraction", "data"), "offset points")
    log2_axis(ax, frame["num_blocks"], "blocks of the cache")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("prompt tokens found (%)")
    return frame


def over_watermarks(frame: pd.DataFrame, axes: Sequence[Axes], values: dict[str, str]) -> pd.DataFrame:
    """A panel a column of `values` (its label), over the column watermark_pct; means and sd over seeds."""
    need(frame, ["watermark_pct", *values])
    table = over_seeds(frame, ["watermark_pct"], list(values)).sort_values("watermark_pct")
    look = look_of("paged")
    drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
    places = range(len(table))
    for ax, (name, label) in zip(axes, values.items(), strict=True):
        ax.errorbar(places, table[name], yerr=table[f"{name}_sd"], capsize=2, **drawn)
        ax.set_xticks(places, [f"{value:g}" for value in table["watermark_pct"]])
        ax.set_xlabel("watermark (% of the pool kept back)")
        ax.set_ylim(bottom=0)
        ax.set_ylabel(label)
    return table.reset_index(drop=True)
