"""Means and standard deviations over repeats (seeds): the only error bars that the figures have."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

UNSET = "unset"
"""How a null key is written: null is a value of its own, not a reason to drop rows."""
COPY = "is_copy"
"""Column of the rows that show a run at another point than its own; there is none where every row is a run."""


def each_once(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Without the rows that would count a run again in the group of equal `keys` that it is in already."""
    if COPY not in frame or "cell" not in frame:
        return frame
    kept: pd.DataFrame = frame[~(_copies(frame) & frame.duplicated([*keys, "cell"]))]
    return kept


def runs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are runs of their own."""
    kept: pd.DataFrame = frame[~_copies(frame)] if COPY in frame else frame
    return kept


def _copies(frame: pd.DataFrame) -> pd.Series[bool]:
    """Rows of results without any beside those of others have no word for it."""
    found: pd.Series[bool] = frame[COPY].eq(True)
    return found


def over_seeds(frame: pd.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """One row a key: `<value>` is the mean, `<value>_sd` the sample standard deviation (missing for one seed),
    `num_runs` the number of rows. Null keys keep a row of their own."""
    groups = each_once(frame, keys).groupby(list(keys), dropna=False, sort=False)
    numeric = [name for name in values if name in frame]
    table = groups.size().rename("num_runs").to_frame()
    for name in numeric:
        table[name] = groups[name].apply(lambda column: pd.to_numeric(column, errors="coerce").mean())
        table[f"{name}_sd"] = groups[name].apply(lambda column: pd.to_numeric(column, errors="coerce").std(ddof=1))
    return table.reset_index()


def several_seeds(frame: pd.DataFrame) -> bool:
    """Whether there is a spread over seeds."""
    return "seed" in frame and frame["seed"].nunique() > 1


def need(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """ValueError with the nearest spellings if a column is not there."""
    from engine.core.suggestion import unknown_name

    for name in columns:
        if name not in frame:
            raise unknown_name("column", name, map(str, frame.columns))
