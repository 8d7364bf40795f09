"""Whatever ends a sweep, wherever: finished cells stay as they are, the rest is done when it is resumed, none twice."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.sweep.lock import at_work

AXES = ("--axis", "kv.block_size=8,16,32")


@pytest.fixture
def whole(sweep, tmp_path, cells):
    """What an undisturbed sweep leaves."""
    assert sweep(*AXES, "-o", "undisturbed").code == 0
    return cells(tmp_path / "undisturbed")


def finished(folder: Path) -> dict[str, dict[str, int]]:
    """Times of the files of the cells that the ledger calls done, by cell."""
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_bytes().split(b"\n")[:-1] if ledger.is_file() else []
    done = [entry["cell"] for line in lines if (entry := json.loads(line))["state"] == "done"]
    return {cell: {p.name: p.stat().st_mtime_ns for p in (folder / "cells" / cell).iterdir()} for cell in done}


def disturb(monkeypatch, at: int, act) -> None:
    """Calls `act` at the `at`-th time that anything reaches the disk, and from then on."""
    seen = 0

    def counted(original):
        def call(*args, **more):
            nonlocal seen
            seen += 1
            if seen >= at:
                act()
            return original(*args, **more)

        return call

    for owner, name in ((os, "fsync"), (os, "write"), (Path, "replace"), (Path, "rename"), (Path, "mkdir")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def killed_at(at: int, words) -> int:
    """A copy of this process sweeps and is killed at that write; its wait status."""
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch:
            disturb(patch, at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            code = main(words)
        os._exit(code)
    return os.waitpid(child, 0)[1]


def words_of(tiny_file, *more):
    fixed = ("--kv-tokens", "4000", "--step-model", "linear:0.02,0.0001,0.000001,0.0001", "--max-model-len", "2048")
    return ["sweep", "--trace", str(tiny_file), *fixed, "--jobs", "1", "--quiet", *more]


MOMENTS = (2, 16, 30, 41)
"""Of some fifty times that the sweep of three cells writes."""
EVERY = 500


@pytest.fixture
def gone_on(sweep, tmp_path, whole, cells):
    """Resumes a disturbed sweep and checks the law."""

    def check(name):
        before = finished(tmp_path / name)
        done = sweep(*AXES, "-o", name, "--resume")
        assert done.code == 0, done.err
        assert cells(tmp_path / name) == whole
        after = finished(tmp_path / name)
        assert {cell: after[cell] for cell in before} == before
        assert not list((tmp_path / name).rglob("*.part"))

    return check


@pytest.mark.parametrize("at", MOMENTS)
def test_killed_at_a_write_it_is_resumed_to_the_same_bytes(at, gone_on, tiny_file):
    assert os.WTERMSIG(killed_at(at, words_of(tiny_file, *AXES, "-o", "killed"))) == signal.SIGKILL
    gone_on("killed")


@pytest.mark.slow
def test_killed_at_any_write_it_is_resumed_to_the_same_bytes(gone_on, tiny_file):
    for at in range(1, EVERY):
        status = killed_at(at, words_of(tiny_file, *AXES, "-o", f"killed-{at}"))
        if os.WIFEXITED(status):  # it came to its end before that write
            assert os.WEXITSTATUS(status) == 0
            assert at > max(MOMENTS)
            return
        gone_on(f"killed-{at}")
    pytest.fail(f"{EVERY} writes were not enough")


@pytest.fixture
def on_a_full_disk(sweep, monkeypatch):
    """Sweeps on a disk that is full from the `at`-th write on."""

    def no_space():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the disk")

    def call(at, name):
        with monkeypatch.context() as patch:
            disturb(patch, at, no_space)
            return sweep(*AXES, "-o", name)

    return call


def refuse_unclear(done):
    """It must be told what is the matter and what to do, without a traceback."""
    assert done.code == 3, done.err
    assert "No space left on device" in done.err
    assert "make room, then say: pagelab sweep --resume" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("at", MOMENTS)
def test_a_full_disk_ends_with_a_clear_error_and_a_state_to_go_on_from(at, on_a_full_disk, gone_on):
    refuse_unclear(on_a_full_disk(at, "full"))
    gone_on("full")


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_write_can_be_gone_on_from(on_a_full_disk, gone_on):
    for at in range(1, EVERY):
        done = on_a_full_disk(at, f"full-{at}")
        if done.code == 0:
            assert at > max(MOMENTS)
            return
        refuse_unclear(done)
        gone_on(f"full-{at}")
    pytest.fail(f"{EVERY} writes were not enough")


def test_where_no_file_may_grow_the_error_is_the_systems_own(whole, sweep, tiny_file, tmp_path, cells):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))  # a summary is larger
        os._exit(main(words_of(tiny_file, *AXES, "-o", "small")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not list((tmp_path / "small/cells").iterdir())
    assert sweep(*AXES, "-o", "small", "--resume").code == 0
    assert cells(tmp_path / "small") == whole


def test_resuming_what_is_finished_changes_nothing(sweep, pagelab, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if ".locks" not in path.parts}
    assert pagelab("sweep", "--resume", "-o", "out").code == 0
    assert sweep(*AXES, "-o", "out", "--resume").code == 0
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if ".locks" not in path.parts}
    assert after == before


@pytest.mark.parametrize("name", ["summary.json", "validation.json", "requests.parquet"])
def test_a_truncated_file_of_a_cell_is_redone_and_the_others_are_not(name, sweep, tmp_path, cells):
    words = (*AXES, "--record", "requests", "-o", "out")
    assert sweep(*words).code == 0
    folder = tmp_path / "out"
    whole, times = cells(folder), finished(folder)
    cut = sorted(times)[1]
    path = folder / "cells" / cut / name
    path.write_bytes(path.read_bytes()[:-20])
    done = sweep(*words, "--resume")
    assert done.code == 0
    assert "[1/1]" in done.err
    assert cells(folder) == whole
    after = finished(folder)
    assert all(after[cell] == times[cell] for cell in times if cell != cut)
    assert after[cut] != times[cut]


def test_a_changed_configuration_is_refused_with_the_difference(sweep, pagelab, tiny_file, tmp_path, cells):
    text = (
        f'[workload]\ntrace = "{tiny_file}"\n[kv]\nkv_tokens = 4000\n[model]\nmax_model_len = 2048\n'
        '[sweep.grid]\n"kv.block_size" = [8, 16]\n'
    )
    (tmp_path / "exp.toml").write_text(text)
    words = ("sweep", "-c", "exp.toml", "-o", "out", "--jobs", 1)
    assert pagelab(*words).code == 0
    before = cells(tmp_path / "out")
    (tmp_path / "exp.toml").write_text(text.replace("4000", "5000").replace("[8, 16]", "[8, 32]"))
    done = pagelab(*words, "--resume")
    assert done.code == 2
    assert "kv.kv_tokens: 4000 there, 5000 now" in done.err
    assert "axis kv.block_size: [8, 16] there, [8, 32] now" in done.err
    assert "max_model_len" not in done.err
    assert cells(tmp_path / "out") == before
    stored = tmp_path / "out/config.resolved.toml"
    stored.write_text(stored.read_text().replace("4000", "6000"))
    edited = pagelab("sweep", "--resume", "-o", "out")
    assert edited.code == 2
    assert "kv.kv_tokens: 4000 there, 6000 now" in edited.err


def test_a_changed_trace_is_refused(pagelab, tiny_file, tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_bytes(tiny_file.read_bytes())
    words = ("sweep", "--trace", "mine.csv", "--kv-tokens", "4000", *AXES, "-o", "out", "--jobs", 1)
    assert pagelab(*words).code == 0
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join(lines[:-1]) + "\n")
    done = pagelab(*words, "--resume")
    assert done.code == 2
    assert "a trace or a table of step times has other contents" in done.err


def test_two_resumers_exclude_each_other(sweep, tmp_path):
    assert sweep(*AXES, "-o", "out").code == 0
    with at_work(tmp_path / "out"):
        done = sweep(*AXES, "-o", "out", "--resume")
    assert done.code == 2
    assert f"process {os.getpid()} on" in done.err
    assert sweep(*AXES, "-o", "out", "--resume").code == 0


def test_a_ledger_with_a_torn_line_is_said_and_gone_on_with(sweep, tmp_path, cells):
    assert sweep(*AXES, "-o", "out").code == 0
    whole, ledger = cells(tmp_path / "out"), tmp_path / "out/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-30])
    done = sweep(*AXES, "-o", "out", "--resume")
    assert done.code == 0
    assert "ledger.jsonl:7 is not a line of a ledger" in done.err
    assert cells(tmp_path / "out") == whole


def test_ctrl_c_keeps_what_is_finished(sweep, tmp_path, monkeypatch, whole, cells):
    from experiments.sweep import launchers

    original, seen = launchers.run_job, []

    def run_job(job):
        seen.append(job)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return original(job)

    with monkeypatch.context() as patch:
        patch.setattr(launchers, "run_job", run_job)
        done = sweep(*AXES, "-o", "out")
    assert done.code == 130
    assert "interrupted: 1 of 3 cells are finished and kept; go on with: pagelab sweep --resume -o out" in done.err
    assert sweep(*AXES, "-o", "out", "--resume").code == 0
    assert cells(tmp_path / "out") == whole


def processes_of(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
def test_killed_with_workers_at_work_nothing_is_lost_and_no_worker_stays(tmp_path, cells):
    axes = ("--axis", "kv.block_size=8,16", "--axis", "workload.request_rate=1,2,4")
    words = [sys.executable, "-m", "experiments.cli", "sweep", "--num-requests", "300", *axes, "--jobs", "2"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run([*words, "-o", "whole"], cwd=tmp_path, env=env, check=True, capture_output=True)
    process = subprocess.Popen(
        [*words, "-o", "out"], cwd=tmp_path, env=env, start_new_session=True, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while len(finished(tmp_path / "out")) < 2 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = finished(tmp_path / "out")
    assert 2 <= len(before) < 6
    while processes_of(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(process.pid) == []
    subprocess.run([*words, "-o", "out", "--resume"], cwd=tmp_path, env=env, check=True, capture_output=True)
    assert cells(tmp_path / "out") == cells(tmp_path / "whole")
    after = finished(tmp_path / "out")
    assert {cell: after[cell] for cell in before} == before
    lines = [json.loads(line) for line in (tmp_path / "out/ledger.jsonl").read_text().splitlines()]
    assert sorted(entry["cell"] for entry in lines if entry["state"] == "done") == sorted(after)
