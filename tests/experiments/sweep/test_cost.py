"""What a sweep costs beside its replays: CPU time of all its processes against that of the bare replays, in one run.

Both have two replays going at any time: two cores that share caches cost each other a fifth of their speed. Of each the
least of three rounds counts, as whatever else a machine does only adds.
"""

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from experiments.cells import executor_of, task_of
from experiments.resolve import plan_of
from experiments.settings import Config
from experiments.sweep.arrivals import RememberedArrivals
from experiments.sweep.axes import axes_of_keys
from experiments.sweep.planning import plan_sweep
from sim.simulate import Simulation

GRID = {
    "kv.allocator": ["paged", "orca-max", "orca-pow2", "orca-oracle", "contiguous-oracle-best-fit"],
    "kv.block_size": [1, 8, 16, 32, 64, 128],
    "workload.request_rate": [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4],
}
MOST = 1.3
ROUNDS = 3


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare_replays() -> float:
    """CPU seconds of the replays and their summaries alone, two at a time."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(replayed, (0, 1)))


def replayed(half: int) -> float:
    """Of every second cell, everything else done before."""
    plan, arrivals, total = plan_sweep(Config.of(num_requests=1000), axes_of_keys(GRID)), RememberedArrivals(), 0.0
    assert len(plan.cells) == 240
    for cell in plan.cells[half::2]:
        one = plan_of(Config.model_validate(cell.config), verb="run", writes=False, source=arrivals)
        task = task_of(one, one.cells[0])
        simulation = Simulation(task.spec, task.trace, executor_of(task))
        began = time.process_time()
        simulation.replay()
        assert simulation.run().summary["num_finished"] > 0
        total += time.process_time() - began
    return total


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sweep_of_240_cells_costs_little_more_than_its_replays(tmp_path):
    axes = [word for key, values in GRID.items() for word in ("--axis", f"{key}={','.join(map(str, values))}")]
    words = [sys.executable, "-m", "experiments.cli", "sweep", "--num-requests", "1000", *axes, "--jobs", "2", "-q"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles all modules again: no cost of sweeps
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")
    bare_s, cpu_s = [], []
    for place in range(ROUNDS):
        bare_s.append(bare_replays())
        children = cpu_of_children()
        subprocess.run([*words, "-o", f"out{place}"], cwd=tmp_path, env=env, check=True, stdout=subprocess.DEVNULL)
        cpu_s.append(cpu_of_children() - children)
    told = (
        f"sweep {', '.join(f'{one:.1f}' for one in cpu_s)} s of CPU, bare {', '.join(f'{one:.1f}' for one in bare_s)} s"
    )
    print(f"\n{told}: {min(cpu_s) / min(bare_s):.2f}")  # noqa: T201 - under -s
    assert min(cpu_s) <= MOST * min(bare_s), told
    lines = (tmp_path / "out0/ledger.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["state"] == "done" for line in lines) == 240
    assert len(list((tmp_path / "out0/cells").glob("*/*"))) == 2 * 240


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_plan_of_two_thousand_cells_is_there_within_seconds(tmp_path):
    """Half of what it takes is the estimate, which replays a few cells in small."""
    axes = ("kv.allocator=paged,orca-max", "kv.block_size=1,8,16,32,64", "scheduler.max_num_seqs=lin(16,256,20)")
    words = [word for axis in (*axes, "workload.request_rate=lin(0.5,5,10)") for word in ("--axis", axis)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    children = cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", "sweep", "--num-requests", "1000", *words, "--dry-run"],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    cpu_s = cpu_of_children() - children
    print(f"\n2,000 cells planned in {cpu_s:.1f} s of CPU")  # noqa: T201 - under -s
    assert "2,000 cells: about" in done.stdout.splitlines()[-1]
    assert cpu_s < 12
