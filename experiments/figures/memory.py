"""Claim: contiguous reservations are a few long stripes with holes between them; pages are confetti without holes.

Time x address maps of the KV memory, and the free runs by size over time (as /proc/buddyinfo is plotted). The paper has
no such picture; it describes the effect in its section 3.1 and Fig. 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from engine.core.allocator import CACHED, FREE, NULL, SHARED
from experiments.figures.panels import one_panel_each, panel_height, shared_legend
from experiments.figures.repeats import need
from experiments.figures.spec import Figure
from experiments.style import percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

COLUMNS = ["time_s", "start_block", "num_blocks", "owner"]
MAX_COLUMNS, MAX_ROWS = 320, 1_000
FREE_COLOUR, CACHED_COLOUR, SHARED_COLOUR = "#FFFFFF", "#D9D9D9", "#000000"
GAP_COLOUR = "#F2F2F2"
MAX_WIDTH = 1.5
"""Of a snapshot, in median spacings."""
NUM_TONES = 24
NO_MAP = "this result has no map.parquet; record snapshots of the pool to see its map"

Blocks = npt.NDArray[np.int64]


def owners_at(regions: pd.DataFrame, num_blocks: int) -> Blocks:
    """Owner of each of the blocks 1 to `num_blocks` in one snapshot; blocks that no region covers are free."""
    start, length, who = (regions[name].to_numpy(dtype=np.int64) for name in COLUMNS[1:])
    within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    owner = np.full(num_blocks + 1, FREE, dtype=np.int64)
    owner[np.repeat(start, length) + within] = np.repeat(who, length)
    return owner[1:]


def snapshots(map_frame: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """(time, regions) in order of time."""
    need(map_frame, COLUMNS)
    return [(float(str(time)), regions) for time, regions in map_frame.groupby("time_s", sort=True)]


def without_start(taken: list[tuple[float, pd.DataFrame]]) -> list[tuple[float, pd.DataFrame]]:
    """Without the empty pool at time 0 if nothing is known for long after it."""
    if len(taken) < 3 or taken[0][0] != 0 or not taken[0][1]["owner"].isin([FREE, NULL]).all():
        return taken
    times = np.array([time for time, _ in taken])
    return taken[1:] if times[1] > MAX_WIDTH * np.median(np.diff(times)) else taken


def gaps(times: npt.NDArray[np.float64]) -> list[tuple[float, float]]:
    """Stretches without a snapshot: one is drawn until the next, but never wider than 1.5 times the median spacing."""
    if len(times) < 2:
        return []
    widest = MAX_WIDTH * float(np.median(np.diff(times)))
    ends = zip(times[:-1] + widest, times[1:], strict=True)
    return [(float(start), float(stop)) for start, stop in ends if start < stop]


def _remark(stored: Stored) -> str:
    """How many snapshots there are."""
    counts = {name: len(without_start(snapshots(table))) for name, table in stored.one_each("map").items()}
    if len(set(counts.values())) == 1:
        number = next(iter(counts.values()))
        return f"{number} {'snapshot' if number == 1 else 'snapshots'}{' each' if len(counts) > 1 else ''}."
    return f"Snapshots: {', '.join(f'{name} {number}' for name, number in counts.items())}." if counts else ""


def tones() -> npt.NDArray[np.float64]:
    """Colours for requests: eight hues in three lightnesses; neighbours in arrival order differ in both."""
    import seaborn as sns

    shades = [sns.husl_palette(8, s=0.85, l=lightness) for lightness in (0.42, 0.58, 0.74)]
    return np.array([shades[index % 3][(index * 3) % 8] for index in range(NUM_TONES)])


def paint(owner: Blocks) -> npt.NDArray[np.float64]:
    """RGB of each entry."""
    from matplotlib.colors import to_rgb

    image = tones()[owner % NUM_TONES]
    fixed = ((FREE, FREE_COLOUR), (CACHED, CACHED_COLOUR), (SHARED, SHARED_COLOUR), (NULL, CACHED_COLOUR))
    for kind, colour in fixed:
        image[owner == kind] = to_rgb(colour)
    return image


def memory_map(map_frame: pd.DataFrame, ax: Axes, num_blocks: int) -> pd.DataFrame:
    """Blocks by address (up) and snapshots by time (right); white is free, each colour a request.

    At most 320 instants and 1,000 addresses are drawn; of more, evenly spaced ones. The rows returned are the regions
    of the instants drawn."""
    taken = without_start(snapshots(map_frame))
    rows = np.unique(np.linspace(0, num_blocks - 1, min(num_blocks, MAX_ROWS)).round().astype(np.int64))
    times = np.array([time for time, _ in taken])
    instants = np.linspace(times[0], times[-1], min(2 * len(taken), MAX_COLUMNS) if len(taken) > 1 else 1)
    shown = np.searchsorted(times, instants, side="right") - 1
    drawn = np.unique(shown)
    owners = {int(index): owners_at(taken[index][1], num_blocks)[rows] for index in drawn}
    image = paint(np.stack([owners[int(index)] for index in shown], axis=1))
    right = times[-1] if len(times) > 1 else times[0] + 1
    extent = (times[0], right, 0.5, num_blocks + 0.5)
    ax.imshow(image, origin="lower", aspect="auto", interpolation="nearest", extent=extent)
    for start, stop in gaps(times):
        ax.axvspan(start, stop, facecolor=GAP_COLOUR, hatch="////", edgecolor="#C8C8C8", linewidth=0, zorder=2)
    ax.grid(visible=False)
    ax.set_xlabel("simulated time (s)")
    ax.set_ylabel("block (address)")
    return map_frame[map_frame["time_s"].isin(times[drawn])][COLUMNS].reset_index(drop=True)


def free_runs(map_frame: pd.DataFrame) -> pd.DataFrame:
    """Blocks in free runs, by snapshot and size class: class k holds runs of 2^k to 2^(k+1) - 1 blocks.

    Adjacent free and cached-free regions are one run: both can be handed out."""
    need(map_frame, COLUMNS)
    regions = map_frame.sort_values(["time_s", "start_block"], kind="stable")
    free = regions["owner"].isin([FREE, CACHED])
    begins = (free != free.shift()) | (regions["time_s"] != regions["time_s"].shift())
    held = regions.loc[free, ["time_s", "num_blocks"]].assign(run=begins.cumsum()[free])
    runs = held.groupby("run").agg(time_s=("time_s", "first"), num_blocks=("num_blocks", "sum"))
    runs["exponent"] = np.floor(np.log2(runs["num_blocks"])).astype(np.int64)
    classes = runs.groupby(["time_s", "exponent"])["num_blocks"]
    return classes.agg(num_runs="count", num_free_blocks="sum").reset_index()


def free_extents(map_frame: pd.DataFrame, ax: Axes, *, num_blocks: int | None = None) -> pd.DataFrame:
    """Free memory over time, stacked by the size of the free run it lies in: dark is in pieces, light in one.

    The scale ends above the largest value after the first tenth of the snapshots: the pool starts all free."""
    runs = free_runs(map_frame)
    whole = num_blocks or int(map_frame.loc[map_frame["owner"] != NULL].groupby("time_s")["num_blocks"].sum().max())
    times = np.sort(map_frame["time_s"].unique())
    table = runs.pivot_table(index="time_s", columns="exponent", values="num_free_blocks", fill_value=0)
    table = table.reindex(times, fill_value=0)
    below = np.zeros(len(times))
    for group, (low, high, _) in enumerate(CLASSES):
        members = [exponent for exponent in table.columns if low <= int(str(exponent)) <= high]
        above = below + table[members].sum(axis=1).to_numpy(dtype=np.float64) / whole
        ax.fill_between(times, below, above, step="post", facecolor=class_colours()[group], linewidth=0)
        below = above
    ax.set_ylim(0, min(1.0, max(0.05, 1.1 * float(below[len(below) // 10 :].max()))))
    if len(times) > 1:
        ax.set_xlim(times[0], times[-1])
    percent_axis(ax.yaxis, "free blocks", whole=False)
    ax.set_xlabel("simulated time (s)")
    return runs


CLASSES = ((0, 0, "1"), (1, 1, "2–3"), (2, 3, "4–15"), (4, 5, "16–63"), (6, 7, "64–255"), (8, 62, "256 and more"))
"""Size classes that share a colour: first and last power of two, and the run lengths that they stand for."""


def class_colours() -> list[str]:
    """From dark (scattered) to light (in one piece), readable without colour vision."""
    import seaborn as sns
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in sns.color_palette("viridis", len(CLASSES))]


def colour_handles(colours: list[tuple[str, str]]) -> list[object]:
    """Legend entries: (colour, label)."""
    from matplotlib.patches import Patch

    return [Patch(facecolor=colour, edgecolor="#707070", linewidth=0.5, label=label) for colour, label in colours]


def _draw_map(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    maps = stored.one_each("map")
    plotted = one_panel_each(
        maps, canvas, lambda name, table, ax: memory_map(table, ax, stored.num_blocks(name)), missing=NO_MAP
    )
    entries = [("#8F8F8F", "any colour: one request's blocks"), (FREE_COLOUR, "free")]
    kinds = set(plotted["owner"])
    entries += [(CACHED_COLOUR, "free, content kept for reuse")] if CACHED in kinds else []
    entries += [(SHARED_COLOUR, "shared by several requests")] if SHARED in kinds else []
    handles = colour_handles(entries)
    if any(gaps(np.sort(rows["time_s"].unique())) for _, rows in plotted.groupby("allocator")):
        from matplotlib.patches import Patch

        handles.append(Patch(facecolor=GAP_COLOUR, hatch="////", edgecolor="#C8C8C8", linewidth=0, label="no snapshot"))
    shared_legend(canvas, handles, 4)
    return plotted


def _draw_extents(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    plotted = one_panel_each(
        stored.one_each("map"),
        canvas,
        lambda name, table, ax: free_extents(table, ax, num_blocks=stored.num_blocks(name)),
        missing=NO_MAP,
    )
    labels = [(colour, label) for colour, (_, _, label) in zip(class_colours(), CLASSES, strict=True)]
    handles = colour_handles(labels)
    canvas.legend(handles=handles, loc="outside lower center", ncols=6, title="length of the free run (blocks)")
    return plotted


MAP = Figure(
    name="memory_map",
    title="Which request holds which memory, over time",
    claim="A picture of the memory itself: address upwards, time to the right, each colour one request, white is free. "
    "A contiguous allocator draws a few thick stripes, most of each one reserved and empty; the paged one fills "
    "all of the memory with small pieces, wherever they lie.",
    paper="Not in the paper; its Fig. 3 describes the effect.",
    draw=_draw_map,
    remark=_remark,
    height_in=panel_height,
)
EXTENTS = Figure(
    name="free_extents",
    title="How scattered the free memory is",
    claim="The height is the share of blocks that are free; the colour says how long the free run is that a block lies "
    "in. Dark memory is scattered in short runs: a contiguous allocator cannot use it for a long request, a paged"
    " one can. The start, when almost everything is free, is cut off at the top.",
    paper="Not in the paper; modelled on /proc/buddyinfo.",
    draw=_draw_extents,
    height_in=panel_height,
)
