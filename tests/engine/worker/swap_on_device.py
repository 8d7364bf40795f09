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
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.worker.engine import Engine, EngineConfig
from engine.worker.host_memory import HostMemory

MODEL = "opt-13b"
NUM_TOKENS = 256
NUM_SLOTS = 12 * 1024
"""Of the cache and of host memory, from which blocks are drawn at random: the artifact's."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WARM_UPS, REPEATS, PROMPTS = 2, 7, 12
MS, PS_PER_MS = 1000, 1_000_000_000
COLUMNS = ("block_size", "out_ms", "in_ms", "one_by_one_out_ms", "one_by_one_in_ms", "recompute_ms")
Pairs = list[tuple[int, int]]


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


def drawn(block_size: int, num_slots: int) -> tuple[int, Pairs]:
    """Blocks of the cache, and 256 tokens' worth of them with places in host memory, at random."""
    num_blocks, moved = num_slots // block_size, NUM_TOKENS // block_size
    rng = Random(0)
    return num_blocks, list(
        zip(rng.sample(range(num_blocks), moved), rng.sample(range(num_blocks), moved), strict=True)
    )


def at_once(caches: list[torch.Tensor], num_blocks: int, pairs: Pairs, device: str) -> tuple[float, float]:
    """Median seconds out, and in, as the engine does it; AssertionError where not everything comes back."""
    host = HostMemory(caches, 1, num_blocks)
    back = [(there, here) for here, there in pairs]
    index = torch.tensor([here for here, _ in pairs], device=device)
    before = [cache[:, index].clone() for cache in caches[:2]]
    out = median_s(lambda: host.store(pairs), device)
    for cache in caches:
        cache[:, index] = 0
    into = median_s(lambda: host.load(back), device)
    assert all(torch.equal(cache[:, index], kept) for cache, kept in zip(caches, before, strict=False))
    host.release()
    return out, into


def one_by_one(caches: list[torch.Tensor], pairs: Pairs, device: str) -> tuple[float, float]:
    """Median seconds out, and in, with a copy for each block, layer, and K or V."""
    there = [torch.zeros(cache.shape, dtype=cache.dtype, pin_memory=device == "cuda") for cache in caches]

    def copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], outward: bool) -> None:
        for source, target in zip(sources, targets, strict=True):
            for block, host in pairs:
                at, to = (block, host) if outward else (host, block)
                for part in range(2):
                    target[part, to].copy_(source[part, at], non_blocking=True)

    return median_s(lambda: copy(caches, there, True), device), median_s(lambda: copy(there, caches, False), device)


def recompute_ms(engine: Engine, block_size: int) -> float:
    """Median device time of a step that computes one prompt of 256 tokens."""
    options = {"enable_prefix_caching": False, "max_num_seqs": 4, "max_num_batched_tokens": NUM_TOKENS}
    llm = LLM(engine, block_size=block_size, num_blocks=4 * NUM_TOKENS // block_size, **options)
    vocab = engine.architecture.vocab_size
    prompts = [torch.randint(vocab, (NUM_TOKENS,)).tolist() for _ in range(PROMPTS)]
    llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0))
    assert [step.num_chunk_tokens for step in llm.executor.steps] == [NUM_TOKENS] * PROMPTS
    return statistics.median(step.device_ps for step in llm.executor.steps[WARM_UPS:]) / PS_PER_MS


def rows(device: str) -> list[tuple[float, ...]]:
    """A row a block size, times in milliseconds."""
    shape = lookup(MODEL)
    real = device == "cuda"
    layers, slots, model = (shape.num_kv_layers, NUM_SLOTS, MODEL) if real else (2, 2 * NUM_TOKENS, "opt-125m")
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": NUM_TOKENS, "max_model_len": 2 * NUM_TOKENS}
    engine = Engine(EngineConfig(model, device=device, weights_seed=0, **limits))
    found = []
    for block_size in SIZES if real else (16, 256):
        num_blocks, pairs = drawn(block_size, slots)
        sizes = 2, num_blocks, block_size, shape.num_kv_heads, shape.head_size
        caches = [torch.randn(sizes, device=device).half() for _ in range(layers)]
        swaps = *at_once(caches, num_blocks, pairs, device), *one_by_one(caches, pairs, device)
        del caches
        found.append((block_size, *(MS * value for value in swaps), recompute_ms(engine, block_size)))
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
