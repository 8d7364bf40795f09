"""Intervals between preemption and resumption: theirs are the sums and counts of the requests' rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.progress import LivelockError
from sim.away import NEVER, Away
from sim.simulate import Run
from tests.sim.cases import play, random_case, random_shared_case


def preempted(run: Run) -> dict[int, tuple[int, int]]:
    """Number and summed length of the intervals, by request; open ones count nothing."""
    away, found = run.recorder.away, dict[int, tuple[int, int]]()
    for row, start, stop in zip(away.requests, away.starts, away.stops(), strict=True):
        count, length = found.get(row, (0, 0))
        found[row] = count + 1, length + (stop - start if stop != NEVER else 0)
    return found


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_intervals_are_those_that_the_rows_sum_up(seed):
    try:
        run = play(random_case(seed)).run
    except LivelockError:
        return
    found = preempted(run)
    for row in run.rows:
        count, length = found.get(row.request_id, (0, 0))
        if run.spec.num_samples == 1:
            assert (row.num_preemptions, row.preempted) == (count, length)
    assert list(run.recorder.away.starts) == sorted(run.recorder.away.starts)


def test_the_table_has_a_row_for_each_and_says_who_never_came_back():
    runs = []
    for seed in range(240):
        try:
            runs.append(play((random_case, random_shared_case)[seed % 2](seed)).run)
        except LivelockError:
            continue
    frames = [run.preemptions() for run in runs]
    assert sum(map(len, frames)) > 50
    assert sum(int(frame["swapped"].sum()) for frame in frames) > 5
    assert sum(int(frame["stop_s"].isna().sum()) for frame in frames) > 0
    for frame in frames:
        assert list(frame.columns) == ["request_id", "start_s", "stop_s", "swapped"]
        closed = frame.dropna()
        assert (closed["stop_s"] >= closed["start_s"]).all()
        assert np.all(np.diff(frame["start_s"]) >= 0)


def test_somebody_who_was_not_away_does_not_come_back():
    class Someone:
        request_id = 3

    away = Away()
    away.come_back(5, Someone())
    away.leave(6, Someone(), swapped=True)
    away.come_back(8, Someone())
    away.come_back(9, Someone())
    assert (list(away.starts), away.stops(), list(away.swapped)) == ([6], [8], [1])
