"""Claim: memory that is not wasted carries more load before latency runs away: the paper's Fig 12.

Left: mean normalized latency over the request rate, as in the paper, with the threshold and where each curve passes it.
Right: output tokens a second over the same rates, which stop growing where latency starts to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from experiments.figures.repeats import need, over_seeds
from experiments.style import in_order, look_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LATENCY: Final = "mean_normalized_latency_s"
THROUGHPUT: Final = "output_tok_per_s"
TOP_S: Final = 1.0
"""The paper's axes end here."""


def rate_curves(
    frame: pd.DataFrame, axes: Sequence[Axes], threshold_s: float, sustained: Mapping[str, float]
) -> pd.DataFrame:
    """Two panels over `rate_per_s`, a curve an allocator, means and sd over seeds; `sustained`: the rate at which a
    curve passes the threshold, of those that do. Returns what is plotted."""
    need(frame, ["allocator", "rate_per_s", LATENCY, THROUGHPUT])
    table = over_seeds(frame, ["allocator", "rate_per_s"], [LATENCY, THROUGHPUT]).sort_values("rate_per_s")
    for allocator in in_order(table["allocator"].astype(str)):
        rows = table[table["allocator"] == allocator]
        for ax, value in zip(axes, (LATENCY, THROUGHPUT), strict=True):
            _line(ax, rows, value, allocator)
        if allocator in sustained:
            _mark(axes[0], sustained[allocator], threshold_s, allocator)
    axes[0].axhline(threshold_s, color="#595959", linewidth=0.8, linestyle=(0, (2, 2)))
    axes[0].set_ylim(0, TOP_S)
    axes[0].set_ylabel("normalized latency (s/token, simulated)")
    axes[1].set_ylim(bottom=0)
    axes[1].set_ylabel("output tokens per second (simulated)")
    for ax in axes:
        ax.set_xlim(left=0)
        ax.set_xlabel("requests per second")
    return table.reset_index(drop=True)


def _line(ax: Axes, rows: pd.DataFrame, value: str, allocator: str) -> None:
    look = look_of(allocator)
    drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 3.5, "linewidth": 1.2}
    ax.errorbar(rows["rate_per_s"], rows[value], yerr=rows[f"{value}_sd"], capsize=1.5, label=allocator, **drawn)


def _mark(ax: Axes, rate_per_s: float, threshold_s: float, allocator: str) -> None:
    """The sustained rate, as a number beside a ring on the threshold."""
    ax.plot([rate_per_s], [threshold_s], "o", color="white", markeredgecolor=look_of(allocator).colour, markersize=5)
    ax.annotate(
        f"{rate_per_s:.3g}",
        (rate_per_s, threshold_s),
        (-4, 4),
        textcoords="offset points",
        ha="right",
        fontsize=6.5,
        color="#303030",
    )
