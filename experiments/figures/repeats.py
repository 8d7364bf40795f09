"""Means and standard deviations over repeats (seeds): the only error bars that the figures have."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

UNSET = "unset"
"""How a null key is written: null is a value of its own, not a reason to drop rows."""


def over_seeds(frame: pd.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """One row a key: `<value>` is the mean, `<value>_sd` the sample standard deviation (missing for one seed),
    `num_runs` the number of rows. Null keys keep a row of their own."""
    groups = frame.groupby(list(keys), dropna=False, sort=False)
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
