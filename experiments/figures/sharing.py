"""Claim: what sequences share need not be stored twice, and what was computed need not be computed again.

Figures of samples, beams, shared prefixes and swaps: latency over request rate in several panels, memory saved beside
the paper's, and times by block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from experiments.figures.repeats import need
from experiments.style import in_order, log2_axis, look_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LATENCY: Final = "mean_normalized_latency_s"
GREY: Final = "#595959"
WAYS: Final = {"recompute": ("#4477AA", "o", "-"), "swap": ("#CC6677", "s", "-"), "out": ("#DDAA33", "v", "--")}
"""Colour, marker and line of each way of taking memory back."""


def latency_panels(frame: pd.DataFrame, axes: Sequence[Axes], threshold_s: float) -> pd.DataFrame:
    """One panel a value of `panel`: latency over the rate on a logarithmic axis, a curve an allocator. Returns what is
    plotted."""
    need(frame, ["panel", "allocator", "rate_per_s", LATENCY])
    table = frame[["panel", "allocator", "rate_per_s", LATENCY]].sort_values("rate_per_s", kind="stable")
    for ax, panel in zip(axes, dict.fromkeys(frame["panel"]), strict=True):
        ax.axhline(threshold_s, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        shown = table[table["panel"] == panel]
        for allocator in in_order(shown["allocator"].astype(str)):
            rows, look = shown[shown["allocator"] == allocator], look_of(allocator)
            drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 3}
            ax.plot(rows["rate_per_s"], rows[LATENCY], label=allocator, linewidth=1.1, **drawn)
        _latency_axis(ax)
        ax.set_title(panel)
        ax.set_xlabel("requests per second")
    return table.reset_index(drop=True)


def _latency_axis(ax: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ax.set_yscale("log")
    ax.set_ylim(0.02, 2.0)
    ax.set_xlim(left=0)
    ax.yaxis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def saved(frame: pd.DataFrame, axes: Sequence[Axes]) -> pd.DataFrame:
    """One panel a value of `panel`: bars of `ours` beside the paper's by `label`, with the number above. Returns what
    is plotted."""
    need(frame, ["panel", "label", "ours", "paper"])
    for ax, panel in zip(axes, dict.fromkeys(frame["panel"]), strict=True):
        rows = frame[frame["panel"] == panel]
        places = range(len(rows))
        series = (("here", "ours", "#4477AA", -0.2), ("the paper's", "paper", "#BBBBBB", 0.2))
        for name, column, colour, shift in series:
            bars = ax.bar([p + shift for p in places], rows[column], 0.38, label=name, color=colour)
            ax.bar_label(bars, [f"{value:.1f}" for value in rows[column]], fontsize=6.5, padding=1)
        ax.set_xticks(list(places), list(rows["label"]))
        ax.set_ylim(0, 1.15 * max(rows["ours"].max(), rows["paper"].max()))
        ax.set_title(panel)
        ax.set_ylabel("memory saved (%)")
    return frame.reset_index(drop=True)


def by_way(frame: pd.DataFrame, ax: Axes, column: str, label: str) -> pd.DataFrame:
    """`column` over block size, a line a `way`, as it is drawn in `WAYS`. Returns what is plotted."""
    need(frame, ["way", "name", "block_size", column])
    table = frame.sort_values("block_size", kind="stable")
    for way, name in dict(zip(table["way"], table["name"], strict=True)).items():
        rows, (colour, marker, line) = table[table["way"] == way], WAYS[way]
        ax.plot(rows["block_size"], rows[column], color=colour, marker=marker, linestyle=line, markersize=4, label=name)
    log2_axis(ax, table["block_size"], "block size (tokens)")
    ax.set_ylim(0, 1.08 * float(table[column].max()))
    ax.set_ylabel(label)
    return table[["way", "name", "block_size", column]].reset_index(drop=True)
