"""What shared prefixes need a CUDA device for, in one command: are they right, and how fast by configuration?

    python -m tests.engine.attention.kernels.gpu_shared_prefix OUT [FA3_LIBRARY]

Writes into the folder OUT: `tests.txt`, what the tests say; `measured/`, the rows of `bench kernel --case shared-prefix
--sweep`, beside every peer that is here; `search.csv`, for each shape the rule's time, its share of the best, peers and
the ten best configurations. Meant to fit ten minutes of an H200, most of them compilation. Exit code 0 if everything is
right, 6 without a device.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from experiments.bench import kernel_main
from experiments.bench.ours_shared import SHARED
from experiments.bench.rows import Row, from_csv

TESTS = ("tests/engine/attention/kernels/test_gpu_shared_prefix.py", "tests/engine/worker/test_shared_prefix.py")
COLUMNS = ("shape", "peer", "median_us", "over_rule", "relative_error", "status", "swept", "config")
BEST = 10


def main(argv: Sequence[str]) -> int:
    out = Path(argv[0])
    out.mkdir(parents=True, exist_ok=True)
    library = ["--fa3-library", argv[1]] if len(argv) > 1 else []
    right = tested(out / "tests.txt")
    measured = out / "measured"
    code = kernel_main.main(["--case", "shared-prefix", "--sweep", *library, "--output-dir", str(measured)])
    if not (measured / kernel_main.ROWS_FILE).exists():
        return code  # no device, or no such library: said already
    rows = from_csv((measured / kernel_main.ROWS_FILE).read_text("utf-8"))
    with (out / "search.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for shape in dict.fromkeys(row["shape"] for row in rows):
            table.writerows(ranked([row for row in rows if row["shape"] == shape]))
    return code or int(not right)


def tested(log: Path) -> bool:
    """Whether the tests pass in a process that compiles."""
    side_by_side = ["-n", "8"] if find_spec("xdist") else []  # most of the time is compilation
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *side_by_side, *TESTS]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, env={**os.environ, "PAGELAB_GPU": "1"}, stdout=file, stderr=file, check=False)
    print(log.read_text("utf-8")[-3000:], flush=True)  # noqa: T201
    return done.returncode == 0


def ranked(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Of one shape: whoever is no part of the sweep, then the best of it, and what was wrong."""
    rule = next((row["median_s"] for row in rows if row["peer"] == SHARED and not row["swept"]), None)
    swept = [row for row in rows if row["swept"]]
    right = sorted((row for row in swept if row["status"] == "ok"), key=lambda row: float(row["median_s"]))
    chosen = [row for row in rows if not row["swept"]] + right[:BEST] + [row for row in swept if row["status"] != "ok"]
    return [
        {name: row[name] for name in ("shape", "peer", "relative_error", "status", "swept", "config")}
        | {
            "median_us": row["median_s"] and round(row["median_s"] * 1e6, 2),
            "over_rule": row["median_s"] and rule and round(row["median_s"] / rule, 3),
        }
        for row in chosen
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
