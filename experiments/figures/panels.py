"""Small multiples: one panel an allocator, up to three in a row of their own, else two a row, with the same scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.figures.spec import NothingToDrawError
from experiments.style import PAGE_IN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase as Canvas

    from experiments.figures.stored import Stored

ROW_IN = 1.75
LEGEND_CHARS = 120


def num_columns(num_panels: int) -> int:
    """Panels in a row."""
    return num_panels if num_panels <= 3 else 2


def panel_height(stored: Stored) -> float:
    """All rows, and room for the legend."""
    num_panels = max(1, len(stored.allocators))
    return 0.9 + ROW_IN * -(-num_panels // num_columns(num_panels))


def one_panel_each(
    tables: Mapping[str, pd.DataFrame],
    canvas: Canvas,
    draw: Callable[[str, pd.DataFrame, Axes], pd.DataFrame],
    *,
    missing: str,
) -> pd.DataFrame:
    """Draws every table into its own titled panel; the plotted rows of all, with an `allocator` column."""
    if not tables:
        raise NothingToDrawError(missing)
    columns = num_columns(len(tables))
    rows = -(-len(tables) // columns)
    grid = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    plotted, limits = [], []
    for place, ((allocator, table), axes) in enumerate(zip(tables.items(), panels, strict=False)):
        shown = draw(allocator, table, axes)
        axes.set_title(allocator)
        _label_outer(axes, left=place % columns == 0, bottom=place + columns >= len(tables))
        limits.append((*axes.get_xlim(), *axes.get_ylim()))
        plotted.append(shown.assign(allocator=allocator))
    lefts, rights, bottoms, tops = zip(*limits, strict=True)
    panels[0].set(xlim=(min(lefts), max(rights)), ylim=(min(bottoms), max(tops)))
    for axes in panels[len(tables) :]:
        axes.remove()
    frame = pd.concat(plotted, ignore_index=True)
    return frame[["allocator", *frame.columns.drop("allocator")]]


def _label_outer(axes: Axes, *, left: bool, bottom: bool) -> None:
    """Axis labels only where no panel is beside or below."""
    axes.tick_params(labelleft=left, labelbottom=bottom)
    if not left:
        axes.set_ylabel("")
    if not bottom:
        axes.set_xlabel("")


def shared_legend(canvas: Canvas, handles: list[object], columns: int) -> None:
    """One legend for all panels, below them."""
    canvas.legend(handles=handles, loc="outside lower center", ncols=columns)


def legend_of(canvas: Canvas, axes: Axes | Sequence[Axes], title: str = "") -> None:
    """The legend of one panel, or of all that several have, below everything, in as many columns as its names leave
    room for."""
    panels = axes if isinstance(axes, Sequence) else [axes]
    shown: dict[str, object] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    width_in = canvas.bbox.width / canvas.dpi  # type: ignore[attr-defined]
    columns = legend_columns(list(shown), width_in)
    handles: list[Any] = list(shown.values())
    canvas.legend(handles, list(shown), loc="outside lower center", ncols=columns, title=title or None)


def legend_columns(names: Sequence[str], width_in: float) -> int:
    """As many as names of that length leave room for."""
    columns = int(LEGEND_CHARS * width_in / PAGE_IN) // (max(map(len, names), default=1) + 8)
    return max(1, min(len(names), columns))
