"""Claim: outputs are long and of very different lengths, so no fixed reservation fits them.

Histogram of the trace's prompt and output lengths: the paper's Fig. 11, on a base-2 axis so that long tails fit.
"""

from __future__ import annotations

from math import ceil, floor, log2
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.figures.repeats import need
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.style import log2_axis, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

BINS_PER_OCTAVE = 2
KINDS = (("num_prompt_tokens", "prompt", "#000000", "-"), ("num_output_tokens", "output", "#56B4E9", (0, (4, 1.5))))


def trace_lengths(frame: pd.DataFrame, ax: Axes) -> pd.DataFrame:
    """Share of requests by length, two bins an octave; empty prompts and outputs are counted, not drawn."""
    need(frame, [name for name, *_ in KINDS])
    edges = _edges(frame)
    table = pd.DataFrame({"low_tokens": edges[:-1], "high_tokens": edges[1:]})
    for name, kind, colour, line in KINDS:
        counts = np.histogram(frame[name], edges)[0]
        table[f"num_{kind}"] = counts
        table[f"{kind}_frac"] = counts / max(len(frame), 1)
        mean = frame[name].mean()
        label = f"{kind}: mean {mean:,.0f}, median {frame[name].median():,.0f} tokens"
        _steps(ax, frame[name], edges, colour, line, label)
        ax.axvline(mean, color=colour, linewidth=0.9, linestyle=(0, (1, 1.5)))
    octaves = [2.0**k for k in range(round(log2(edges[0])), round(log2(edges[-1])) + 1)]
    log2_axis(ax, octaves if len(octaves) <= 13 else octaves[:: -(-len(octaves) // 13)], "length (tokens)")
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)
    percent_axis(ax.yaxis, "share of requests", whole=False)
    return table


def _edges(frame: pd.DataFrame) -> np.ndarray:
    lengths = frame[[name for name, *_ in KINDS]].to_numpy()
    lengths = lengths[lengths > 0]
    if not len(lengths):
        raise NothingToDrawError("the trace has no request with a token")
    low, high = floor(log2(lengths.min())), ceil(log2(lengths.max() + 1))
    return 2.0 ** (np.arange(low * BINS_PER_OCTAVE, high * BINS_PER_OCTAVE + 1) / BINS_PER_OCTAVE)


def _steps(ax: Axes, values: pd.Series[int], edges: np.ndarray, colour: str, line: object, label: str) -> None:
    import seaborn as sns

    weights = np.full(len(values), 1 / max(len(values), 1))
    look = {"color": colour, "linestyle": line, "alpha": 0.15, "edgecolor": colour, "linewidth": 1.4}
    sns.histplot(x=values, weights=weights, bins=list(edges), element="step", ax=ax, label=label, **look)


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    frame = stored.lengths()
    if frame.empty:
        raise NothingToDrawError("this result has neither trace_lengths.csv nor finished requests")
    ax = canvas.subplots()
    plotted = trace_lengths(frame, ax)
    handles, labels = ax.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=2)
    return plotted


FIGURE = Figure(
    name="trace_lengths",
    title="How long the requests are",
    claim="What the allocators were given: lengths of the prompts that users sent and of the answers they got, on a "
    "scale where each step doubles. Dotted lines are the means. The wider the spread, the worse any fixed "
    "reservation fits.",
    paper="The paper's Fig. 11.",
    draw=_draw,
    height_in=lambda stored: 2.6,
)
