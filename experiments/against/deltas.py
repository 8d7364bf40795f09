"""Differences of metrics between two results, with intervals over repeats, and thresholds that they may not pass."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.figures.columns import resolved
from experiments.figures.intervals import half_width
from sim.lookup import better

if TYPE_CHECKING:
    from experiments.against.matching import Key, Pair

SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_THRESHOLD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Delta:
    """One metric of one configuration: means of both sides, and second - first."""

    key: Key
    metric: str
    first: float | None
    second: float | None
    half: float | None
    """Half the 95 % interval of the difference; None without repeats."""
    runs: tuple[int, int]
    paired: bool
    num_lost: int = 0
    """Runs with the value on one side alone: they are in neither mean of a pair."""

    @property
    def absolute(self) -> float | None:
        """second - first, in the metric's unit."""
        return None if self.first is None or self.second is None else self.second - self.first

    @property
    def relative(self) -> float | None:
        """Of |first|; infinite where the first is 0 and the second is not."""
        if self.absolute is None or self.first is None:
            return None
        if self.first == 0:
            return 0.0 if self.absolute == 0 else math.copysign(math.inf, self.absolute)
        return self.absolute / abs(self.first)

    @property
    def relative_half(self) -> float | None:
        """`half` of |first|."""
        return None if self.half is None or not self.first else self.half / abs(self.first)

    @property
    def verdict(self) -> str:
        """better, worse or same (nothing, or less than the interval); different where no way is better."""
        if self.absolute is None:
            return "unknown"
        if self.absolute == 0 or (self.half is not None and abs(self.absolute) <= self.half):
            return "same"
        way = better(self.metric)
        return "different" if not way else "better" if (self.absolute > 0) is (way == "higher") else "worse"

    def row(self, columns: Sequence[str]) -> dict[str, Any]:
        """Tidy, for JSON and CSV."""
        return {
            **dict(zip(columns, self.key, strict=True)),
            "metric": self.metric,
            "better": better(self.metric) or None,
            "first": self.first,
            "second": self.second,
            "delta": self.absolute,
            "delta_frac": self.relative,
            "delta_frac_ci95": self.relative_half,
            "first_runs": self.runs[0],
            "second_runs": self.runs[1],
            "paired": self.paired,
            "lost_runs": self.num_lost,
            "verdict": self.verdict,
        }


def delta_of(pair: Pair, metric: str) -> Delta:
    """Of the same seeds: the interval of their differences. Of others: that of two samples, with as many degrees of
    freedom as the smaller one has."""
    first, second = (pd.to_numeric(rows[metric], errors="coerce") for rows in (pair.first, pair.second))
    num_lost = int((first.notna() ^ second.notna()).sum()) if pair.paired else 0
    if pair.paired and (first.notna() & second.notna()).any():
        whole = first.notna() & second.notna()
        first, second = first[whole], second[whole]
        half = half_width(float((second - first).std(ddof=1)), len(first)) if len(first) > 1 else None
    else:
        first, second = first.dropna(), second.dropna()
        half = _two_samples(first, second)
    means = [float(side.mean()) if len(side) else None for side in (first, second)]
    return Delta(pair.key, metric, means[0], means[1], half, (len(first), len(second)), pair.paired, num_lost)


def _two_samples(first: pd.Series[float], second: pd.Series[float]) -> float | None:
    least = min(len(first), len(second))
    if least < 2:
        return None
    error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in (first, second)))
    return half_width(error * math.sqrt(least), least)


@dataclass(frozen=True, slots=True)
class Threshold:
    """`output_tok_per_s<-5%`: the comparison fails where the difference is so."""

    text: str
    metric: str
    sign: str
    bound: float
    is_relative: bool

    @classmethod
    def parse(cls, text: str, frame: pd.DataFrame) -> Threshold:
        """ValueError for anything else than METRIC SIGN NUMBER, with % or without, or for an unknown metric."""
        found = _THRESHOLD.fullmatch(text)
        if not found:
            raise ValueError(
                f"--fail-on is METRIC<NUMBER or METRIC<NUMBER%, or > <= >=, as in output_tok_per_s<-5%, got {text!r}"
            )
        name, sign, number, percent = found.groups()
        bound = float(number) / (100 if percent else 1)
        return cls(text.strip(), number_column(name, frame), sign, bound, bool(percent))

    def passed_by(self, delta: Delta) -> bool:
        """Whether the difference is so; one that is not known passes nothing."""
        value = delta.relative if self.is_relative else delta.absolute
        return value is not None and bool(SIGNS[self.sign](value, self.bound))

    @property
    def fails_on_gains(self) -> bool:
        """Whether it is an improvement that it forbids."""
        way = better(self.metric)
        return bool(way) and (self.sign[0] == ">") is (way == "higher")


def number_column(name: str, frame: pd.DataFrame) -> str:
    """The column; ValueError with suggestions if it is not there, or no number."""
    column = resolved(name, frame)
    if not pd.api.types.is_numeric_dtype(frame[column]) or pd.api.types.is_bool_dtype(frame[column]):
        raise ValueError(f"column {column!r} is not a number in every row, so it has no difference")
    return column
