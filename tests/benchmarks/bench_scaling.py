"""What must not grow: the cost of a request with the length of the trace, that of a decision with the running set."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from sim.simulate import Run
from tests.benchmarks.measuring import Report, in_turns, replay_of, spec_of, verdict
from workloads import synthetic_trace

FEW, MANY = 16, 256
ROOMY = 1 << 15
"""Blocks for 256 requests of any length: nothing is ever refused for memory."""


def test_per_request_at_100k_and_10k(benchmark: BenchmarkFixture, report: Report) -> None:
    benchmark.group = "scaling: 100k requests"
    large, small = (replay_of(synthetic_trace(num_requests=n), spec_of()) for n in (100_000, 10_000))
    pairs = in_turns(benchmark, large, small, rounds=2)
    report(verdict("scaling: per request, 100k / 10k", pairs.ratios(0.1), 1.3))


@pytest.mark.parametrize("skip", [True, False], ids=["turns", "steps"])
def test_per_decision_at_256_and_16_running(benchmark: BenchmarkFixture, report: Report, skip: bool) -> None:
    """All requests wait from the start, so that the batch is full to the end but for a tail. A decision is a turn of
    the loop: a run of equal steps, or one step where all are taken alone."""
    benchmark.group = f"scaling: {MANY} running, {'skipping' if skip else 'stepping'}"
    trace = synthetic_trace("all-at-once", num_requests=4_000)
    turns: dict[int, int] = {}

    def note(run: Run) -> None:
        limit = run.scheduler.config.max_num_seqs
        assert max(row.num_preemptions for row in run.rows) == 0
        assert 0.8 * limit < run.summary["mean_batch_size"] <= limit
        turns[limit] = run.recorder.num_turns

    many, few = (replay_of(trace, spec_of(ROOMY, limit, skip=skip), note) for limit in (MANY, FEW))
    pairs = in_turns(benchmark, many, few, rounds=3)
    what = "turn" if skip else "step taken alone"
    report(verdict(f"scaling: per {what}, {MANY} / {FEW} running", pairs.ratios(turns[FEW] / turns[MANY]), 3.0))
