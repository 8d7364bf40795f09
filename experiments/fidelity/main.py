"""`python -m experiments.fidelity.main`: the same traces on the engine and on the simulator, with a frozen calibration.

Writes `runs.csv`, `fidelity.json` and the engine's `steps-*.csv.gz` into the output folder. `pagelab reproduce
sim_vs_gpu --fidelity FOLDER` judges them, anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from experiments.bench.host import pinned
from experiments.calibrate.clocks import watched
from experiments.csv_text import to_csv
from experiments.fidelity.pairs import Wanted, measured
from experiments.fidelity.stored import ABOUT_FILE, RUNS_FILE
from experiments.standalone import ended, say
from sim.calibrated import read_calibration

LISTS: Final = {"allocators": str, "loads": float}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 for bad usage, 6 without a device."""
    words = vars(_parser().parse_args(argv))
    folder, calibration = words.pop("output_dir"), words.pop("calibration")
    return ended("fidelity", lambda: run_and_write(Wanted(**words), calibration, folder))


def run_and_write(wanted: Wanted, calibration: Path, folder: Path) -> None:
    """Rows are on disk as they come: the calibration's hash first, then a table that grows by a run."""
    from experiments.bench.machine import described

    folder.mkdir(parents=True, exist_ok=True)
    read_calibration(calibration)
    about: dict[str, Any] = {
        "wanted": asdict(wanted),
        "calibration": calibration.name,
        "calibration_sha256": hashlib.sha256(calibration.read_bytes()).hexdigest(),
        "machine": described() if wanted.backend == "gpu" else {},
        "clocks": {},
        "host": {},
    }
    _write_about(folder, about)
    rows: list[dict[str, Any]] = []
    with watched(about["clocks"]), pinned(about["host"]):
        for done in measured(wanted, calibration, say):
            rows.append(done.row)
            (folder / RUNS_FILE).write_text(to_csv(rows), "utf-8")
            if done.steps is not None:
                name = f"steps-{done.row['allocator']}-{done.row['load']}.csv.gz"
                done.steps.to_csv(folder / name, index=False, compression={"method": "gzip", "mtime": 0})
    _write_about(folder, about)


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    (folder / ABOUT_FILE).write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fidelity", description="Hold the simulator against the engine.")
    for one in fields(Wanted):
        flag, kind = "--" + one.name.replace("_", "-"), {"int": int, "float": float}.get(str(one.type), str)
        several = {"nargs": "+", "type": LISTS[one.name]} if one.name in LISTS else {"type": kind}
        parser.add_argument(flag, default=one.default, help=f"[{one.default}]", **several)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
