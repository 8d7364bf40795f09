"""Claim: reserved memory grows steeply with the batch and ends it early; paged memory grows as the tokens do: Fig 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.figures.repeats import need
from experiments.style import in_order, look_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def growth_with_batch(frame: pd.DataFrame, axes: Sequence[Axes], memory_gb: float, weights_gb: float) -> pd.DataFrame:
    """Two panels over running requests: memory in GB, with what the weights take and what there is, and tokens a
    second. Returns what is plotted."""
    need(frame, ["allocator", "mean_batch_size", "memory_gb", "output_tok_per_s"])
    table = frame.sort_values("mean_batch_size", kind="stable")
    for allocator in in_order(table["allocator"].astype(str)):
        rows, look = table[table["allocator"] == allocator], look_of(allocator)
        drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4}
        for ax, value in zip(axes, ("memory_gb", "output_tok_per_s"), strict=True):
            ax.plot(rows["mean_batch_size"], rows[value], label=allocator, **drawn)
    for height, text in ((memory_gb, "pool full"), (weights_gb, "parameters")):
        axes[0].axhline(height, color="#595959", linewidth=0.8, linestyle=(0, (2, 2)))
        axes[0].annotate(text, (1, height), (-2, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
                         ha="right", fontsize=6.5)  # fmt: skip
    axes[0].set_ylim(20, 42)
    axes[0].set_title("parameters and held KV memory")
    axes[0].set_ylabel("GB")
    axes[1].set_ylim(bottom=0)
    axes[1].set_title("throughput, simulated")
    axes[1].set_ylabel("output tokens/s")
    for ax in axes:
        ax.set_xlim(left=0)
        ax.set_xlabel("running requests")
    return table.reset_index(drop=True)
