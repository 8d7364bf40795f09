"""One name of `reproduce`: which runs it needs, how they are judged, and the tables that go with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.paper.claims import Result
from experiments.paper.runs import Key, Lab

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers beside the claims."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Rows as lists."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure beside the claims."""

    name: str
    """Of its files."""
    title: str
    claim: str
    """What to see, for a reader who does not know the field."""
    caption: str
    """Where it comes from: requests, seeds, trace, pool, device, step model, command."""
    draw: Callable[[Canvas], pd.DataFrame]
    """Draws into an empty figure and returns the plotted numbers."""
    height_in: float = 3.0


def _no_runs(lab: Lab) -> list[Key]:
    return []


def _no_tables(lab: Lab) -> list[Table]:
    return []


@dataclass(frozen=True, slots=True)
class Experiment:
    """`runs` come first, for all experiments together; `judge` and `tables` then find them done."""

    name: str
    title: str
    judge: Callable[[Lab], Sequence[Result]]
    runs: Callable[[Lab], Sequence[Key]] = _no_runs
    tables: Callable[[Lab], Sequence[Table]] = _no_tables
