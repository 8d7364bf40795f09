"""Block size: at equal token capacity, larger blocks leave less of the cache live (section 7.2 of the paper)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab, RunKey

SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
CAPACITY_TOKENS: Final = 61 * 256
MAX_SEEDS: Final = 3
"""The steps between sizes are far larger than the noise."""
COLUMNS: Final = ("iter_paper_token_frac", "kv_live_frac", "kv_tail_frac", "iter_mean_batch_size")


def _keys(lab: Lab, block_size: int) -> list[RunKey]:
    return lab.keys("paper-fig2", "paged", CAPACITY_TOKENS // block_size, block_size)[:MAX_SEEDS]


def runs(lab: Lab) -> list[RunKey]:
    """Every size, the same seeds."""
    return [key for size in SIZES for key in _keys(lab, size)]


def _mean(lab: Lab, block_size: int, name: str) -> float:
    values = lab.values(_keys(lab, block_size), name)
    return math.fsum(values) / len(values)


def judge(lab: Lab) -> list[Result]:
    """How often a larger block does not lower the live share, in every seed."""
    by_size = [lab.values(_keys(lab, size), COLUMNS[0]) for size in SIZES]
    rises = [float(sum(larger >= smaller for smaller, larger in pairwise(live))) for live in zip(*by_size, strict=True)]
    claim = Claim(
        "blocksize/paged/live-monotone",
        "steps to a larger block that do not lower the live share",
        0,
        "steps",
        0.0,
        "section 7.2: larger blocks waste more",
        "R",
        (
            *(() if lab.is_real("sharegpt") else ("stand-in",)),
            "whole-blocks",
            "per-iteration",
            "step-model",
            "head-of-file",
            "quanta",
        ),
    )
    shares = ", ".join(f"{size}: {100 * _mean(lab, size, COLUMNS[0]):.2f}" for size in SIZES)
    return [over_seeds(claim, rises, f"live % by block size {shares}")]


def tables(lab: Lab) -> list[Table]:
    """The curve."""
    rows = []
    for size in SIZES:
        live, by_time, tail, batch = (_mean(lab, size, name) for name in COLUMNS)
        rows.append((size, CAPACITY_TOKENS // size, 100 * live, 100 * by_time, 100 * tail, batch))
    return [
        Table(
            "blocksize/paged",
            f"Paged allocation of {CAPACITY_TOKENS:,} tokens by block size, Fig 2's workload",
            ("block size", "blocks", "live %", "live % over time", "tail % over time", "batched requests"),
            tuple(rows),
        )
    ]


BLOCK_SIZE = Experiment("block-size", "Block size: live share at equal token capacity", judge, runs, tables)
