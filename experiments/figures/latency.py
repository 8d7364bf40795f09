"""Claim: with more requests in each step, requests wait less for their first token, and each step takes longer.

Empirical distributions of time to first token (TTFT), time per output token (TPOT) and time from arrival to last token
(E2E) over finished requests, one line a seed. The paper shows means over request rates (its Fig. 12); distributions are
what users of servers compare.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from experiments.figures.panels import legend_of
from experiments.figures.repeats import need
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.style import in_order, look_of, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

Latency = Literal["ttft_s", "tpot_s", "e2e_s"]
LABELS: dict[str, str] = {
    "ttft_s": "time to first token, TTFT (s, simulated)",
    "tpot_s": "time per output token, TPOT (s, simulated)",
    "e2e_s": "time from arrival to last token, E2E (s, simulated)",
}


def latency_of(requests: pd.DataFrame, which: Latency) -> pd.Series[float]:
    """TTFT = f - a; TPOT = (c - f) / (n - 1) for n >= 2; E2E = c - a; finished requests only, as in the tables."""
    need(requests, ["status", "arrival_s", "first_token_s", "finish_s", "num_output_tokens"])
    done = requests[requests["status"] == "finished"]
    if which == "ttft_s":
        return done["first_token_s"] - done["arrival_s"]
    if which == "e2e_s":
        return done["finish_s"] - done["arrival_s"]
    several = done[done["num_output_tokens"] > 1]
    return (several["finish_s"] - several["first_token_s"]) / (several["num_output_tokens"] - 1)


def latency_ecdf(
    requests_by_allocator: Mapping[str, pd.DataFrame],
    ax: Axes,
    which: Latency = "ttft_s",
    *,
    saturated: Collection[str] = (),
) -> pd.DataFrame:
    """Share of finished requests at or below each latency; a line a seed if the tables have a `seed` column."""
    if which not in LABELS:
        raise ValueError(f"unknown latency {which!r}; known: {', '.join(LABELS)}")
    parts = []
    for allocator in in_order(requests_by_allocator):
        table = requests_by_allocator[allocator]
        seeds = table["seed"] if "seed" in table else pd.Series(0, index=table.index)
        for number, (seed, rows) in enumerate(table.groupby(seeds, sort=True)):
            values = np.sort(latency_of(rows, which).to_numpy(dtype=np.float64))
            mark = " (saturated)" if allocator in saturated else ""
            _line(ax, values, allocator, "_nolegend_" if number else allocator + mark)
            share = np.arange(1, len(values) + 1) / max(len(values), 1)
            parts.append(pd.DataFrame({"allocator": allocator, "seed": seed, which: values, "share": share}))
    plotted = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({which: [], "share": []})
    _scale(ax, plotted[which], which)
    return plotted


def _line(ax: Axes, values: np.ndarray, allocator: str, label: str) -> None:
    import seaborn as sns

    look = look_of(allocator)
    if len(values):
        sns.ecdfplot(x=values, ax=ax, color=look.colour, linestyle=look.line, label=label)
    else:
        ax.plot([], [], color=look.colour, linestyle=look.line, label=f"{label}: none finished")


def _scale(ax: Axes, values: pd.Series[float], which: Latency) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = values[values > 0]
    if len(positive):
        ax.set_xscale("log")
        ax.set_xlim(left=float(positive.min()) / 1.1)
        wide = float(positive.max()) > 1_000 * float(positive.min())
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=99))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(0, 1)
    percent_axis(ax.yaxis, "share of finished requests")
    ax.set_xlabel(LABELS[which])


def _draw(stored: Stored, canvas: Canvas, which: Latency) -> pd.DataFrame:
    tables = stored.requests()
    if not tables:
        raise NothingToDrawError("no cell of this result has a requests.parquet")
    ax = canvas.subplots()
    plotted = latency_ecdf(tables, ax, which, saturated=stored.saturated())
    if plotted.empty:
        raise NothingToDrawError("no request finished, so there is no latency to show")
    legend_of(canvas, ax)
    return plotted


SATURATED = (
    " A line marked “saturated” belongs to a run whose queue kept growing: its latencies are those of the requests "
    "that finished, and would grow with the length of the trace."
)
TTFT = Figure(
    name="ttft_ecdf",
    title="How long users wait for the first token",
    claim="Read it at any height: at 50 % is the latency that half of the finished requests stay below. Lines further "
    "left are better; the scale is logarithmic." + SATURATED,
    paper="The paper's Fig. 12 shows means; distributions are what serving benchmarks plot.",
    draw=lambda stored, canvas: _draw(stored, canvas, "ttft_s"),
    height_in=lambda stored: 2.7,
)
TPOT = Figure(
    name="tpot_ecdf",
    title="How fast tokens follow each other",
    claim="Time between two tokens of the same request, averaged over the request. Larger batches make each step "
    "slower, and a request that is interrupted for want of memory loses time: both move a line to the right. "
    "Lines further left are better; the scale is logarithmic." + SATURATED,
    paper="The paper's Fig. 12 shows means; distributions are what serving benchmarks plot.",
    draw=lambda stored, canvas: _draw(stored, canvas, "tpot_s"),
    height_in=lambda stored: 2.7,
)
E2E = Figure(
    name="e2e_ecdf",
    title="How long an answer takes in all",
    claim="From a request's arrival to its last token: waiting, the prompt, and every token of the answer, so long "
    "answers are slow under any allocator. Lines further left are better; the scale is logarithmic." + SATURATED,
    paper="The paper's Fig. 12 shows means of this, divided by the length of the answer.",
    draw=lambda stored, canvas: _draw(stored, canvas, "e2e_s"),
    height_in=lambda stored: 2.7,
)
