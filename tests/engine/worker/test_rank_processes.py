"""Processes of ranks end when rank 0 does, whatever way it does, and a verb says what happened by its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine computes on torch tensors")

from experiments import exits
from experiments.bench.ranks_checks import _ranks_of
from tests.engine.worker.tiny import CONFIG

pytestmark = pytest.mark.slow

GENERATE = """
from experiments.cli import main
if __name__ == "__main__":
    words = "--token-ids --backend cpu --weights-seed 1 --max-num-seqs 4 --block-size 4 --num-blocks 20".split()
    raise SystemExit(main(["generate", "-m", {folder!r}, "1,2,3", *words, "--tensor-parallel-size", "2"]))
"""
LEFT_OPEN = """
from engine.llm import LLM
if __name__ == "__main__":
    llm = LLM({folder!r}, tensor_parallel_size=2, weights_seed=1, max_num_seqs=4, block_size=4, num_blocks=20)
    print(len(llm.generate([1, 2, 3])[0].outputs[0].token_ids), llm.engine.peers.pids[0], flush=True)
    {then}
"""
UNGUARDED = """
from engine.llm import LLM
LLM({folder!r}, tensor_parallel_size=2, weights_seed=1)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def start(tmp_path, code):
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.Popen([sys.executable, script], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def gone(pid, within_s=10):
    end = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_a_verb_whose_rank_is_killed_says_which_and_ends_with_exit_code_3(folder):
    words = ["--model", folder, "--device", "cpu", "--num-requests", "4", "--input-len", "9", "--output-len", "50"]
    words += ["--num-runs", "500", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"]
    command = [sys.executable, "-m", "experiments.bench.engine_main", *words, "--tensor-parallel-size", "2"]
    process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stderr.readline().startswith("run 0:")
    (rank,) = _ranks_of(process.pid)
    subprocess.run(["kill", "-9", str(rank)], check=True)
    _, said = process.communicate(timeout=60)
    assert process.returncode == exits.FAILED_CELLS
    assert f"rank 1 of 2 (process {rank}) was killed by SIGKILL" in said
    assert "Traceback" not in said


def test_generate_over_two_ranks_ends_well(folder, tmp_path):
    process = start(tmp_path, GENERATE.format(folder=folder))
    out, said = process.communicate(timeout=60)
    assert process.returncode == exits.OK, said
    assert out.startswith("[0.0] (length, 61 tokens")


def test_an_engine_that_nobody_closes_ends_its_ranks_at_exit(folder, tmp_path):
    process = start(tmp_path, LEFT_OPEN.format(folder=folder, then="pass"))
    out, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert gone(int(out.split()[1]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_rank_0(folder, tmp_path, number):
    process = start(tmp_path, LEFT_OPEN.format(folder=folder, then="import time; time.sleep(600)"))
    rank = int(process.stdout.readline().split()[1])
    assert not gone(rank, 0)
    process.send_signal(number)
    process.wait(10)
    assert gone(rank)


def test_a_script_without_a_guard_is_told_what_it_lacks(folder, tmp_path):
    process = start(tmp_path, UNGUARDED.format(folder=folder))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1 of 2" in said
    assert "if __name__ == '__main__'" in said
