"""Any order, any number of processes, any sharding, any launcher: the same bytes."""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.exits import UsageError
from experiments.sweep.axes import axes_of_keys
from experiments.sweep.execution import execute
from experiments.sweep.folder import SweepFolder
from experiments.sweep.job import Job, job_of, run_job
from experiments.sweep.launchers import LocalLauncher
from experiments.sweep.planning import plan_sweep
from experiments.sweep.unite import FolderKeeper

GRID = {"kv.allocator": ["paged", "orca-max"], "kv.block_size": [8, 16], "scheduler.max_num_seqs": [2, 64]}
AXES = [word for key, values in GRID.items() for word in ("--axis", f"{key}={','.join(map(str, values))}")]
TABLES = "requests,timeline"


@pytest.fixture
def whole(sweep, tmp_path, cells):
    """What one process leaves that takes one cell after the other."""
    assert sweep(*AXES, "-o", "serial", "--record", TABLES).code == 0
    return cells(tmp_path / "serial")


class Dealt:
    """A launcher that runs the jobs in an order of its own."""

    def __init__(self, seed):
        self._seed = seed

    def results(self, jobs, started):
        mixed = list(jobs)
        random.Random(self._seed).shuffle(mixed)
        for job in mixed:
            started(job)
        for job in random.Random(self._seed + 1).sample(mixed, len(mixed)):
            yield run_job(job)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 4))
def test_any_order_and_any_sharding_give_the_same_bytes(seed, parts, whole, sweep, base, tmp_path, cells):
    """Shards in a random order, each with its cells in a random order; resuming unites them."""
    shutil.rmtree(tmp_path / "dealt", ignore_errors=True)
    (tmp_path / "dealt").mkdir()
    plan = plan_sweep(base, axes_of_keys(GRID))
    tables = TABLES.split(",")
    for first in random.Random(seed).sample(range(parts), parts):
        place = SweepFolder(tmp_path / "dealt", (first + 1, parts))
        place.begin(plan, tables, overwrite=False)
        jobs = [job_of(cell, tables) for cell in plan.cells[first::parts]]
        execute(jobs, Dealt(seed), FolderKeeper(place))
    assert sweep(*AXES, "-o", "dealt", "--record", TABLES, "--resume").code == 0
    assert cells(tmp_path / "dealt") == whole


def test_shards_in_one_folder_or_in_copies_are_united_by_resuming(whole, sweep, pagelab, tmp_path, cells):
    words = (*AXES, "--record", TABLES)
    assert sweep(*words, "-o", "one", "--shard", "1/2").code == 0
    assert not (tmp_path / "one/summary.csv").exists()
    last = sweep(*words, "-o", "one", "--shard", "2/2")
    assert last.code == 0
    assert cells(tmp_path / "one") == whole  # the last one finds all the others
    assert sweep(*words, "-o", "other", "--shard", "1/2").code == 0
    assert sweep(*words, "-o", "another", "--shard", "2/2").code == 0
    shutil.copytree(tmp_path / "another", tmp_path / "other", dirs_exist_ok=True)
    done = pagelab("sweep", "--resume", "-o", "other")
    assert done.code == 0
    assert "[1/" not in done.err
    assert cells(tmp_path / "other") == whole


def test_a_shard_of_another_sweep_is_refused(sweep, tmp_path):
    assert sweep(*AXES, "-o", "one", "--shard", "1/2").code == 0
    done = sweep("--axis", "kv.block_size=8,32", "-o", "one", "--shard", "2/2")
    assert done.code == 2
    assert "axis kv.block_size: [8, 16] there, [8, 32] now" in done.err
    assert not (tmp_path / "one/shards/2-of-2.jsonl").exists()
    assert sweep(*AXES, "-o", "one", "--shard", "2/2").code == 0


def test_the_order_of_running_does_not_show(whole, sweep, tmp_path, cells):
    done = sweep(*AXES, "-o", "mixed", "--record", TABLES, "--shuffle")
    assert done.code == 0
    assert cells(tmp_path / "mixed") == whole
    first = done.err.index("[1/8]")
    assert done.err[first:].splitlines()[0].split(": ")[0] != "[1/8] kv.allocator=paged kv.block_size=8 "


def test_the_order_of_the_axes_changes_no_cell(whole, sweep, tmp_path, cells):
    back = [
        word for key, values in reversed(GRID.items()) for word in ("--axis", f"{key}={','.join(map(str, values))}")
    ]
    assert sweep(*back, "-o", "back", "--record", TABLES).code == 0
    found = cells(tmp_path / "back")
    assert {name for name in found if found[name] != whole[name]} == {"summary.csv", "plan.csv"}  # columns and rows
    assert found.keys() == whole.keys()
    done = sweep(*back, "-o", "serial", "--record", TABLES, "--resume")
    assert done.code == 2
    assert 'axes: ["kv.allocator", "kv.block_size", "scheduler.max_num_seqs"] there' in done.err


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [2, 4])
def test_several_processes_give_what_one_gives_in_any_order(jobs, whole, sweep, tmp_path, cells):
    assert sweep(*AXES, "-o", "many", "--record", TABLES, "--shuffle", jobs=jobs).code == 0
    assert cells(tmp_path / "many") == whole


KILLS = """
import os, signal
from engine.core.registry import make_allocator

class Kills:
    def __init__(self, pool):
        self._inner = make_allocator("paged", pool)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def admit(self, *args, **more):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_process_that_dies_takes_its_own_cell_with_it_and_no_other(sweep, tmp_path):
    (tmp_path / "pools_that_kill.py").write_text(KILLS)
    words = ("--axis", "kv.allocator=paged,pools_that_kill:Kills", "--axis", "kv.block_size=8,16,32")
    done = sweep(*words, "-o", "out", jobs=2)
    assert done.code == 3
    assert done.err.count("the process that ran it died") == 3
    again = sweep(*words, "-o", "out", "--resume", jobs=2)
    assert (again.code, again.err.count("the process that ran it died")) == (3, 3)
    assert len((tmp_path / "out/summary.csv").read_text().splitlines()) == 1 + 3


def test_a_job_that_does_not_fit_its_plan_is_a_failed_cell(base):
    [cell, _] = plan_sweep(base, axes_of_keys({"kv.block_size": [8, 16]})).cells
    other = Job(cell.name, "0" * 64, cell.config)
    [result] = LocalLauncher(1).results([other], lambda _: None)
    assert "in the plan" in result.error
    assert list(result.files) == ["error.txt"]


def test_a_job_runs_in_any_folder(base, tiny_file, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "near.csv").write_bytes(tiny_file.read_bytes())
    monkeypatch.chdir(tmp_path)
    [cell, _] = plan_sweep(base.with_(trace="near.csv"), axes_of_keys({"kv.block_size": [8, 16]})).cells
    job = job_of(cell, ())
    here = run_job(job)
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = run_job(job)
    assert here.error == there.error == ""
    assert here.files == there.files


def test_a_trace_that_has_gone_is_a_failed_cell(base, tiny_file, tmp_path):
    copy = tmp_path / "gone.csv"
    copy.write_bytes(tiny_file.read_bytes())
    [cell, _] = plan_sweep(base.with_(trace=str(copy)), axes_of_keys({"kv.block_size": [8, 16]})).cells
    copy.unlink()
    assert "gone.csv" in run_job(job_of(cell, ())).error


def test_a_cell_without_tables_needs_no_pandas(tmp_path):
    code = (
        "import sys\nfrom experiments.settings import Config\nfrom experiments.sweep.axes import axes_of_keys\n"
        "from experiments.sweep.planning import plan_sweep\nfrom experiments.sweep.job import job_of, run_job\n"
        "base = Config.of(num_requests=5)\n"
        "plan = plan_sweep(base, axes_of_keys({'kv.allocator': ['paged', 'orca-max']}))\n"
        "results = [run_job(job_of(cell, ())) for cell in plan.cells]\n"
        "assert not any(result.error for result in results), results\n"
        "print(sorted({'pandas', 'pyarrow', 'matplotlib'} & sys.modules.keys()))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("launcher,package", [("ray", "ray"), ("slurm", "submitit")])
def test_a_launcher_whose_package_is_missing_says_what_to_install(launcher, package, sweep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = sweep("--axis", "kv.block_size=8,16", "-o", "out", "--launcher", launcher)
    assert done.code == 6
    assert f"pip install -e '.[{launcher}]'" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
@pytest.mark.slow
class TestSlurm:
    """Through submitit's local executor: the same jobs, as processes here."""

    def test_its_jobs_give_the_same_bytes(self, whole, sweep, tmp_path, cells):
        words = ("-o", "slurm", "--record", TABLES, "--launcher", "slurm", "--address", "local")
        done = sweep(*AXES, *words)
        assert done.code == 0, done.err
        assert cells(tmp_path / "slurm") == whole

    def test_a_job_that_dies_loses_the_cell_that_it_was_at(self, sweep, tmp_path):
        (tmp_path / "pools_that_kill.py").write_text(KILLS)
        words = ("--axis", "kv.allocator=paged,pools_that_kill:Kills", "--axis", "kv.block_size=8,16")
        done = sweep(*words, "-o", "out", "--launcher", "slurm", "--address", "local")
        assert done.code == 3
        assert done.err.count("ended without it") == 2
        assert len((tmp_path / "out/summary.csv").read_text().splitlines()) == 1 + 2

    def test_without_slurm_it_says_what_else_there_is(self, sweep, monkeypatch):
        monkeypatch.setenv("PATH", "")
        done = sweep("--axis", "kv.block_size=8,16", "-o", "out", "--launcher", "slurm")
        assert done.code == 6
        assert "--address local" in done.err


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.slow
class TestRay:
    def test_a_local_cluster_gives_the_same_bytes(self, whole, sweep, tmp_path, cells):
        done = sweep(*AXES, "-o", "ray", "--record", TABLES, "--launcher", "ray", jobs=2)
        assert done.code == 0, done.err
        assert cells(tmp_path / "ray") == whole

    def test_cells_on_a_gpu_ask_for_one(self, base):
        from experiments.sweep.ray_launcher import needs_of

        [cell, _] = plan_sweep(base, axes_of_keys({"kv.block_size": [8, 16]})).cells
        job = job_of(cell, ())
        assert needs_of(job) == {"num_cpus": 1, "num_gpus": 0}
        assert needs_of(Job(job.name, job.key, job.config, on_gpu=True)) == {"num_cpus": 1, "num_gpus": 1}

    def test_a_task_that_dies_is_a_failed_cell(self, sweep, tmp_path):
        (tmp_path / "pools_that_kill.py").write_text(KILLS)
        done = sweep("--axis", "kv.allocator=paged,pools_that_kill:Kills", "-o", "out", "--launcher", "ray")
        assert done.code == 3
        assert "kv.allocator=pools_that_kill:Kills repeat 0: failed: " in done.err
        assert len((tmp_path / "out/summary.csv").read_text().splitlines()) == 1 + 1


def test_gpu_cells_are_one_by_one_here(base, monkeypatch):
    from experiments.sweep import request
    from experiments.sweep.flags import SweepFlags

    real = base.with_(backend="gpu", model="llama-3.2-1b", step_model=None)
    plan = plan_sweep(real, axes_of_keys({"kv.block_size": [16, 32]}))
    assert all(job_of(cell, ()).on_gpu for cell in plan.cells)
    asked = []
    monkeypatch.setattr(request, "need_device", asked.append)
    assert request.launcher_of(SweepFlags(), plan, Path("nowhere")) == LocalLauncher(1)
    assert asked == ["gpu"]
    with pytest.raises(UsageError, match="runs its cells one by one"):
        request.launcher_of(SweepFlags(jobs=2), plan, Path("nowhere"))
