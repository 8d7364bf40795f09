"""Whether two runs of one trace decided the same: steps, preemptions, and the pool's state in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from experiments.cells import Outcome

CLOCK = ("time_s", "duration_s")
"""Columns of the steps table that say when, not what."""


class Differences(NamedTuple):
    """Between one run's decisions and another's; all 0 where they are the same."""

    steps: int
    preemptions: int
    requests: int
    """Requests that were preempted another number of times, or that only one run has."""
    state: int
    """Entries of the steps table without its clock; a step that only one run has differs in each column."""
    num_compared: int
    """Entries of the longer table."""

    @property
    def total(self) -> int:
        """Of all four."""
        return self.steps + self.preemptions + self.requests + self.state

    def __str__(self) -> str:
        return (
            f"differing: steps {self.steps}, preemptions {self.preemptions}, requests preempted otherwise "
            f"{self.requests}, entries of the steps table {self.state} of {self.num_compared:,}"
        )


def differences(one: Outcome, other: Outcome) -> Differences:
    """Of two finished runs that recorded their steps. The columns compared are those of `one`, all of which the other
    must have (KeyError)."""
    assert one.summary is not None
    assert other.summary is not None
    columns = [name for name in one.tables["steps"] if name not in CLOCK]
    steps, others = one.tables["steps"][columns], other.tables["steps"][columns]
    preempted = [found.tables["requests"].set_index("request_id")[["num_preemptions"]] for found in (one, other)]
    return Differences(
        abs(len(steps) - len(others)),
        abs(int(one.summary["num_preemptions"]) - int(other.summary["num_preemptions"])),
        _differing(*preempted),
        _differing(steps, others),
        max(len(steps), len(others)) * len(columns),
    )


def _differing(one: pd.DataFrame, other: pd.DataFrame) -> int:
    """Entries that are unequal, matched by row label; a row that one of them lacks is unequal throughout."""
    left, right = one.align(other)
    alone = left.index.difference(one.index).union(right.index.difference(other.index))
    unequal = left.ne(right) & ~(left.isna() & right.isna())
    unequal.loc[alone] = True
    return int(unequal.to_numpy().sum())
