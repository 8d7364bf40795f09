"""Workloads of the benchmarks, and the lines under their tables.

PAGELAB_WORKLOADS names the folder of the 10k files; without it, and without `../shared/workloads` beside the
repository, synthetic stand-ins of the same shape take their place and say so in the group's name.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.measuring import LINES, MAX_MODEL_LEN, Report, Workload
from workloads import Trace, load_trace, synthetic_trace
from workloads.arrivals import gamma
from workloads.lengths import quantile_grid

SIBLING = Path(__file__).resolve().parents[2].parent / "shared" / "workloads"
PERCENTS = (0, 5, 25, 50, 75, 95, 99, 100)
CONVERSATION_PROMPT = (2, 180, 400, 1030, 1200, 4050, 4060, 4070)
CONVERSATION_OUTPUT = (7, 38, 80, 136, 396, 461, 611, 1000)


def from_file(stem: str) -> Trace | None:
    """The file of that name, if it is there."""
    folder = Path(os.environ.get("PAGELAB_WORKLOADS") or SIBLING)
    path = folder / f"{stem}.csv.gz"
    return load_trace(path).trace if path.is_file() else None


def conversation_like(num_requests: int) -> Trace:
    """Long prompts and short answers, in and out together at most the model's length."""
    prompt = quantile_grid(num_requests, PERCENTS, CONVERSATION_PROMPT, seed=1)
    output = quantile_grid(num_requests, PERCENTS, CONVERSATION_OUTPUT, seed=2)
    output = np.minimum(output, MAX_MODEL_LEN - prompt)
    return Trace.build(gamma(5.6, 1.07, num_requests, seed=0), prompt, output, name="conversation-like")


@pytest.fixture(scope="session")
def sharegpt() -> Workload:
    trace = from_file("sharegpt_like_q4_10k")
    if trace is None:
        return Workload("sharegpt (stand-in)", synthetic_trace(num_requests=10_000), None)
    return Workload("sharegpt", trace, (2_467_628_520_636_000, 171_577, 0))


@pytest.fixture(scope="session")
def azure() -> Workload:
    trace = from_file("azure_conv_10k")
    if trace is None:
        return Workload("azure (stand-in)", conversation_like(10_000), None)
    return Workload("azure", trace, (2_300_588_154_786_000, 34_186, 13))


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a line to those printed at the end."""
    return request.config.stash.setdefault(LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(LINES, [])
    if lines:
        terminalreporter.section("in short")
        for line in lines:
            terminalreporter.write_line(line)
