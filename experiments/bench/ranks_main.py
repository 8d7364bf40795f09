"""`python -m experiments.bench.ranks_main`: several GPUs of one host: outputs, scaling, a 70B shape, a rank that dies.

Each part is a process of its own, so that one that hangs or dies costs its own results only. Writes `ranks.csv` (a row
a measurement, with what must hold beside it), `ranks_profile.csv` and `ranks.json`; prints a summary. With `--device
cpu` the same parts run on tiny shapes, to try the program out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from experiments import exits
from experiments.bench import ranks_parts
from experiments.bench.engine_rows import parts_table
from experiments.bench.ranks_parts import WITHOUT
from experiments.csv_text import to_csv

LIMITS_S: Final = {"equal": 80, "kill": 60, "large": 170, "scale": 90, "alone": 70}
"""Longest that each part may take, in the order in which they run: what must hold and is quick comes first."""
ENVIRONMENT: Final = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS", "NCCL_DEBUG")
"""What may change how GPUs talk to each other; every rank inherits it."""
LEAST_S: Final = 5
"""With less time than this no part is begun."""
ROW, PROFILE = "row ", "profile "
"""Begin the lines of a part's stdout that are results."""


class PartDone(NamedTuple):
    """What came of a part."""

    name: str
    seconds: float
    ended: str
    """`ok`, or why it is not all there."""
    rows: list[dict[str, Any]]
    profile: list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 3 where a part did not end well, 4 where something that must hold does not, 6 without devices."""
    words = _parser().parse_args(argv)
    if words.part:
        ranks_parts.run_part(words.part, words.device, words.ranks, _print_row, _print_profile)
        return exits.OK
    if words.device == "cuda" and (missing := ranks_parts.missing(words.ranks)):
        say(f"ranks_main: {missing}")
        return exits.NO_DEVICE
    if words.output_dir:
        words.output_dir.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + words.seconds
    done = [_part(name, words, end) for name in words.only or LIMITS_S]
    done.append(derived(done))
    if words.output_dir:
        write(done, words.output_dir)
    print("\n".join(report(done)))
    return exit_code(done)


def exit_code(done: Sequence[PartDone]) -> int:
    """4 before 3 before 0."""
    if any(row["holds"] is False for part in done for row in part.rows):
        return exits.INVALID
    return exits.FAILED_CELLS if any(part.ended != "ok" for part in done) else exits.OK


def _part(name: str, words: argparse.Namespace, end: float) -> PartDone:
    """Runs one part in its own session of processes, all of which are gone afterwards."""
    left = min(LIMITS_S[name], end - time.monotonic())
    if left < LEAST_S:
        return PartDone(name, 0.0, "not run: no time was left", [], [])
    command = [sys.executable, "-m", "experiments.bench.ranks_main", "--part", name, "--device", words.device]
    command += ["--ranks", str(words.ranks)]
    say(f"{name}: at most {left:.0f} s")
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, start_new_session=True)
        try:
            code = process.wait(left)
            ended = "ok" if code == 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {left:.0f} s"
        finally:
            _kill_session(process.pid)
            process.wait()
        out.seek(0)
        lines = out.read().splitlines()
    rows, profile = (
        [json.loads(line.removeprefix(kind)) for line in lines if line.startswith(kind)] for kind in (ROW, PROFILE)
    )
    part = PartDone(name, time.monotonic() - began, ended, rows, profile)
    say(f"{name}: {part.ended}, {part.seconds:.0f} s")
    return part


def _kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def derived(done: Sequence[PartDone]) -> PartDone:
    """Ratios of what `scale` and `alone` have measured, where both are there."""
    rows = [row for part in done if part.name in ("scale", "alone") for row in part.rows]
    found = {(row["ranks"], row["measure"].split(" at ")[0]): row for row in rows}
    most = max((ranks for ranks, _ in found), default=1)
    ratios = []
    for over, under, name in (
        ((most, "output"), (1, "output"), "output tokens a second, over those of one rank"),
        ((1, "decode step"), (most, "decode step"), "decode step of one rank, over this one's"),
        ((most, WITHOUT), (most, "decode step"), "decode step without collectives, over the whole one"),
    ):
        if most > 1 and over in found and under in found:
            shared = {"ranks": most, "unit": "x", "must": "", "holds": None}
            ratio = found[over]["value"] / found[under]["value"]
            ratios.append({"model": found[over]["model"], "measure": name, "value": ratio, **shared})
    return PartDone("ratios", 0.0, "ok", ratios, [])


def write(done: Sequence[PartDone], folder: Path) -> None:
    """The files; existing ones are replaced."""
    rows = [row for part in done for row in part.rows]
    profile = [row for part in done for row in part.profile]
    if rows:
        (folder / "ranks.csv").write_text(to_csv(rows), "utf-8")
    if profile:
        (folder / "ranks_profile.csv").write_text(to_csv(profile), "utf-8")
    about: dict[str, Any] = {"parts": [{"name": p.name, "seconds": p.seconds, "ended": p.ended} for p in done]}
    about |= {"environment": {name: os.environ.get(name) for name in ENVIRONMENT}, "rows": rows}
    (folder / "ranks.json").write_text(json.dumps(about, allow_nan=False, indent=1) + "\n", "utf-8")


def report(done: Sequence[PartDone]) -> list[str]:
    """All rows, part by part, and where the time of a step goes."""
    lines = []
    for part in done:
        lines.append(f"{part.name}: {part.ended}, {part.seconds:.0f} s")
        for row in part.rows:
            verdict = "" if row["holds"] is None else f"  ({row['must']}: {'holds' if row['holds'] else 'MISSED'})"
            value = row["value"]
            shown = f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
            lines.append(f"  {row['model']:<14} {row['ranks']} x  {row['measure']}: {shown} {row['unit']}{verdict}")
        for case in dict.fromkeys(row["case"] for row in part.profile):
            lines.append(f"  {case}")
            lines += [f"  {line}" for line in parts_table([row for row in part.profile if row["case"] == case])]
    return lines


def _print_row(row: dict[str, Any]) -> None:
    print(ROW + json.dumps(row, allow_nan=False), flush=True)


def _print_profile(row: dict[str, Any]) -> None:
    print(PROFILE + json.dumps(row, allow_nan=False), flush=True)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ranks_main", description="Measure the engine over several ranks.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=295.0, help="of all parts together [295]")
    parser.add_argument("--only", action="append", choices=tuple(LIMITS_S), help="[all parts]; may be given again")
    parser.add_argument("-o", "--output-dir", type=Path)
    parser.add_argument("--part", choices=tuple(LIMITS_S), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
