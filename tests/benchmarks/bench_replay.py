"""A whole replay with all metrics, against the yardstick on the same trace: CPU seconds, in turns."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.measuring import (
    Report,
    Workload,
    in_turns,
    pedantic,
    replay_of,
    spec_of,
    timed,
    verdict,
    yardstick_of,
)

LIMIT, AIM = 3.0, 1.5
ROUNDS = 5


@pytest.fixture(params=["sharegpt", "azure"])
def workload(request: pytest.FixtureRequest) -> Workload:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Workload)
    return found


def test_yardstick(benchmark: BenchmarkFixture, workload: Workload) -> None:
    work = yardstick_of(workload)
    timed(work)
    benchmark.group = f"replay {workload.name}"
    work.check(pedantic(benchmark, lambda go: go(), lambda: ((work.prepare(),), {}), ROUNDS))


def test_pagelab(benchmark: BenchmarkFixture, workload: Workload, report: Report) -> None:
    replay, yardstick = replay_of(workload.trace, spec_of()), yardstick_of(workload)
    timed(replay)
    benchmark.group = f"replay {workload.name}"
    pairs = in_turns(benchmark, replay, yardstick, rounds=ROUNDS)
    report(verdict(f"replay {workload.name}: pagelab / yardstick", pairs.ratios(), LIMIT, AIM))
