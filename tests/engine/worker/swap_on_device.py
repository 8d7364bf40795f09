"""Fig 19a on the device at hand: 256 tokens of OPT-13B's K and V, swapped out and in by block size, and recomputed.

    python -m tests.engine.worker.swap_on_device          # the table, as CSV, to $OUT/swap.csv, or to standard output
    python -m tests.engine.worker.swap_on_device --cpu    # few layers on the CPU: does it run

Two ways to swap: the engine's (blocks gathered on the device, one copy for each stretch of adjacent host blocks), and
the paper's (a copy for each block, layer, and K or V). Recompute: a step of one prompt, by the engine on random
weights.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import torch

from engine.core.catalogue import lookup
from experiments.paper.fig19_device import NUM_SLOTS, NUM_TOKENS, recompute_s, swap_times

MODEL = "opt-13b"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WARM_UPS, REPEATS = 2, 7
MS = 1000
COLUMNS = ("block_size", "out_ms", "in_ms", "one_by_one_out_ms", "one_by_one_in_ms", "recompute_ms")


def median_s(call: Callable[[], None], device: str) -> float:
    """Wall clock of the call to the end of its copies."""
    times = []
    for _ in range(WARM_UPS + REPEATS):
        wait(device)
        begun = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[WARM_UPS:])


def wait(device: str) -> None:
    """For everything that was issued."""
    if device == "cuda":
        torch.cuda.synchronize()


def one_by_one(
    block_size: int, layers: int, heads: int, head_size: int, device: str, num_slots: int
) -> tuple[float, float]:
    """Median seconds out, and in, with a copy for each block, layer, and K or V, between random places."""
    num_blocks, moved = num_slots // block_size, NUM_TOKENS // block_size
    shape = (2, num_blocks, block_size, heads, head_size)
    here = [torch.zeros(shape, dtype=torch.float16, device=device) for _ in range(layers)]
    there = [torch.zeros(shape, dtype=torch.float16, pin_memory=device == "cuda") for _ in range(layers)]
    rng = Random(0)
    pairs = list(zip(rng.sample(range(num_blocks), moved), rng.sample(range(num_blocks), moved), strict=True))

    def copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], outward: bool) -> None:
        for source, target in zip(sources, targets, strict=True):
            for block, host in pairs:
                at, to = (block, host) if outward else (host, block)
                for part in range(2):
                    target[part, to].copy_(source[part, at], non_blocking=True)

    return median_s(lambda: copy(here, there, True), device), median_s(lambda: copy(there, here, False), device)


def rows(device: str) -> list[tuple[float, ...]]:
    """A row a block size, times in milliseconds."""
    shape = lookup(MODEL)
    layers, slots = (shape.num_kv_layers, NUM_SLOTS) if device == "cuda" else (2, 2 * NUM_TOKENS)
    sizes = layers, shape.num_kv_heads, shape.head_size
    found = []
    for block_size in SIZES if device == "cuda" else (16, 256):
        ours = swap_times(block_size, *sizes, device=device, num_slots=slots)
        theirs = one_by_one(block_size, *sizes, device, slots)
        again = recompute_s(block_size, model=MODEL, backend="gpu") if device == "cuda" else float("nan")
        found.append((block_size, *(MS * value for value in (*ours, *theirs, again))))
        print(*(f"{value:.4g}" for value in found[-1]), flush=True)  # noqa: T201
    return found


def main(argv: Sequence[str]) -> int:
    """6 without a device."""
    device = "cpu" if "--cpu" in argv else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: --cpu shows whether it runs", file=sys.stderr)  # noqa: T201
        return 6
    print(*COLUMNS)  # noqa: T201
    found = rows(device)
    if "OUT" in os.environ:
        with (Path(os.environ["OUT"]) / "swap.csv").open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *found])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
