"""How every figure looks: one fixed colour-blind-safe colour (Okabe-Ito) per allocator, another set for slot states.

The two sets share no colour, so a blue bar is always `paged` and a green area is always live tokens. Hatches and line
styles repeat the distinction for grey print.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.series import TWIN, allocator_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE_IN, PLOT_IN, COLUMN_IN = 6.9, 4.6, 3.33
"""Widths of the page, of a single plot to look at, and of a paper's column."""
DPI = 150


class Look(NamedTuple):
    """How one series is drawn."""

    colour: str
    hatch: str
    line: Any
    marker: str


ALLOCATOR_LOOKS: dict[str, Look] = {
    "fastertransformer": Look("#000000", "xx", (0, (3, 1, 1, 1, 1, 1)), "^"),
    "orca-max": Look("#D55E00", "//", (0, (1, 1)), "v"),
    "orca-pow2": Look("#E69F00", "\\\\", (0, (4, 1.5)), "s"),
    "orca-oracle": Look("#CC79A7", "..", (0, (6, 1.5, 1, 1.5)), "D"),
    "paged": Look("#0072B2", "", "-", "o"),
    "virtual": Look("#009E9E", "--", (0, (8, 1.5)), "P"),  # none of Okabe and Ito: slot states have the others
}
OTHER_COLOURS = ("#000000", "#56B4E9", "#009E73", "#8C8C00")
OTHER_HATCHES = ("xx", "--", "++", "oo", "||")
OTHER_LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
OTHER_MARKERS = ("^", "P", "X", "<", ">")


class State(NamedTuple):
    """A kind of slot: the suffix of its columns, what a reader calls it, how it is filled."""

    key: str
    label: str
    colour: str
    hatch: str = ""


STRICT_STATES = (
    State("live", "live: holds a token", "#009E73"),
    State("reserved", "reserved: will be filled later", "#56B4E9", "//"),
    State("internal_reserve", "internal: reserved, never filled", "#F0E442"),
    State("internal_roundup", "internal: lost to rounding up", "#FBF6B8", "xx"),
    State("external_hole", "external: free, but in too small holes", "#3D3D3D"),
    State("external_short", "external: free, but too little", "#9A9A9A", ".."),
    State("free", "free: not refused for memory", "#FFFFFF"),
)
PAPER_STATES = (
    State("token", "live: token states", "#009E73"),
    State("reserved", "reserved: reservation", "#56B4E9", "//"),
    State("internal", "internal fragmentation", "#F0E442"),
    State("external", "external & others (paper only)", "#6B6B6B", "--"),
)


def look_of(allocator: str) -> Look:
    """The fixed look of an allocator; one that is not listed gets a look that depends on its name alone. The same with
    the contiguous kernel: lighter, in another hatch."""
    if allocator.endswith(TWIN):
        paged = look_of(allocator_of(allocator))
        return Look(_lighter(paged.colour), paged.hatch + "||", paged.line, paged.marker)
    if allocator in ALLOCATOR_LOOKS:
        return ALLOCATOR_LOOKS[allocator]
    digest = hashlib.sha256(allocator.encode()).digest()
    colour = OTHER_COLOURS[digest[0] % len(OTHER_COLOURS)]
    hatch = OTHER_HATCHES[digest[1] % len(OTHER_HATCHES)]
    return Look(colour, hatch, OTHER_LINES[digest[2] % len(OTHER_LINES)], OTHER_MARKERS[digest[3] % len(OTHER_MARKERS)])


def _lighter(colour: str) -> str:
    """Half way to white."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{(part + 255) // 2:02X}" for part in parts)


def in_order(allocators: Iterable[str]) -> list[str]:
    """The paper's order: its baselines, then others by name, `paged` last; the two kernels of one side by side."""
    first = [name for name in ALLOCATOR_LOOKS if name != "paged"]
    ranks = {name: rank for rank, name in enumerate(first)} | {"paged": len(first) + 1}
    return sorted(set(allocators), key=lambda name: (ranks.get(allocator_of(name), len(first)), name))


PAPER = {
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "font.family": ["STIXGeneral"],
    "hatch.linewidth": 0.4,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
    "savefig.pad_inches": 0.01,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}
"""What a figure of a paper has otherwise: the serif face that goes with Times, and lines for its widths."""


@contextmanager
def style(*, paper: bool = False) -> Iterator[None]:
    """Fonts, grid and line widths of all figures; names from files are never read as mathematics."""
    import seaborn as sns

    settings = dict(sns.axes_style("whitegrid")) | {
        "axes.axisbelow": True,
        "axes.edgecolor": "#808080",
        "axes.labelsize": 8,
        "axes.linewidth": 0.7,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 8.5,
        "figure.dpi": DPI,
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 8,
        "grid.color": "#E3E3E3",
        "grid.linewidth": 0.6,
        "hatch.linewidth": 0.5,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "legend.title_fontsize": 7,
        "lines.linewidth": 1.4,
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "savefig.dpi": DPI,
        "svg.hashsalt": "pagelab",
        "text.parse_math": False,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
    }
    with matplotlib.rc_context(settings | (PAPER if paper else {})):
        yield


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that belongs to no window system."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, about: str = "") -> None:
    """Writes PNG, PDF or SVG by suffix; the same figure gives the same bytes. `about` goes into the file's own
    description, where it survives being pasted into a paper."""
    undated = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    where = {".png": "Description", ".pdf": "Subject", ".svg": "Description"}.get(path.suffix)
    told = {where: about} if where and about else {}
    figure.savefig(path, dpi=DPI, metadata={**undated.get(path.suffix, {}), **told} or None)


def percent_axis(axis: Any, label: str, *, whole: bool = True) -> None:
    """Fractions in per cent, ticks over the `whole` of 0 to 100 % or wherever the data is."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_major_locator(MaxNLocator(4 if whole else 5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_label_text(label)


def log2_axis(axes: Axes, values: Iterable[float], label: str, names: Sequence[str] = ()) -> None:
    """A base-2 x axis that names the values themselves, not their exponents, or by `names`, one each in order."""
    from matplotlib.ticker import NullLocator

    ticks = sorted(set(values))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, names or [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
