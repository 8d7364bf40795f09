"""One panel: a column over another, a curve a value of others, with bands over repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from experiments.figures.columns import by_size, written
from experiments.figures.labels import axis_label
from experiments.figures.looks import curve_names
from experiments.style import Look, log2_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ScaleX = Literal["auto", "linear", "log", "log2"]
SCALES: tuple[ScaleX, ...] = ("auto", "linear", "log", "log2")
BAND = 0.18
"""Opacity."""
BESIDE = 0.6
"""Of the room of a category, for all of its points."""


@dataclass(frozen=True, slots=True)
class Horizontal:
    """The x axis that all panels of a figure share."""

    column: str
    scale: ScaleX
    """Never `auto`."""
    values: tuple[float, ...]
    categories: tuple[str, ...] = ()
    """If values are words, or one is missing: then places are 0, 1, 2, ... in this order."""

    @classmethod
    def of(cls, column: pd.Series[Any], scale: ScaleX = "auto") -> Horizontal:
        """`auto` is log2 for powers of two, three or more of them. ValueError for a scale that the values do not
        have."""
        name = str(column.name)
        if scale not in SCALES:
            raise ValueError(f"--scale-x is {', '.join(SCALES)}, got {scale!r}")
        numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
        if not numeric or column.isna().any():
            if scale in ("log", "log2"):
                raise ValueError(f"--scale-x {scale}: {name!r} has values that are no numbers")
            ordered = dict.fromkeys(written(value) for value in column.sort_values(na_position="first", key=by_size))
            return cls(name, "linear", (), tuple(ordered))
        values = tuple(sorted(set(column.astype(float))))
        if scale in ("log", "log2") and values[0] <= 0:
            raise ValueError(f"--scale-x {scale}: {name!r} is {values[0]:g} somewhere, and must be above 0")
        return cls(name, _scale(values) if scale == "auto" else scale, values)

    def places(self, column: pd.Series[Any]) -> pd.Series[float]:
        """Where each value lies."""
        if not self.categories:
            return column.astype(float)
        return column.map(written).map({name: float(place) for place, name in enumerate(self.categories)})

    def put_on(self, ax: Axes) -> None:
        """Scale, ticks and label."""
        if self.categories:
            ax.set_xticks(range(len(self.categories)), self.categories)
            if sum(map(len, self.categories)) > 40:
                ax.tick_params(axis="x", rotation=20)
            ax.set_xlim(-0.4, len(self.categories) - 0.6)
        elif self.scale == "log2":
            log2_axis(ax, self.values, "")
        elif self.scale == "log":
            ax.set_xscale("log")
        ax.set_xlabel(axis_label(self.column))


def _scale(values: Sequence[float]) -> ScaleX:
    powers = all(value > 0 and float(np.log2(value)).is_integer() for value in values)
    return "log2" if powers and len(values) > 2 else "linear"


def draw_curves(
    table: pd.DataFrame,
    horizontal: Horizontal,
    var_y: str,
    curve_by: Sequence[str],
    looks: Mapping[str, Look],
    ax: Axes,
) -> None:
    """Means with the band of their interval; a line is broken where a point has no value. Where the axis has
    categories there are points with bars, side by side and not joined: nothing lies between two words."""
    names, places = curve_names(table, curve_by), horizontal.places(table[horizontal.column])
    for order, (name, look) in enumerate(looks.items()):
        rows = table[names == name].assign(place=places).sort_values("place", kind="stable")
        if rows.empty:
            continue
        drawn: dict[str, Any] = {
            "color": look.colour,
            "linestyle": look.line,
            "marker": look.marker,
            "markersize": 4.5,
            "label": name,
        }
        half = rows[f"{var_y}_ci95"].fillna(0.0)
        if horizontal.categories:
            aside = BESIDE * (order - (len(looks) - 1) / 2) / max(len(looks), 3)
            ax.errorbar(rows["place"] + aside, rows[var_y], yerr=half, capsize=2, **{**drawn, "linestyle": "none"})
            continue
        ax.plot(rows["place"], rows[var_y], **drawn)
        if (half > 0).any():
            low, high = rows[var_y] - half, rows[var_y] + half
            ax.fill_between(rows["place"], low, high, color=look.colour, alpha=BAND, linewidth=0)
