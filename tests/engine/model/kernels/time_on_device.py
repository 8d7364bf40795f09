"""Microseconds of each kernel on a CUDA device, by hand:

    PYTHONPATH=. python -m tests.engine.model.kernels.time_on_device

A CUDA graph of launches over inputs that take turns, so that none is in the L2 cache when its turn comes; the median
of several replays. `gb_per_s`: what must be read and written at least. `host_us`: one eager call, for the host.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from engine.model.kernels.sample import sample_fused
from engine.model.kernels.triton_ops import TritonOps
from engine.model.sampling import SamplingTensors, mask_filtered
from engine.worker.kernels.prepare import prepare_decode
from engine.worker.kernels.scatter import scatter_int32
from tests.engine.model.sampled import params

LAUNCHES = 64
REPLAYS = 15
MODELS = {4096: (14_336, 32, 8, 128), 2048: (8192, 32, 8, 64)}
"""By hidden size: intermediate size, heads, KV heads, head size (Llama-3-8B's and Llama-3.2-1B's)."""
VOCAB_SIZE = 128_256
FLUSHED_BYTES = 256 << 20
"""Inputs that take turns add up to this at least: several times an H200's L2 cache."""
Call = Callable[[], Any]
Case = tuple[str, int, Callable[[], Call]]
"""Name, bytes that it moves, and what makes inputs of its own and gives the call."""


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def ops_cases(num_tokens: int, hidden: int) -> Iterator[Case]:
    """The model's operations."""
    ops = TritonOps()
    inner, heads, kv_heads, head_size = MODELS[hidden]
    weight = normal(hidden)
    row = 2 * num_tokens * hidden
    name = f"T={num_tokens} E={hidden}"

    def norm() -> Call:
        return functools.partial(ops.norm, normal(num_tokens, hidden), weight, 1e-5, normal(num_tokens, hidden))

    def add_norm() -> Call:
        x, residual, out = (normal(num_tokens, hidden) for _ in range(3))
        return functools.partial(ops.add_norm, x, residual, weight, 1e-5, out)

    def gate() -> Call:
        return functools.partial(ops.gate, normal(num_tokens, 2 * inner), normal(num_tokens, inner))

    cos_sin = torch.randn(8192, head_size, device="cuda")
    positions = torch.randint(0, 8192, (num_tokens,), device="cuda")

    def rotate(normed: bool) -> Call:
        cache = normal(2, num_tokens // 16 + 1, 16, kv_heads, head_size)
        slots = torch.randperm(cache.shape[1] * 16, device="cuda")[:num_tokens]
        norms = [normal(head_size) if normed else None for _ in range(2)]
        return functools.partial(
            ops.rotate_and_write, normal(num_tokens, (heads + 2 * kv_heads) * head_size), cos_sin, positions,
            cache[0], cache[1], slots, num_heads=heads, num_kv_heads=kv_heads, q_norm=norms[0], k_norm=norms[1],
            eps=1e-6,
        )  # fmt: skip

    turned = 2 * num_tokens * head_size * 2 * (heads + 2 * kv_heads)
    yield f"norm {name}", 2 * row, norm
    yield f"add_norm {name}", 4 * row, add_norm
    yield f"gate {name} I={inner}", 6 * num_tokens * inner, gate
    yield f"rotate_and_write {name}", turned, functools.partial(rotate, False)
    yield f"rotate_and_write, head norm {name}", turned, functools.partial(rotate, True)


def latent_cases(num_tokens: int, num_heads: int) -> Iterator[Case]:
    """Of DeepSeek's latents, 512 + 64 elements, and queries of 128 + 64."""
    ops, query = TritonOps(), 1536
    cos_sin = torch.randn(8192, 64, device="cuda")
    positions = torch.randint(0, 8192, (num_tokens,), device="cuda")
    weights = normal(512), normal(query)

    def write() -> Call:
        cache = normal(num_tokens // 64 + 1, 64, 576)
        slots = torch.randperm(cache.shape[0] * 64, device="cuda")[:num_tokens]
        return functools.partial(
            ops.write_latents, normal(num_tokens, query + 576), cos_sin, positions, cache, slots, weights[0], eps=1e-6,
            interleaved=True, q_norm=weights[1], q_out=normal(num_tokens, query),
        )  # fmt: skip

    def rotate() -> Call:
        return functools.partial(ops.rotate_queries, normal(num_tokens, num_heads, 192), cos_sin, positions, True)

    name = f"T={num_tokens} H={num_heads}"
    yield f"write_latents {name}", 4 * num_tokens * (query + 576), write
    yield f"rotate_queries {name}", 4 * num_tokens * num_heads * 64, rotate


def sampling_cases(num_seqs: int) -> Iterator[Case]:
    """Greedy, temperature, and the filters alone."""
    positions = torch.arange(num_seqs, device="cuda")
    out = torch.zeros(num_seqs, dtype=torch.int32, device="cuda")

    def fused(rows: SamplingTensors) -> Call:
        return functools.partial(sample_fused, normal(num_seqs, VOCAB_SIZE), rows, positions, out)

    moved = 2 * num_seqs * VOCAB_SIZE
    for name, temperature in (("greedy", 0.0), ("temperature", 1.0)):
        rows = params(torch.full((num_seqs,), temperature), device="cuda")
        yield f"sample, {name} S={num_seqs} V={VOCAB_SIZE}", moved, functools.partial(fused, rows)
    rows = params(torch.ones(num_seqs), top_k=50, device="cuda")
    yield (
        f"mask_filtered S={num_seqs} V={VOCAB_SIZE}",
        2 * moved,
        lambda: functools.partial(mask_filtered, normal(num_seqs, VOCAB_SIZE), rows),
    )


def worker_cases(batch: int) -> Iterator[Case]:
    """Preparation of a decode step, and a scatter of as many entries."""

    def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device="cuda")

    def prepare() -> Call:
        longs = [ints(batch, dtype=torch.int64) for _ in range(3)]
        count = torch.full((1,), batch, dtype=torch.int32, device="cuda")
        return functools.partial(
            prepare_decode, ints(batch), ints(batch), ints(batch, 512), count, *longs, ints(batch), 16
        )

    def scatter() -> Call:
        pairs = torch.randperm(batch * 512, device="cuda", dtype=torch.int32)[: 2 * batch].view(2, batch)
        return functools.partial(scatter_int32, ints(batch * 512), pairs, batch)

    yield f"prepare_decode b={batch}", 44 * batch, prepare
    yield f"scatter_int32 count={batch}", 12 * batch, scatter


def cases() -> Iterator[Case]:
    """All of them."""
    for num_tokens, hidden in itertools.product((1, 256, 8192), MODELS):
        yield from ops_cases(num_tokens, hidden)
    for num_tokens, num_heads in itertools.product((1, 256, 8192), (16, 128)):
        yield from latent_cases(num_tokens, num_heads)
    for num_seqs in (1, 32, 256):
        yield from sampling_cases(num_seqs)
    yield from worker_cases(256)


def device_seconds(calls: list[Call]) -> float:
    """Of one launch in a graph of LAUNCHES."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _, call in zip(range(LAUNCHES), itertools.cycle(calls), strict=False):
            call()
    measured = []
    for _ in range(REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        measured.append(start.elapsed_time(stop) / 1e3 / LAUNCHES)
    return statistics.median(measured)


def host_seconds(call: Call) -> float:
    """Of one eager call, without waiting for what it launched."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        call()
    seconds = (time.perf_counter() - start) / LAUNCHES
    torch.cuda.synchronize()
    return seconds


def main() -> None:
    """Writes the table as CSV to standard output, a line as soon as it is there."""
    sys.stdout.write("kernel,device_us,gb_per_s,host_us\n")
    for name, moved, make in cases():
        copies = min(LAUNCHES, max(2, -(-FLUSHED_BYTES // moved)))
        calls = [make() for _ in range(copies)]
        seconds = device_seconds(calls)
        host = host_seconds(calls[0])
        sys.stdout.write(f'"{name}",{seconds * 1e6:.2f},{moved / seconds / 1e9:.0f},{host * 1e6:.1f}\n')
        sys.stdout.flush()
        del calls
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
