"""What the adapters need a CUDA device for, in one command: do libraries read our pool, rightly, and how fast?

    python -m tests.engine.attention.libraries.gpu_libraries OUT [--compile] [--limit SECONDS]

PAGELAB_FA3_LIBRARY and PAGELAB_FLASH_MLA_LIBRARY name extension libraries, as for the backends. Writes into the folder
OUT: `tests.txt`, what the tests say; `measured/`, the rows of `bench kernel --backend all`; `one_pool.*`, the study
one-pool-many-kernels with those times, where the command line's packages are. `--compile`: also the tests for which
FlashInfer compiles a module. Exit code 0 if everything is right, 6 without a device.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments import exits
from experiments.bench import kernel_main
from experiments.bench.machine import why_no_device

STUDY = "one-pool-many-kernels"
TESTS = ("tests/engine/attention/libraries/test_gpu_libraries.py", "tests/engine/worker/test_gpu_engine_libraries.py")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("gpu_libraries")
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--limit", type=int, default=300)
    words = parser.parse_args(argv)
    if missing := why_no_device():
        print(missing)  # noqa: T201
        return exits.NO_DEVICE
    words.out.mkdir(parents=True, exist_ok=True)
    right = tested(words.out / "tests.txt", "not slow", words.limit)
    code = kernel_main.main(["--backend", "all", "--output-dir", str(words.out / "measured")])
    if find_spec("cyclopts"):
        right &= studied(words.out)
    if words.compile:
        right &= tested(words.out / "compiled.txt", "slow", words.limit)
    return code or int(not right)


def studied(out: Path) -> bool:
    """Whether the study's claims hold on this device; its JSON, figure and numbers go flat into `out`."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.cli", "reproduce", STUDY, "--kernels", str(out / "measured")]
        done = subprocess.run([*command, "--out", folder], check=False, timeout=120)
        for found in (*Path(folder).glob("*.json"), *Path(folder).glob("figures/*")):
            shutil.copy(found, out / f"one_pool{found.suffix}")
    return done.returncode == 0


def tested(log: Path, marks: str, limit_s: int) -> bool:
    """Whether the tests pass in a process that compiles."""
    side_by_side = ["-n", "6"] if find_spec("xdist") and marks != "slow" else []
    options = ["-q", "-rs", "-p", "no:cacheprovider", "-m", marks, *side_by_side]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                command, env={**os.environ, "PAGELAB_GPU": "1"}, stdout=file, stderr=file, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            print(f"{log.name}: not done after {limit_s} s", flush=True)  # noqa: T201
            return False
    print(log.read_text("utf-8")[-4000:], flush=True)  # noqa: T201
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
