"""One panel: a column over another, a curve a value of others, with bands over repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from experiments.figures.columns import by_size, is_number, written
from experiments.figures.labels import axis_label, in_binary
from experiments.figures.looks import curve_names
from experiments.figures.saturation import is_saturated
from experiments.style import Look, log2_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ScaleX = Literal["auto", "linear", "log", "log2"]
SCALES: tuple[ScaleX, ...] = ("auto", "linear", "log", "log2")
BAND = 0.18
"""Opacity."""
BESIDE = 0.6
"""Of the room of a category, for all of its points."""
SIZES = ("block_size", "page_bytes")
"""Keys of sizes that are compared by their ratios, whatever their values."""
CHARS_AN_INCH, MARGIN_IN = 13, 0.6
"""Of labels at ticks, and of the figure left of its panels."""
MOST_TICKS = 14
"""Labels on an axis of powers of two."""


@dataclass(frozen=True, slots=True)
class Horizontal:
    """The x axis that all panels of a figure share."""

    column: str
    scale: ScaleX
    """Never `auto`."""
    values: tuple[float, ...]
    labels: tuple[str, ...]
    """Of the values, as they were given; of bytes in KiB and MiB."""
    categories: tuple[str, ...] = ()
    """If values are words, or one is missing: then places are 0, 1, 2, ... in this order."""

    @classmethod
    def of(cls, column: pd.Series[Any], scale: ScaleX = "auto") -> Horizontal:
        """`auto` is log2 for sizes of blocks and pages, and for three powers of two or more. Sizes in words (64KiB) are
        their bytes. ValueError for a scale that the values do not have."""
        name = str(column.name)
        if scale not in SCALES:
            raise ValueError(f"--scale-x is {', '.join(SCALES)}, got {scale!r}")
        sizes = by_size(column)
        if not is_number(sizes) or sizes.isna().any():
            if scale in ("log", "log2"):
                raise ValueError(f"--scale-x {scale}: {name!r} has values that are no numbers")
            ordered = dict.fromkeys(written(value) for value in column.sort_values(na_position="first", key=by_size))
            return cls(name, "linear", (), (), tuple(ordered))
        values = tuple(sorted(set(sizes.astype(float))))
        if scale in ("log", "log2") and values[0] <= 0:
            raise ValueError(f"--scale-x {scale}: {name!r} is {values[0]:g} somewhere, and must be above 0")
        words = map(in_binary if name.endswith("_bytes") else written, values)
        return cls(name, _scale(name, values) if scale == "auto" else scale, values, tuple(words))

    def places(self, column: pd.Series[Any]) -> pd.Series[float]:
        """Where each value lies."""
        if not self.categories:
            return by_size(column).astype(float)
        return column.map(written).map({name: float(place) for place, name in enumerate(self.categories)})

    def put_on(self, ax: Axes) -> None:
        """Scale, ticks and label."""
        if self.categories:
            ax.set_xticks(range(len(self.categories)), self.categories)
            ax.set_xlim(-0.4, len(self.categories) - 0.6)
        elif self.scale == "log2":
            ticks, names = self._apart()
            log2_axis(ax, ticks, "", names)
        elif self.column.endswith("_bytes"):
            ax.set_xscale(self.scale)
            ax.set_xticks(self.values, self.labels, minor=False)
        elif self.scale == "log":
            ax.set_xscale("log")
        if sum(len(text.get_text()) for text in ax.get_xticklabels()) > _chars_below(ax) and self._has_words:
            ax.tick_params(axis="x", rotation=30)
        ax.set_xlabel(axis_label(self.column))

    @property
    def _has_words(self) -> bool:
        return bool(self.categories) or self.column.endswith("_bytes")

    def _apart(self) -> tuple[list[float], list[str]]:
        """Values, and their labels, that have room beside each other on a logarithmic axis; the first and the last."""
        logs, kept = np.log2(self.values), [0]
        least = (logs[-1] - logs[0]) / MOST_TICKS
        for place in range(1, len(logs)):
            if logs[place] - logs[kept[-1]] >= least:
                kept.append(place)
        if kept[-1] != len(logs) - 1:
            kept[-1 if len(kept) > 1 else len(kept) :] = [len(logs) - 1]
        return [self.values[place] for place in kept], [self.labels[place] for place in kept]


def _chars_below(ax: Axes) -> float:
    """Of labels side by side, what a panel has room for."""
    figure, place = ax.figure, ax.get_subplotspec()
    return CHARS_AN_INCH * (figure.bbox.width / figure.dpi - MARGIN_IN) / (place.get_gridspec().ncols if place else 1)


def _scale(column: str, values: Sequence[float]) -> ScaleX:
    above = values[0] > 0 and len(values) > 1
    powers = above and len(values) > 2 and all(float(np.log2(value)).is_integer() for value in values)
    return "log2" if powers or (above and column.rpartition(".")[2] in SIZES) else "linear"


def draw_curves(
    table: pd.DataFrame,
    horizontal: Horizontal,
    var_y: str,
    curve_by: Sequence[str],
    looks: Mapping[str, Look],
    ax: Axes,
) -> None:
    """Means with the band of their interval, hollow where a run was saturated; a line is broken where a point has no
    value. Where the axis has categories there are points with bars, side by side and not joined: nothing lies between
    two words."""
    names, places = curve_names(table, curve_by), horizontal.places(table[horizontal.column])
    for order, (name, look) in enumerate(looks.items()):
        rows = table[names == name].assign(place=places).sort_values("place", kind="stable")
        if rows.empty:
            continue
        if horizontal.categories:
            rows["place"] += BESIDE * (order - (len(looks) - 1) / 2) / max(len(looks), 3)
        _curve(rows, var_y, look, name if curve_by else "", ax, joined=not horizontal.categories)


def _curve(rows: pd.DataFrame, var_y: str, look: Look, name: str, ax: Axes, *, joined: bool) -> None:
    mark: dict[str, Any] = {"color": look.colour, "marker": look.marker, "markersize": 4.5}
    drawn = {**mark, "linestyle": look.line if joined else "none", "label": name or "_nameless"}
    half = rows[f"{var_y}_ci95"].fillna(0.0)
    if joined:
        ax.plot(rows["place"], rows[var_y], **drawn)
    else:
        ax.errorbar(rows["place"], rows[var_y], yerr=half, capsize=2, **drawn)
    if joined and (half > 0).any():
        low, high = rows[var_y] - half, rows[var_y] + half
        ax.fill_between(rows["place"], low, high, color=look.colour, alpha=BAND, linewidth=0)
    if len(late := rows[is_saturated(rows)]):
        ax.plot(late["place"], late[var_y], **{**mark, "linestyle": "", "markerfacecolor": "white"})
