"""pagelab beside another simulator on the same trace in the same minute: CPU seconds of both loops, and the ratio.

    python -m tests.benchmarks.beside_peers --vidur DIR [--vidur-python DIR/.venv/bin/python] TRACE ...

DIR is a checkout of microsoft/vidur with its profiling data; its packages live in an environment of its own, which
pagelab never imports. Both replay the requests of TRACE (CSV arrived_at, num_prefill_tokens, num_decode_tokens) on one
replica, in rounds by turns: what else runs on the machine slows both. Vidur's first run on a machine trains its
predictors; that, imports and set-up are not in the time. pagelab's step times are the linear fit of Vidur's own, so
that both take about as many steps; its metrics and checks are on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sim.simulate import Run
from tests.benchmarks.measuring import BLOCK_SIZE, MAX_MODEL_LEN, NUM_BLOCKS, replay_of, spec_of, timed
from workloads import load_trace

MODEL = "meta-llama/Llama-2-7b-hf"
PROFILES = (
    f"data/profiling/compute/a100/{MODEL}/mlp.csv",
    f"data/profiling/compute/a100/{MODEL}/attention.csv",
    "data/profiling/network/a100_pairwise_nvlink/all_reduce.csv",
)
MUST = {"azure_conv_10k": 9.0, "sharegpt_like_q4_10k": 30.0}
AIM = {"azure_conv_10k": 20.0, "sharegpt_like_q4_10k": 50.0}
"""How many times Vidur's CPU seconds are ours."""
FOREST = "random_forrest_execution_time_predictor_config"
DRIVER = """
import json, os, sys, time
from vidur.config import SimulationConfig
from vidur.simulator import Simulator
from vidur.utils.random import set_seeds
config = SimulationConfig.create_from_cli_args()
set_seeds(config.seed)
simulator = Simulator(config)
start = time.process_time()
simulator.run()
seconds = time.process_time() - start
print("RESULT " + json.dumps({"cpu_s": seconds, "end_s": simulator._time}), flush=True)
os._exit(0)  # its figures need a browser
"""


def say(text: str) -> None:
    """A line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Peer(NamedTuple):
    """Where Vidur is, and the interpreter that has its packages."""

    root: Path
    python: Path


def missing(peer: Peer) -> str:
    """Why it cannot be run, in a line; empty if it can."""
    if not (peer.root / "vidur" / "simulator.py").is_file():
        return f"{peer.root} is no checkout of microsoft/vidur (no vidur/simulator.py): say --vidur DIR"
    for name in PROFILES:
        if not (peer.root / name).is_file() or not (peer.root / name).stat().st_size:
            return f"{peer.root / name} is missing: fetch vidur with its data"
    if not peer.python.is_file():
        return f"{peer.python} is not there: make an environment from {peer.root}/requirements.txt, say --vidur-python"
    tried = subprocess.run(
        [peer.python, "-c", "import vidur.simulator"],
        cwd=peer.root,
        env=environment(peer),
        capture_output=True,
        text=True,
    )
    return f"vidur cannot be imported: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else ""


def environment(peer: Peer) -> dict[str, str]:
    """One thread, nothing sent anywhere."""
    return os.environ | {"PYTHONPATH": str(peer.root), "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}


def command(peer: Peer, trace: Path, output: Path) -> list[str]:
    """Vidur on the trace: one A100 with Llama-2-7B, its `vllm` scheduler, pool and limits as ours, pictures off."""
    options = {
        "replica_config_device": "a100",
        "replica_config_model_name": MODEL,
        "cluster_config_num_replicas": 1,
        "request_generator_config_type": "trace_replay",
        "trace_request_generator_config_trace_file": trace,
        "trace_request_generator_config_max_tokens": MAX_MODEL_LEN,
        "replica_scheduler_config_type": "vllm",
        "vllm_scheduler_config_batch_size_cap": 256,
        "vllm_scheduler_config_max_tokens_in_batch": MAX_MODEL_LEN,
        "vllm_scheduler_config_block_size": BLOCK_SIZE,
        "vllm_scheduler_config_num_blocks": NUM_BLOCKS,
        f"{FOREST}_prediction_max_prefill_chunk_size": MAX_MODEL_LEN,
        f"{FOREST}_prediction_max_batch_size": 256,
        f"{FOREST}_prediction_max_tokens_per_request": MAX_MODEL_LEN,
        f"{FOREST}_num_estimators": 50,  # decides the training alone: the loop reads predictions from a table
        f"{FOREST}_max_depth": 16,
        f"{FOREST}_min_samples_split": 2,
        f"{FOREST}_k_fold_cv_splits": 2,
        "metrics_config_output_dir": output,
    }
    words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
    return [str(peer.python), "-c", DRIVER, *words, *(f"--no-metrics_config_{each}" for each in QUIET)]


QUIET = ("enable_chrome_trace", "store_plots", "write_json_trace")


def vidur_s(peer: Peer, trace: Path, output: Path) -> dict[str, Any]:
    """CPU seconds of its event loop, and its simulated end."""
    done = subprocess.run(
        command(peer, trace, output), cwd=peer.root, env=environment(peer), capture_output=True, text=True
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise RuntimeError(f"vidur ended without a result: {done.stderr.strip()[-800:]}")
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def beside(peer: Peer, path: Path, rounds: int) -> bool:
    """Prints the ratio on one trace; whether it is what it must be, where anything must."""
    ends: list[float] = []

    def note(run: Run) -> None:
        ends.append(run.makespan / 1e12)

    work = replay_of(load_trace(path, "vidur").trace, spec_of(), note)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.csv"
        plain.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        timed(work)
        vidur_s(peer, plain, Path(folder))  # trains, or finds what it trained before
        pairs = [(vidur_s(peer, plain, Path(folder)), timed(work)) for _ in range(rounds)]
    theirs, ours = [each["cpu_s"] for each, _ in pairs], [seconds for _, seconds in pairs]
    name = path.name.split(".")[0]
    best, middle = min(theirs) / min(ours), median(a / b for a, b in zip(theirs, ours, strict=True))
    must, aim = MUST.get(name), AIM.get(name)
    wanted = "" if must is None else f" (must {must:g}x, aim {aim:g}x): {'ok' if best >= must else 'TOO SLOW'}"
    say(
        f"{name}: vidur {min(theirs):.2f} s, pagelab {min(ours):.3f} s: {best:.1f}x, median of pairs {middle:.1f}x"
        f"{wanted}; simulated ends {pairs[0][0]['end_s']:.1f} and {ends[0]:.1f} s"
    )
    return must is None or best >= must


def main(words: Sequence[str] | None = None) -> int:
    """0, 1 where a ratio is too small, 3 where the peer is not there."""
    parser = argparse.ArgumentParser(description="pagelab beside Vidur on the same traces")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--vidur", type=Path, default=Path(os.environ.get("PAGELAB_VIDUR", "vidur")))
    parser.add_argument("--vidur-python", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(words)
    root = given.vidur.resolve()
    peer = Peer(root, given.vidur_python or root / ".venv" / "bin" / "python")
    if why := missing(peer):
        say(f"not measured: {why}")
        return 3
    good = [beside(peer, path, given.rounds) for path in given.traces]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
