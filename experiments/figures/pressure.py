"""Claim: a reservation makes requests wait; paging lets them in and interrupts some of them when memory runs out.

Waiting requests over simulated time, and below it preemptions. The paper describes preemption in its section 4.5 and
shows neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pandas as pd

from experiments.figures.panels import legend_of
from experiments.figures.repeats import need
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.figures.states import coarser
from experiments.style import in_order, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

MAX_COLUMNS: Final = 60
SHORT: Final = 0.05
"""Of the usual bin: a run that is cut ends with the rest of its last step."""
QUEUE, RATE = "mean_num_waiting", "preemptions_per_s"


def pressure_over_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """Mean queue and preemptions a second over longer intervals; the rest of a step after a cut is left out."""
    need(timeline, ["time_s", "duration_s", QUEUE, "num_preemptions"])
    whole = timeline["duration_s"] > SHORT * timeline["duration_s"].median()
    kept = timeline[whole].reset_index(drop=True)
    return coarser(kept.assign(**{RATE: kept["num_preemptions"] / kept["duration_s"]}), [QUEUE, RATE], MAX_COLUMNS)


def queue_and_preemptions(timeline_by_allocator: Mapping[str, pd.DataFrame], axes: Sequence[Axes]) -> pd.DataFrame:
    """One line an allocator in both panels, through the middles of the intervals."""
    parts = []
    for allocator in in_order(timeline_by_allocator):
        rows = pressure_over_time(timeline_by_allocator[allocator])
        look = look_of(allocator)
        drawn = {"color": look.colour, "linestyle": look.line, "linewidth": 1.2}
        for ax, column in zip(axes, (QUEUE, RATE), strict=True):
            ax.plot(rows["time_s"] + rows["duration_s"] / 2, rows[column], label=allocator, **drawn)
        parts.append(rows.assign(allocator=allocator))
    end = max((float((rows["time_s"] + rows["duration_s"]).max()) for rows in parts), default=1.0)
    for ax, label in zip(axes, ("waiting requests", "preemptions a second"), strict=True):
        ax.set_xlim(0, end)
        ax.set_ylim(0, max(1.05 * ax.get_ylim()[1], 1e-9))
        ax.set_ylabel(label)
    axes[1].set_xlabel("simulated time (s)")
    plotted = pd.concat(parts, ignore_index=True)
    return plotted[["allocator", "time_s", "duration_s", QUEUE, RATE]]


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    timelines = stored.one_each("timeline")
    if not timelines:
        raise NothingToDrawError("no cell of this result has a timeline.parquet")
    if any("num_preemptions" not in table for table in timelines.values()):
        raise NothingToDrawError("this result was written before timelines counted preemptions; run it again")
    axes = canvas.subplots(2, 1, sharex=True)
    plotted = queue_and_preemptions(timelines, list(axes))
    if not plotted[RATE].any():
        axes[1].annotate("nobody was preempted", (0.5, 0.5), xycoords="axes fraction", ha="center", color="#595959")
    legend_of(canvas, axes[0])
    return plotted


FIGURE = Figure(
    name="queue_and_preemptions",
    title="Who waits, and who is interrupted",
    claim="Above, requests that wait for memory; a line that rises to the end belongs to an allocator that cannot keep "
    "up. Below, how often a running request gives up its memory to another one and is computed again later: the price "
    "of letting requests in before it is known how long they get. Whole reservations never pay it.",
    paper="Not in the paper; its section 4.5 describes preemption.",
    draw=_draw,
    height_in=lambda stored: 3.7,
)
