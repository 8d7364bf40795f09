"""95 % confidence intervals over repeats, by Student's t. A repeat is a run with its own seed; requests are none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import pandas as pd

from experiments.figures.repeats import each_once, over_seeds

LEVEL = 0.95
INTERVAL = "95 % confidence interval over repeats"


def with_intervals(frame: pd.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """`over_seeds`, and `<value>_ci95` beside it: half the width of the interval of the mean, missing below two values.
    Runs without the value are in neither, and `<value>_n` says how many had it."""
    table = over_seeds(frame, keys, values)
    groups = each_once(frame, keys).groupby(list(keys), dropna=False, sort=False)
    for name in [name for name in values if name in frame]:
        counts = groups[name].apply(lambda column: int(pd.to_numeric(column, errors="coerce").notna().sum()))
        table[f"{name}_n"] = counts.to_numpy()
        pairs = zip(table[f"{name}_sd"], table[f"{name}_n"], strict=True)
        table[f"{name}_ci95"] = [half_width(sd, int(n)) for sd, n in pairs]
    return table


def half_width(sd: float, n: int) -> float:
    """Half of the interval of the mean of n values with that standard deviation; NaN below two values."""
    return t95(n - 1) * sd / math.sqrt(n) if n > 1 else math.nan


@lru_cache
def t95(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, by bisection of its distribution to ten digits."""
    if degrees < 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, got {degrees}")
    low, high = 1.9, 13.0  # of infinitely many degrees 1.96, of one 12.71
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, degrees) < LEVEL else (low, middle)
    return (low + high) / 2


def _between(t: float, degrees: int) -> float:
    """P(-t < T < t): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for factor in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * factor / (factor + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
