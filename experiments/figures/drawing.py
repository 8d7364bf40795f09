"""Draws every figure of a result into files. One that fails is named, and costs none of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from experiments.figures.caption import above_footer, caption_of
from experiments.figures.spec import Figure, NothingToDrawError
from experiments.figures.stored import Stored
from experiments.style import new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of one figure."""

    figure: Figure
    picture: Path | None = None
    numbers: Path | None = None
    """CSV of what is plotted."""
    missing: str = ""
    """Why there is nothing to draw: not an error."""
    error: str = ""


def draw(figure: Figure, stored: Stored, folder: Path, suffix: str = ".png") -> Drawn:
    """Writes `<name>.png` and `<name>.csv` into `folder`."""
    picture, numbers = folder / f"{figure.name}{suffix}", folder / f"{figure.name}.csv"
    for stale in (picture, numbers):
        stale.unlink(missing_ok=True)
    try:
        with style():
            canvas = new_figure(figure.width_in, figure.height_in(stored))
            plotted = figure.draw(stored, above_footer(canvas, caption_of(stored, base=not figure.every_block_size)))
            name_clock(stored, canvas)
            save(canvas, picture)
    except NothingToDrawError as reason:
        return Drawn(figure, missing=str(reason))
    except Exception as error:  # noqa: BLE001  one bad figure must not cost the report
        return Drawn(figure, error=f"{type(error).__name__}: {error}")
    write_numbers(plotted, numbers)
    return Drawn(figure, picture, numbers)


def name_clock(stored: Stored, canvas: Canvas) -> None:
    """Axes of time are labelled `simulated`; where a device measured it, they say so."""
    if stored.is_measured:
        for axes in canvas.get_axes():
            axes.set_xlabel(axes.get_xlabel().replace("simulated", "measured"))
            axes.set_ylabel(axes.get_ylabel().replace("simulated", "measured"))


def write_numbers(plotted: pd.DataFrame, path: Path) -> None:
    """Full precision, the same bytes on every system."""
    plotted.to_csv(path, index=False, lineterminator="\n")


def draw_all(stored: Stored, figures: Iterable[Figure], folder: Path) -> list[Drawn]:
    """Attempts every figure, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [draw(figure, stored, folder) for figure in figures]
