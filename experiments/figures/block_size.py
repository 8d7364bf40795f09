"""Claim: small blocks waste least, and from a few dozen tokens a block on the rounding of the last block shows.

Waste and batched requests by block size, means and sd over seeds, after the paper's Fig. 18 (b), which has latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from experiments.figures.panels import legend_of
from experiments.figures.repeats import need, over_seeds, several_seeds
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.style import in_order, log2_axis, look_of, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

WASTE = "kv_waste_frac"
VALUES = (WASTE, "mean_batch_size")


def with_waste(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds `kv_waste_frac` = reserved + internal + external = 1 - live - free."""
    parts = ["kv_reserved_frac", "kv_internal_frac", "kv_external_frac"]
    need(frame, parts)
    return frame.assign(**{WASTE: frame[parts].sum(axis=1, min_count=len(parts))})


def by_block_size(frame: pd.DataFrame, axes: Sequence[Axes]) -> pd.DataFrame:
    """Two panels, waste and batched requests, on a base-2 axis; a line an allocator, error bars are sd over seeds."""
    need(frame, ["allocator", "block_size", "mean_batch_size"])
    table = over_seeds(with_waste(frame), ["allocator", "block_size"], VALUES)
    table = table.sort_values("block_size", kind="stable")
    for allocator in in_order(table["allocator"].astype(str)):
        rows = table[table["allocator"] == allocator]
        for ax, value in zip(axes, VALUES, strict=True):
            _line(ax, rows, value, allocator)
    for ax in axes:
        log2_axis(ax, table["block_size"], "block size (tokens)")
    axes[0].set_ylim(0, 1)
    percent_axis(axes[0].yaxis, "reserved + internal + external")
    axes[1].set_ylim(0, 1.05 * axes[1].get_ylim()[1])
    axes[1].set_ylabel("running requests")
    return table.reset_index(drop=True)


def _line(ax: Axes, rows: pd.DataFrame, value: str, allocator: str) -> None:
    look = look_of(allocator)
    spread = rows[f"{value}_sd"]
    drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4.5}
    ax.errorbar(rows["block_size"], rows[value], yerr=spread, capsize=2, label=allocator, **drawn)
    if len(rows) == 1:
        ax.axhline(float(rows[value].iloc[0]), color=look.colour, linewidth=0.7, linestyle=(0, (1, 3)))


def unequal_pools(frame: pd.DataFrame) -> str:
    """A sentence on the token slots of each block size, where whole blocks make them differ; empty otherwise."""
    if "capacity_tokens" not in frame or frame["capacity_tokens"].nunique() < 2:
        return ""
    parts = []
    for size, slots in frame.groupby("block_size")["capacity_tokens"]:
        low, high = int(slots.min()), int(slots.max())
        parts.append(f"{low:,} at {size}" if low == high else f"{low:,} to {high:,} at {size}")
    return f"The pools are not quite equal, because they consist of whole blocks: token slots {', '.join(parts)}."


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    if stored.summary.empty or stored.summary["block_size"].nunique() < 2:
        raise NothingToDrawError("this result has a single block size; run a sweep over block sizes to see its effect")
    axes = canvas.subplots(1, 2, sharex=True)
    plotted = by_block_size(stored.summary, list(axes))
    legend_of(canvas, axes[0])
    return plotted


FIGURE = Figure(
    name="by_block_size",
    title="What the size of a block changes",
    claim="A block is the unit in which memory is handed out. Left: the share of memory that is reserved, lost or "
    "unusable, lower is better. Right: requests that run at the same time, higher is better. Large blocks lose "
    "the empty end of every request's last block. A dotted line is an allocator that was run at one block size "
    "only.",
    paper="The paper's Fig. 18 (b), with memory in place of latency.",
    draw=_draw,
    height_in=lambda stored: 2.75 + (0.3 if stored.is_measured and len(stored.allocators) > 4 else 0.0),
    every_block_size=True,
    remark=lambda stored: " ".join(
        [
            *(["Error bars are the standard deviation over seeds."] if several_seeds(stored.summary) else []),
            *filter(None, [unequal_pools(stored.summary)]),
        ]
    ),
)
