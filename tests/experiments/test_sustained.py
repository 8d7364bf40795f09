"""The rate that a system sustains: of the time in which it is full, not of the end in which it empties."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.sustained import FEWEST_STEPS, sustained_rate_per_s
from workloads import Trace


def served(num_places: int, outputs: list[int], step_s: float = 0.01) -> pd.DataFrame:
    """Steps of a server with so many places that gives every running request a token a step; prompts cost nothing."""
    left, running, rows, clock = list(outputs), [], [], 0.0
    while left or running:
        decodes = len(running)
        while left and len(running) < num_places:
            running.append(left.pop(0))
        rows.append({"time_s": clock, "duration_s": step_s, "num_waiting": len(left), "num_decodes": decodes})
        running = [tokens - 1 for tokens in running if tokens > 1]
        clock += step_s
    return pd.DataFrame(rows)


def trace_of(outputs: list[int]) -> Trace:
    return Trace.build([0] * len(outputs), [1] * len(outputs), outputs)


@pytest.mark.parametrize("num_places", [4, 16, 40])
def test_places_by_the_time_that_a_request_holds_one(num_places):
    outputs = np.random.Generator(np.random.Philox(key=1)).integers(20, 60, 400).tolist()
    rate = sustained_rate_per_s(served(num_places, outputs), trace_of(outputs))
    assert rate == pytest.approx(num_places / (np.mean(outputs) * 0.01), rel=0.05)


def test_the_end_in_which_the_pool_empties_does_not_count():
    """One request that takes ten times as long as all others is no reason to think that the others take so long."""
    outputs = [30] * 200
    plain = sustained_rate_per_s(served(10, outputs), trace_of(outputs))
    steps = served(10, outputs)
    tail = pd.DataFrame({"time_s": steps["time_s"].max() + 0.01 * np.arange(1, 3000), "duration_s": 0.01})
    longer = pd.concat([steps, tail.assign(num_waiting=0, num_decodes=1)], ignore_index=True)
    assert sustained_rate_per_s(longer, trace_of(outputs)) == plain
    assert plain > 1.5 * len(outputs) / (longer["duration_s"].sum())


def test_where_hardly_anybody_waits_it_is_requests_by_time():
    outputs = [30] * 20
    steps = served(20, outputs)
    assert (steps["num_waiting"] > 0).sum() < FEWEST_STEPS
    assert sustained_rate_per_s(steps, trace_of(outputs)) == pytest.approx(20 / steps["duration_s"].sum())
