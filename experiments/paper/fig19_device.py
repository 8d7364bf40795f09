"""Fig 19a measured: 256 tokens of a model's K and V to pinned memory and back by the engine's own copies, and computed
again by the engine, at each block size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.paper.runs import Lab

if TYPE_CHECKING:
    import torch

MODEL: Final = "llama-3.2-1b"
"""A billion random parameters: what fig18b's part on a device serves."""
NUM_TOKENS: Final = 256
NUM_SLOTS: Final = 12 * 1024
"""Of the cache and of host memory, from which blocks are drawn at random: the artifact's."""
WARM_UPS, REPEATS = 3, 10
PROMPTS: Final = 12


class Times(NamedTuple):
    """Seconds of one block size: medians of the copies, mean of the steps."""

    out_s: float
    back_s: float
    recompute_s: float

    @property
    def swap_s(self) -> float:
        """Out and in."""
        return self.out_s + self.back_s


def lacking() -> str:
    """What is missing to measure; empty where nothing is."""
    from experiments.bench.machine import why_no_device

    missing = why_no_device()
    return f"swaps are timed on a CUDA device, and {missing}" if missing else ""


def measured(lab: Lab, sizes: Sequence[int]) -> dict[int, Times]:
    """By block size; once in a lab's life. Only where nothing is lacking."""
    return lab.once("fig19a/device", lambda: {size: _times(size) for size in sizes})


def _times(block_size: int) -> Times:
    from engine.core.catalogue import lookup

    shape = lookup(MODEL)
    caches = (shape.num_kv_layers, shape.num_kv_heads, shape.head_size)
    return Times(*swap_times(block_size, *caches, device="cuda"), recompute_s(block_size, model=MODEL, backend="gpu"))


def swap_times(
    block_size: int, num_layers: int, num_kv_heads: int, head_size: int, *, device: str, num_slots: int = NUM_SLOTS
) -> tuple[float, float]:
    """Median seconds of 256 tokens' blocks out, and back, between random places."""
    import torch

    from engine.worker.host_memory import HostMemory

    num_blocks, moved = num_slots // block_size, NUM_TOKENS // block_size
    sizes, dtype = (2, num_blocks, block_size, num_kv_heads, head_size), torch.bfloat16
    caches: list[torch.Tensor] = [torch.zeros(sizes, dtype=dtype, device=device) for _ in range(num_layers)]
    host = HostMemory(caches, 1, num_blocks)
    rng = Random(0)
    pairs = list(zip(rng.sample(range(num_blocks), moved), rng.sample(range(num_blocks), moved), strict=True))
    back = [(there, here) for here, there in pairs]
    try:
        return _median_s(lambda: host.store(pairs), device), _median_s(lambda: host.load(back), device)
    finally:
        host.release()


def _median_s(call: Callable[[], None], device: str) -> float:
    """Wall clock of the call to the end of its copies."""
    times = []
    for _ in range(WARM_UPS + REPEATS):
        _wait(device)
        begun = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[WARM_UPS:])


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def recompute_s(block_size: int, **engine: Any) -> float:
    """Mean seconds of a step that computes one prompt of 256 tokens; on a device its own time, host work apart."""
    from experiments.api import run
    from experiments.settings import Config
    from workloads import Trace

    trace = Trace.build(
        [0] * PROMPTS, [NUM_TOKENS] * PROMPTS, [1] * PROMPTS, limit_tokens=[1] * PROMPTS, name="prompts"
    )
    keys = {"weights_seed": 0, "kv_tokens": 4 * NUM_TOKENS, "max_model_len": 2 * NUM_TOKENS, "block_size": block_size}
    limits = {"max_num_batched_tokens": NUM_TOKENS, "enable_prefix_caching": False, "map_frames": 0}
    model = {"model": {"name": engine.pop("model")}}
    summary = run(Config.of(**model, **keys, **limits, **engine, preset="vllm"), trace).outcome.summary
    assert summary is not None
    assert summary["num_steps"] == PROMPTS, summary["num_steps"]
    return float(summary["device_s"]) / PROMPTS
