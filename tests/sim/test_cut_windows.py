"""Means of a run that is cut are over the time that was simulated, never over what lies beyond the cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.test_replay_laws import run
from tests.sim.test_saturated import trace_of

US = 1e-6


def unfinished(**spec):
    return run(trace_of(2_000, 2_000), allocator="orca-oracle", max_num_seqs=4, **spec)


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, 900), length=st.integers(1, 4_000), end=st.integers(1_000, 3_000))
def test_a_window_beyond_the_cut_is_the_window_up_to_it(start, length, end):
    beyond = unfinished(window_s=(start * US, (end + length) * US), end_s=end * US)
    up_to = unfinished(window_s=(start * US, end * US), end_s=end * US)
    assert beyond.summary == up_to.summary
    assert all(check.holds for check in beyond.checks)


def test_the_arrivals_of_a_cut_run_end_at_the_cut():
    cut = unfinished(end_s=1_000 * US).summary
    assert (cut["window_start_s"], cut["window_stop_s"]) == (0, pytest.approx(1_000 * US))
    assert cut["output_tok_per_s"] == pytest.approx(unfinished(end_s=2_000 * US).summary["output_tok_per_s"], rel=0.05)


def test_a_window_after_the_cut_measures_nothing():
    found = unfinished(window_s=(2_000 * US, 3_000 * US), end_s=1_000 * US)
    names = ("output_tok_per_s", "request_throughput_per_s", "peak_output_tok_per_s", "mean_num_waiting")
    assert {name: found.summary[name] for name in (*names, "mean_batch_size", "kv_live_frac")} == dict.fromkeys(
        (*names, "mean_batch_size", "kv_live_frac")
    )
    assert all(check.holds for check in found.checks)
