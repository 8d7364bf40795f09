"""Claim: memory that is not wasted carries more load before latency runs away: the paper's Fig 12.

Left: mean normalized latency over the request rate with the threshold, on a logarithmic axis, on which the
interpolation between two rates is the line that is drawn. Right: output tokens a second over the same rates, which stop
growing where latency starts to.
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
BOUNDS_S: Final = (0.02, 2.0)
"""The paper's axes are linear and end at 1."""


def rate_curves(
    frame: pd.DataFrame, axes: Sequence[Axes], threshold_s: float, sustained: Mapping[str, float]
) -> pd.DataFrame:
    """Two panels over `rate_per_s`, a curve an allocator, means and sd over seeds; `sustained`: the rate at which a
    curve passes the threshold, of those that do, ringed and in the legend. Returns what is plotted."""
    need(frame, ["allocator", "rate_per_s", LATENCY, THROUGHPUT])
    table = over_seeds(frame, ["allocator", "rate_per_s"], [LATENCY, THROUGHPUT]).sort_values("rate_per_s")
    axes[0].axhline(threshold_s, color="#595959", linewidth=0.8, linestyle=(0, (2, 2)))
    for allocator in in_order(table["allocator"].astype(str)):
        rows, rate = table[table["allocator"] == allocator], sustained.get(allocator)
        label = allocator if rate is None else f"{allocator}: {rate:.3g} req/s"
        for ax, value in zip(axes, (LATENCY, THROUGHPUT), strict=True):
            _line(ax, rows, value, allocator, label)
        if rate is not None:
            colour = look_of(allocator).colour
            axes[0].plot([rate], [threshold_s], "o", color="white", markeredgecolor=colour, markersize=6, zorder=5)
    _scale(axes[0], axes[1])
    return table.reset_index(drop=True)


def _line(ax: Axes, rows: pd.DataFrame, value: str, allocator: str, label: str) -> None:
    look = look_of(allocator)
    drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 3.5, "linewidth": 1.2}
    ax.errorbar(rows["rate_per_s"], rows[value], yerr=rows[f"{value}_sd"], capsize=1.5, label=label, **drawn)


def _scale(latency: Axes, throughput: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    latency.set_yscale("log")
    latency.set_ylim(*BOUNDS_S)
    latency.yaxis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]))
    latency.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    latency.yaxis.set_minor_formatter(NullFormatter())
    latency.set_title("normalized latency, simulated")
    latency.set_ylabel("s/token")
    throughput.set_ylim(0, 1.06 * throughput.get_ylim()[1])
    throughput.set_title("throughput, simulated")
    throughput.set_ylabel("output tokens/s")
    for ax in (latency, throughput):
        ax.set_xlim(left=0)
        ax.set_xlabel("requests per second")
