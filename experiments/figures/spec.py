"""What a figure is: a name, a claim, what to look for, and a drawing function over a stored result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored


class NothingToDrawError(Exception):
    """The result does not hold what this figure shows; the message says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One standard figure."""

    name: str
    """Of its files."""
    title: str
    claim: str
    """What to see, for a reader who does not know the field."""
    paper: str
    """A sentence: the figure of the PagedAttention paper that it corresponds to, or what else it is modelled on."""
    draw: Callable[[Stored, Canvas], pd.DataFrame]
    """Draws into an empty figure and returns the plotted numbers."""
    height_in: Callable[[Stored], float]
    """Height that this result needs, in inches."""
    width_in: float = 6.9
    every_block_size: bool = False
    """Whether it shows all rows, not those of one block size only."""
    remark: Callable[[Stored], str] = lambda stored: ""
    """What else to know about this result, after the claim."""
