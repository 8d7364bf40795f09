"""Claim: a contiguous pool is large single-coloured fields with holes; a paged one fills up whatever the pieces.

The pool as a sheet of blocks, in steps of time: the memory map of one instant beside the next. The paper has no such
picture; it is modelled on what disk defragmenters show.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from experiments.figures.memory import (
    COLUMNS,
    FREE_COLOUR,
    NO_MAP,
    Blocks,
    colour_handles,
    owners_at,
    paint,
    snapshots,
    without_start,
)
from experiments.figures.panels import shared_legend
from experiments.figures.spec import Figure, NothingToDrawError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

NUM_STEPS: Final = 6
ROW_IN: Final = 1.25


def steps_of(map_frame: pd.DataFrame, most: int = NUM_STEPS) -> list[tuple[float, pd.DataFrame]]:
    """At most `most` snapshots, evenly spaced among all, the last one included."""
    taken = without_start(snapshots(map_frame))
    places = np.unique(np.linspace(0, len(taken) - 1, min(most, len(taken))).round().astype(int))
    return [taken[place] for place in places]


def sheet(owner: Blocks) -> np.ndarray:
    """RGB of a pool as rows of blocks, about as wide as high, in reading order; the rest of the last row is white."""
    width = math.ceil(math.sqrt(len(owner)))
    height = -(-len(owner) // width)
    image = np.ones((height * width, 3))
    image[: len(owner)] = paint(owner)
    return image.reshape(height, width, 3)


def pool_at(regions: pd.DataFrame, num_blocks: int, ax: Axes) -> None:
    """One instant."""
    image = sheet(owners_at(regions, num_blocks))
    ax.imshow(image, interpolation="nearest", aspect="equal")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(True)


def _draw(stored: Stored, canvas: Canvas) -> pd.DataFrame:
    maps = stored.one_each("map")
    if not maps:
        raise NothingToDrawError(NO_MAP)
    steps = {name: steps_of(table) for name, table in maps.items()}
    columns = max(map(len, steps.values()))
    grid = canvas.subplots(len(maps), columns, squeeze=False)
    for row, (name, taken) in zip(grid, steps.items(), strict=True):
        for ax, (time, regions) in zip(row, taken, strict=False):
            pool_at(regions, stored.num_blocks(name), ax)
            ax.set_title(f"{time:,.0f} s", fontsize=7)
        for ax in row[len(taken) :]:
            ax.remove()
        row[0].set_ylabel(name, fontsize=7)
    shared_legend(canvas, colour_handles([("#8F8F8F", "any colour: one request's blocks"), (FREE_COLOUR, "free")]), 2)
    plotted = [regions.assign(allocator=name) for name, taken in steps.items() for _, regions in taken]
    return pd.concat(plotted, ignore_index=True)[["allocator", *COLUMNS]]


FIGURE = Figure(
    name="memory_steps",
    title="The pool, step by step",
    claim="Each square is the whole memory at one instant, block after block in reading order; a colour is a request, "
    "white is free. From left to right time passes. Reservations are fields of one colour, most of each still empty; "
    "paged blocks of a request lie wherever one was free.",
    paper="Not in the paper.",
    draw=_draw,
    height_in=lambda stored: 0.9 + ROW_IN * max(1, len(stored.allocators)),
)
