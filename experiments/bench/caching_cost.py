"""`python -m experiments.bench.caching_cost`: what prefix caching costs an engine where nothing is ever found.

Two engines of the same weights in one process, one with caching and one without, serve the same batches in turns:
clocks that drift from minute to minute are in both. Writes `caching_cost.csv`, a row a run, into the output folder.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engine.core.registry import make_allocator
from experiments.bench.engine_run import EngineWanted, engine_of, run_batch
from experiments.csv_text import to_csv
from experiments.standalone import ended, say

ROWS_FILE: Final = "caching_cost.csv"
WARM_UPS: Final = 2
"""Rounds that are not counted."""


def measure(wanted: EngineWanted, num_rounds: int) -> list[dict[str, Any]]:
    """A row a run, two a round; which of the two comes first alternates. ValueError where something was found."""
    served = {}
    for caching in (False, True):
        one = replace(wanted, prefix_caching=caching)
        engine, allocator = engine_of(one), make_allocator(one.allocator, one.pool())
        served[caching] = one, engine, allocator, engine.executor(allocator)
    rows = []
    for number in range(num_rounds + WARM_UPS):
        for caching in (number % 2 == 1, number % 2 == 0):
            done = run_batch(*served[caching], number)
            if done.num_hit_tokens:
                raise ValueError(f"round {number}: {done.num_hit_tokens} tokens were found, but prompts are random")
            decodes = [step.duration_s for step in done.steps if not step.num_chunk_tokens]
            rows.append(
                {
                    "round": number - WARM_UPS,
                    "prefix_caching": caching,
                    "wall_s": done.wall_s,
                    "output_tok_per_s": done.num_output_tokens / done.wall_s,
                    "median_decode_step_s": statistics.median(decodes),
                }
            )
    return [row for row in rows if row["round"] >= 0]


def cost_fracs(rows: Sequence[dict[str, Any]]) -> list[float]:
    """By round: how much longer the run with caching took, as a share of the one without."""
    walls: dict[int, dict[bool, float]] = {}
    for row in rows:
        walls.setdefault(row["round"], {})[row["prefix_caching"]] = row["wall_s"]
    return [both[True] / both[False] - 1 for both in walls.values()]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0; 2 for bad usage, 6 without a device."""
    parser = argparse.ArgumentParser("caching_cost", description="Prefix caching at 0 % hits, on the engine, in turns.")
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=10)
    for name in ("num_requests", "input_len", "output_len"):
        default = getattr(EngineWanted(), name)
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, help=f"[{default}]")
    parser.add_argument("--output-dir", type=Path)
    words = vars(parser.parse_args(argv))
    folder, rounds = words.pop("output_dir"), words.pop("rounds")
    return ended("caching_cost", lambda: run_and_write(EngineWanted(**words), rounds, folder))


def run_and_write(wanted: EngineWanted, rounds: int, folder: Path | None) -> None:
    """Measures, keeps the rows in the folder, if there is one, and says what came of them."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    rows = measure(wanted, rounds)
    if folder:
        (folder / ROWS_FILE).write_text(to_csv(rows), "utf-8")
    costs = cost_fracs(rows)
    say(f"{wanted.model}: {100 * statistics.median(costs):+.2f} % of wall clock, median of {len(costs)} rounds")
    say("by round: " + ", ".join(f"{100 * cost:+.2f}" for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
