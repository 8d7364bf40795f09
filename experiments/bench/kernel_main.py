"""`python -m experiments.bench.kernel_main`: the measurements of `pagelab bench kernel` with torch and triton alone.

Writes `summary.csv` and `machine.json` into the output folder; `pagelab bench kernel --from FOLDER` makes a results
folder with manifest and figures of them, anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments import exits
from experiments.bench.backends import sharing
from experiments.bench.cases import CASES
from experiments.bench.peers import PEERS
from experiments.bench.rows import to_csv
from experiments.bench.session import Measured, Wanted, measure
from experiments.bench.shapes import DTYPES
from experiments.bench.summary import best_of_sweep, fp8_gains, overheads, standings, wrong_rows

ROWS_FILE, MACHINE_FILE = "summary.csv", "machine.json"
QUESTIONS: Final = "\n".join(f"  {case.name:<12} {case.question}" for case in CASES.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code as `exit_code`; 2 for bad usage, 6 without a device."""
    words = _parser().parse_args(argv)
    wanted = Wanted(
        tuple(words.case or ()),
        words.dtype,
        words.block_size,
        tuple(words.peer or (() if words.backend else PEERS)),
        words.fa3_library,
        words.quick,
        words.sweep,
        words.seed,
        tuple(words.backend or ()),
    )
    try:
        _need_folder(words.output_dir)
        done = measure(wanted, say)
    except ValueError as error:
        say(f"kernel_main: {error}")
        return exits.USAGE
    except exits.DeviceMissing as error:
        say(f"kernel_main: {error}")
        return exits.NO_DEVICE
    if words.output_dir:
        write(done, words.output_dir)
    if words.json:
        print(json.dumps(done.to_dict(), allow_nan=False, indent=1))
    else:
        print("\n".join(report(done)))
    return exit_code(done)


def _need_folder(folder: Path | None) -> None:
    """Makes it before anything is measured: a refusal afterwards would lose the rows. UsageError."""
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise exits.UsageError(f"{folder}: cannot be written: {error}") from error


def exit_code(done: Measured) -> int:
    """0; 3 if the session broke off or measured nothing; 4 if a kernel of ours is wrong or raised."""
    if wrong_rows(done.rows):
        return exits.INVALID
    return exits.FAILED_CELLS if done.broken or not any(row["status"] == "ok" for row in done.rows) else exits.OK


def write(done: Measured, folder: Path) -> None:
    """The two files; existing ones are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {key: value for key, value in done.to_dict().items() if key != "rows"}
    (folder / ROWS_FILE).write_text(to_csv(done.table()), "utf-8")
    (folder / MACHINE_FILE).write_text(json.dumps(machine, allow_nan=False, indent=2) + "\n", "utf-8")


def report(done: Measured) -> list[str]:
    """Standings, the cost of paging, and the best of a sweep, in lines of text."""
    rows = done.table()
    lines = [f"{'case':<12} {'peer':<22} shapes  time over ours (geometric mean)  least"]
    lines += [
        f"{s.case:<12} {s.peer:<22} {s.num_shapes:>6}  {s.mean_time_over_ours:>7.3f}  {s.least:>28.3f} {s.least_shape}"
        for s in standings(rows)
    ]
    lines += [f"paged over {o.against:<28} {o.num_shapes:>3} shapes  {o.paged_over:.3f}" for o in overheads(rows)]
    lines += [
        f"fp8 {gain.shape} bs {gain.block_size}: {gain.fp8_s * 1e6:.2f} us, 16 bits {gain.wide_s * 1e6:.2f} us: "
        f"{gain.times_faster:.3f} times faster"
        for gain in fp8_gains(rows)
    ]
    for best in best_of_sweep(rows):
        ratio = f"{best.heuristic_over_best:.3f}" if best.heuristic_over_best else "–"
        lines.append(
            f"best {best.case} {best.shape} bs {best.block_size} {best.peer}: {best.config} "
            f"{best.median_s * 1e6:.2f} us, heuristic over best {ratio}"
        )
    lines += sharing(rows)
    lines += [f"not taking part: {missing.name}: {missing.reason}" for missing in done.missing]
    lines += [
        f"{row['status']}: {row['case']} {row['shape']} {row['peer']}: {row['reason']}" for row in wrong_rows(rows)
    ]
    return lines


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kernel_main",
        description=f"Time the kernels.\n\ncases:\n{QUESTIONS}",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="[all]; may be given again")
    parser.add_argument("--dtype", default=DTYPES[0], choices=DTYPES)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--peer", action="append", choices=tuple(PEERS), help="[all]; may be given again")
    parser.add_argument("--backend", action="append", help="attention backends: all, or names; no peers then")
    parser.add_argument("--fa3-library", type=Path, help="FlashAttention-3 extension library (.so) of vLLM")
    parser.add_argument("--quick", action="store_true", help="the two smallest shapes of each case")
    parser.add_argument("--sweep", action="store_true", help="also every launch configuration of the grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--json", action="store_true", help="one strict JSON object on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
