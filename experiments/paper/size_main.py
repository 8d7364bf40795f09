"""`python -m experiments.paper.size_main`: the engine's runs of Fig 18b and of `block-size-engine`, kept in a folder.

Writes `runs.csv`, a row a run as it ends, and `about.json`. `pagelab reproduce fig18b block-size-engine --block-sizes
FOLDER` judges and draws them, anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.host import pinned
from experiments.calibrate.clocks import watched
from experiments.csv_text import to_csv
from experiments.paper import size_runs
from experiments.paper.runs import Lab
from experiments.paper.size_runs import ABOUT_FILE, KV_TOKENS, LOAD, NUM_REQUESTS, RUNS_FILE, Row, measured
from experiments.standalone import ended, say


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 for bad usage, 6 without a device."""
    wanted = _parser().parse_args(argv)
    return ended("block sizes", lambda: run_and_write(wanted))


def run_and_write(wanted: argparse.Namespace) -> None:
    """The file of rows is whole after each run."""
    from experiments.bench.machine import described

    folder: Path = wanted.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        "wanted": {name: value for name, value in vars(wanted).items() if name != "output_dir"},
        "kv_tokens": KV_TOKENS,
        "load": LOAD,
        "machine": described() if size_runs.BACKEND == "gpu" else {},
        "clocks": {},
        "host": {},
    }
    rows: list[Row] = []
    with watched(about["clocks"]), pinned(about["host"]):
        _write_about(folder, about)
        for model in wanted.models:
            for lengths in wanted.lengths:
                for row in measured(Lab(quick=wanted.quick), model, lengths, wanted.num_requests):
                    rows.append(row)
                    (folder / RUNS_FILE).write_text(to_csv(rows), "utf-8")
                    say(f"{model} {lengths} block size {row['block_size']}: {row['mean_normalized_latency_s']:.4f} "
                         f"s a token at {row['asked_rate_per_s']:.2f} requests a second")  # fmt: skip
    _write_about(folder, about)


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    (folder / ABOUT_FILE).write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("block sizes", description="Serve the same requests at every block size.")
    parser.add_argument("--models", nargs="+", default=["opt-13b", "llama-3-8b"], help="[opt-13b llama-3-8b]")
    parser.add_argument("--lengths", nargs="+", default=["sharegpt"], choices=list(NUM_REQUESTS), help="[sharegpt]")
    parser.add_argument("--num-requests", type=int, help=f"{NUM_REQUESTS}, unless given")
    parser.add_argument("--quick", action="store_true", help="fewer block sizes, a third of the requests")
    parser.add_argument("--output-dir", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
