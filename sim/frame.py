"""Simulated time as the tables of a run see it: window, bins, edges. Picoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Window:
    """[start, stop) in picoseconds."""

    start: int
    stop: int
    kind: Literal["arrivals", "named", "makespan"]


@dataclass(frozen=True, slots=True)
class Frame:
    """Simulated time as a run's tables see it, known before the run. Picoseconds."""

    last: int
    """The last arrival."""
    window: Window | None
    end: int | None
    bins: list[int]
    edges: list[int]
    """Of the integrals: those of bins, window and cut."""
