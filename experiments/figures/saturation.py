"""Values of runs that could not keep up: what grows with the queue depends on the length of the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from experiments.figures.labels import is_simulated
from sim.lookup import definition_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SATURATED: Final = "saturated"
HOLLOW: Final = "hollow marks are of saturated runs: the queue kept growing, so they depend on the length of the trace"
CROSSED: Final = HOLLOW.replace("hollow marks", "crosses")
GREY: Final = "#3D3D3D"
DAGGER: Final = HOLLOW.replace("hollow marks", "daggers")


def is_saturated(frame: pd.DataFrame) -> pd.Series[bool]:
    """Row by row; a closed loop, which has no word for it, is not."""
    if SATURATED not in frame:
        return pd.Series(False, index=frame.index)
    found: pd.Series[bool] = frame[SATURATED].astype(str).str.lower() == "true"
    return found


def grows(column: str) -> bool:
    """Whether its values in a saturated run depend on the length of the trace: times of requests do, of a model or of
    an engine."""
    metric = definition_of(column)
    return metric is not None and metric.unit in ("s", "s/token") and is_simulated(column)


def marked(table: pd.DataFrame, frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """`table`, a row a group of equal `keys`, with whether any run of the group was saturated; as it was where no
    column grows, or where nobody knows."""
    if SATURATED not in frame or not any(map(grows, columns)):
        return table
    late = frame.assign(**{SATURATED: is_saturated(frame)}).groupby(list(keys), dropna=False, sort=False)[SATURATED]
    return table.assign(**{SATURATED: late.any().to_numpy()})


def has_marks(frame: pd.DataFrame, columns: Sequence[str]) -> bool:
    """Whether a picture of these columns has marks."""
    return any(map(grows, columns)) and bool(is_saturated(frame).any())


def name_mark(ax: Axes, **looks: Any) -> None:
    """An entry of the legend, in a grey that no curve has."""
    ax.plot([], [], linestyle="", label=SATURATED, **{"marker": "o", "color": GREY, "markersize": 4.5, **looks})
