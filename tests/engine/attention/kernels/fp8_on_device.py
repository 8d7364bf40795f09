"""FP8 on a device in one go: the tests, the case `fp8` of the benchmark, and a search of decode's configurations.

    python -m tests.engine.attention.kernels.fp8_on_device --output-dir FOLDER [--no-tests] [--no-search]

About three minutes on an H200. Writes tests.txt, and summary.csv and machine.json as `bench kernel` does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = "tests/engine/attention/kernels/test_gpu_fp8.py"
SEARCHED = ("gqa 64 x 4k", "gqa 8 x 4k", "gqa 1 x 16k", "gqa 64 x 4k, blocks of 256")


def run_tests(folder: Path, workers: int) -> int:
    """Of TESTS, in processes that compile side by side; the exit code of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:cacheprovider", TESTS]
    environment = os.environ | {"PAGELAB_GPU": "1", "PYTHONPATH": "."}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (folder / "tests.txt").write_text(done.stdout + done.stderr, "utf-8")
    say("\n".join((done.stdout + done.stderr).splitlines()[-25:]))
    return done.returncode


def measured() -> Any:
    """The case `fp8`, by the rules."""
    from experiments.bench.session import Wanted, measure

    return measure(Wanted(("fp8",), peers=()), say)


def search(done: Any) -> None:
    """Adds every configuration of the grid on some shapes to the rows."""
    from experiments.bench.bench import Bench
    from experiments.bench.cases import shapes_of
    from experiments.bench.inputs import Arena
    from experiments.bench.ours import Paged, grid
    from experiments.bench.session import line_of
    from experiments.bench.shapes import FP8
    from experiments.bench.timing import CudaStopwatch

    note = {name: done.machine[name] for name in ("device", "torch", "triton")}
    bench = Bench(Arena("cuda", 0), CudaStopwatch(), note=note)
    for shape in shapes_of("fp8"):
        if shape.dtype == FP8 and shape.label in SEARCHED:
            for row in bench.rows(shape, [Paged(config=config) for config in grid(shape)]):
                done.rows.append(row)
                say(line_of(row))


def say(text: str) -> None:
    """At once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """1 if a test failed or a kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--no-search", action="store_true")
    parser.add_argument("--workers", type=int, default=8)
    words = parser.parse_args()
    words.output_dir.mkdir(parents=True, exist_ok=True)
    from experiments.bench.kernel_main import report, write

    began = time.perf_counter()
    done = measured()  # first, while nobody else is on the device
    write(done, words.output_dir)
    if not words.no_search:
        search(done)
        write(done, words.output_dir)
    say("\n".join(report(done)))
    say(f"measured in {time.perf_counter() - began:.0f} s")
    failed = 0 if words.no_tests else run_tests(words.output_dir, words.workers)
    wrong = [row for row in done.rows if row["status"] != "ok"]
    say(f"{len(done.rows)} rows, {len(wrong)} not ok, tests exit {failed}, {time.perf_counter() - began:.0f} s in all")
    return int(bool(failed or wrong or done.broken))


if __name__ == "__main__":
    sys.exit(main())
