"""Figures of kernel measurements, one a question: from the rows of `pagelab bench kernel` to the plotted numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from experiments.bench.rows import OURS, OURS_IN
from experiments.figures.panels import legend_of
from experiments.figures.spec import NothingToDrawError
from experiments.style import Look, log2_axis, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import SubFigure

US: Final = 1e6
LOOKS: Final = {
    OURS: look_of("paged"),
    "fa3": Look("#D55E00", "", "-", "s"),
    "fa3-contiguous": Look("#D55E00", "", (0, (4, 1.5)), "s"),
    "torch-cudnn": Look("#009E73", "", (0, (4, 1.5)), "^"),
    "torch-flash": Look("#CC79A7", "", (0, (4, 1.5)), "v"),
    "fa3-two-calls": Look("#8C8C00", "", "-", "D"),
    "pagelab-shared": Look("#000000", "", "-", "^"),
    "flashinfer": Look("#E69F00", "", "-", "D"),
    "vllm-triton": Look("#000000", "", "-", "X"),
    "pagelab-twin": Look("#56B4E9", "", (0, (4, 1.5)), "o"),
    "pagelab-twin-equal": Look("#56B4E9", "", (0, (1, 1)), "P"),
}
"""A peer's colour; dashes, and hollow marks beside a paged kernel of its own, where it reads contiguous memory."""
OVERHEADS: Final = {
    "pagelab-twin-equal": "over our twin without a table, equal bytes in flight",
    "pagelab-twin": "over our twin without a table, each at its best",
    "best": "over the fastest contiguous kernel of a library",
}


@dataclass(frozen=True, slots=True)
class KernelFigure:
    """One question."""

    name: str
    title: str
    claim: str
    draw: Callable[[pd.DataFrame, SubFigure], pd.DataFrame]
    height_in: float


def measured(frame: pd.DataFrame, case: str) -> pd.DataFrame:
    """Rows of a case that were measured right, swept ones apart; NothingToDrawError for none."""
    rows = frame[(frame["case"] == case) & (frame["status"] == "ok") & ~frame["swept"].astype(bool)]
    if rows.empty:
        raise NothingToDrawError(f"no measured rows of the case {case}: run --case {case}")
    return rows.assign(median_us=rows["median_s"] * US, p20_us=rows["p20_s"] * US, p80_us=rows["p80_s"] * US)


def _line(axes: Axes, peer: str, x: pd.Series[float], rows: pd.DataFrame) -> None:
    look = LOOKS.get(peer, look_of(peer))
    spread = [rows["median_us"] - rows["p20_us"], rows["p80_us"] - rows["median_us"]]
    drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markersize": 4}
    drawn |= {"zorder": 3 if peer == OURS else 2, "markerfacecolor": face(peer, look)}
    axes.errorbar(x, rows["median_us"], yerr=spread, capsize=2, label=peer, **drawn)


def face(peer: str, look: Look) -> str:
    """What fills a mark: white for the one of two kernels of a library that reads contiguous memory."""
    return "#FFFFFF" if peer.endswith("-contiguous") else look.colour


def plain_log(axis: Axis, set_scale: Callable[[str], None], *steps: float) -> None:
    """A logarithmic axis with numbers, not powers, on it: those steps of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(10, subs=steps, numticks=12))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def latency(heads: str) -> Callable[[pd.DataFrame, SubFigure], pd.DataFrame]:
    """Latency over context, a panel a batch, of one kind of heads."""

    def draw(frame: pd.DataFrame, canvas: SubFigure) -> pd.DataFrame:
        rows = measured(frame, "decode")
        rows = rows[rows["shape"].str.startswith(heads + " ")]
        if rows.empty:
            raise NothingToDrawError(f"no decodes of {heads} heads")
        batches = sorted(rows["batch"].unique())
        panels = canvas.subplots(1, len(batches), squeeze=False)[0]
        for axes, batch in zip(panels, batches, strict=True):
            panel = rows[rows["batch"] == batch].sort_values("context_tokens", kind="stable")
            for peer in panel["peer"].unique():
                one = panel[panel["peer"] == peer]
                _line(axes, peer, one["context_tokens"] / 1024, one)
            log2_axis(axes, panel["context_tokens"] / 1024, "context (1,024 tokens)")
            plain_log(axes.yaxis, axes.set_yscale, 1, 3)
            axes.set_title(f"batch {batch}")
        panels[0].set_ylabel("latency (µs)")
        legend_of(canvas, max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[1])))
        return rows[["shape", "batch", "context_tokens", "block_size", "peer", "median_s", "p20_s", "p80_s"]]

    return draw


def ratios(frame: pd.DataFrame, canvas: SubFigure) -> pd.DataFrame:
    """Time of each peer over ours, every shape a mark, a row a case."""
    others = frame["peer"] != frame["case"].map(OURS_IN).fillna(OURS)
    rows = frame[others & frame["time_over_ours"].notna() & ~frame["swept"].astype(bool)]
    if rows.empty:
        raise NothingToDrawError("no peer was measured beside ours")
    cases = list(dict.fromkeys(rows["case"]))
    peers = list(dict.fromkeys(rows["peer"]))
    axes = canvas.subplots()
    for place, peer in enumerate(peers):
        one, look = rows[rows["peer"] == peer], LOOKS.get(peer, look_of(peer))
        shift = 0.7 * ((place + 0.5) / len(peers) - 0.5)
        height = one["case"].map({case: -index for index, case in enumerate(cases)}) - shift
        drawn: dict[str, Any] = {
            "color": look.colour,
            "marker": look.marker,
            "markerfacecolor": face(peer, look),
            "linestyle": "none",
            "markersize": 3.5,
            "alpha": 0.75,
        }
        axes.plot(one["time_over_ours"], height, label=peer, **drawn)
    axes.axvline(1, color="#808080", linewidth=0.9)
    plain_log(axes.xaxis, axes.set_xscale, 1, 1.25, 1.5, 2, 3, 5, 8, 9)
    axes.set_yticks([-index for index in range(len(cases))], cases)
    axes.set_xlabel("time of the peer / time of pagelab (right of 1: pagelab is faster)")
    legend_of(canvas, axes)
    return rows[["case", "shape", "block_size", "layout", "table", "peer", "time_over_ours"]]


def block_sizes(frame: pd.DataFrame, canvas: SubFigure) -> pd.DataFrame:
    """Latency by block size, a panel a shape."""
    rows = measured(frame, "block-size")
    rows = rows[~rows["contiguous"].astype(bool)]
    shapes = list(dict.fromkeys(rows["shape"]))
    panels = canvas.subplots(1, len(shapes), squeeze=False)[0]
    for axes, shape in zip(panels, shapes, strict=True):
        panel = rows[rows["shape"] == shape].sort_values("block_size", kind="stable")
        for peer in panel["peer"].unique():
            one = panel[panel["peer"] == peer]
            _line(axes, peer, one["block_size"], one)
        log2_axis(axes, panel["block_size"], "block size (tokens)")
        axes.set_ylim(0, 1.12 * panel["p80_us"].max())
        axes.set_title(shape)
    panels[0].set_ylabel("latency (µs)")
    legend_of(canvas, max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[1])))
    return rows[["shape", "block_size", "peer", "median_s", "p20_s", "p80_s"]]


def overhead(frame: pd.DataFrame, canvas: SubFigure) -> pd.DataFrame:
    """Paged over contiguous, every decode shape, by bytes of K and V."""
    rows = frame[
        frame["case"].isin(["twin", "fig18a"]) & (frame["kernel"] == "decode") & frame["time_over_ours"].notna()
    ]
    rows = rows[rows["contiguous"].astype(bool) & ~rows["swept"].astype(bool)]
    if rows.empty:
        raise NothingToDrawError("no contiguous kernel was measured: run --case twin")
    ours = rows["peer"].str.startswith(OURS)
    best = (
        rows[~ours].sort_values("time_over_ours").groupby(["case", "shape", "block_size"]).head(1).assign(peer="best")
    )
    table = pd.concat([rows[ours], best], ignore_index=True)
    table = table.assign(paged_over_contiguous=1 / table["time_over_ours"]).sort_values("moved_bytes", kind="stable")
    axes = canvas.subplots()
    for peer, words in OVERHEADS.items():
        one, look = table[table["peer"] == peer], LOOKS.get(peer, LOOKS["torch-cudnn"])
        drawn: dict[str, Any] = {
            "color": look.colour,
            "marker": look.marker,
            "linestyle": "none",
            "markersize": 4.5,
            "alpha": 0.8,
        }
        if len(one):
            axes.plot(one["moved_bytes"] / 1e6, one["paged_over_contiguous"], label=words, **drawn)
    axes.axhline(1, color="#808080", linewidth=0.9)
    axes.axhspan(1.20, 1.26, color="#F0E442", alpha=0.4, label="the paper: 20 to 26 %")
    plain_log(axes.xaxis, axes.set_xscale, 1, 3)
    axes.set(xlabel="K and V of the batch (MB)", ylabel="time, paged / contiguous")
    legend_of(canvas, axes)
    return table[["case", "shape", "block_size", "moved_bytes", "peer", "paged_over_contiguous"]]


KERNEL_FIGURES: Final = (
    KernelFigure(
        "kernel_latency_gqa",
        "Paged decode, grouped-query heads",
        "How long one layer's attention takes for a token of every sequence. Lower is better; dashes read contiguous "
        "memory without a block table.",
        latency("gqa"),
        2.6,
    ),
    KernelFigure(
        "kernel_latency_mha",
        "Paged decode, as many KV heads as query heads",
        "The same with five times the K and V a token.",
        latency("mha"),
        2.6,
    ),
    KernelFigure(
        "kernel_ratio",
        "Every peer beside pagelab's kernel",
        "A mark is a shape. Right of the line pagelab's kernel is faster.",
        ratios,
        3.6,
    ),
    KernelFigure(
        "kernel_block_size",
        "What the block size costs a kernel",
        "Small blocks mean more entries of the table for the same tokens. A flat line: any size will do.",
        block_sizes,
        2.5,
    ),
    KernelFigure(
        "kernel_overhead",
        "What looking blocks up costs",
        "Time of the paged kernel over contiguous ones on the same bytes. The paper's was 20 to 26 % slower than "
        "FasterTransformer's (Fig 18a, A100).",
        overhead,
        3.0,
    ),
)
