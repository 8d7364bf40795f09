"""A million requests over eight replicas: what a request costs beside one replica with an eighth of them."""

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
from dataclasses import replace
import pandas
from sim.cost import parse_step_model
from sim.cost_executor import CostExecutor
from sim.fleet_simulation import Split, simulate_fleet
from sim.router import FleetSpec
from sim.simulate import simulate
from tests.benchmarks.measuring import STEP_MODEL, spec_of
from workloads import synthetic_trace

count, replicas, router = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
trace = synthetic_trace("poisson", "sharegpt", count, seed=0, rate_per_s=1.0 * replicas)
spec = replace(spec_of(), fleet=FleetSpec(replicas, router))
executor = lambda allocator: CostExecutor(parse_step_model(STEP_MODEL))
start = time.process_time()
if replicas == 1:
    run = simulate(spec, trace, executor)
elif router == "round-robin":
    split = Split(spec, trace)
    run = split.join([share.replay(spec, executor) for share in split.shares])
else:
    run = simulate_fleet(spec, trace, executor)
summary = run.summary
seconds = time.process_time() - start
print(json.dumps({
    "us_per_request": 1e6 * seconds / count,
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "finished": summary["num_finished"],
    "broken": [check.name for check in run.checks if not check.holds],
}))
"""


def measured(count: int, replicas: int, router: str = "round-robin") -> dict[str, Any]:
    """In a process of its own, on one thread; CPU time from the trace to the summary."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(count), str(replicas), router],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["finished"], found["broken"]) == (count, [])
    return found


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("router,times", [("round-robin", 1.5), ("least-loaded", 2.5)])
def test_a_million_requests_over_eight_replicas_cost_little_more_than_an_eighth_on_one(router, times):
    alone, fleet = measured(125_000, 1), measured(1_000_000, 8, router)
    print(f"\n{router}: {fleet} beside {alone}")  # noqa: T201 - the numbers of the run, under -s

    assert fleet["us_per_request"] < times * alone["us_per_request"]
    assert fleet["peak_bytes"] < 1.5e9
