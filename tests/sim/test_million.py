"""A million requests in one replay: within a gigabyte, and per request as fast as ten thousand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASURE = """
import json, resource, sys, time
import pandas
from sim.cost import parse_step_model
from sim.cost_executor import CostExecutor
from sim.simulate import Simulation
from tests.benchmarks.measuring import STEP_MODEL, spec_of
from workloads import synthetic_trace

count = int(sys.argv[1])
trace = synthetic_trace("poisson", "sharegpt", count, seed=0, rate_per_s=1.0)
simulation = Simulation(spec_of(), trace, CostExecutor(parse_step_model(STEP_MODEL)))
start = time.process_time()
simulation.replay()
run = simulation.run()
summary = run.summary
seconds = time.process_time() - start
tables = len(run.requests()), len(run.timeline())
print(json.dumps({
    "us_per_request": 1e6 * seconds / count,
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "finished": summary["num_finished"],
    "broken": [check.name for check in run.checks if not check.holds],
    "tables": tables,
}))
"""


def measured(count: int) -> dict[str, Any]:
    """In a process of its own, on one thread."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(count)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["finished"], found["broken"], found["tables"][0]) == (count, [], count)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_million_requests_fit_a_gigabyte_and_cost_what_ten_thousand_do():
    few = min((measured(10_000) for _ in range(3)), key=lambda found: found["us_per_request"])
    many = measured(1_000_000)

    assert many["peak_bytes"] < 1e9
    assert many["us_per_request"] < 1.3 * few["us_per_request"], (many, few)


def test_memory_grows_by_less_than_a_kilobyte_a_request():
    few, many = measured(2_000), measured(12_000)

    assert (many["peak_bytes"] - few["peak_bytes"]) / 10_000 < 1_000
