"""Compiles every launch of the latents' kernels that a device will be asked for, on a machine without one.

    python -m tests.engine.attention.kernels.mla_launches search device-tests rules

`search`: configurations and shapes of experiments.bench.mla_search; `device-tests`: of test_gpu_mla.py; `rules`: a call
of every launcher. A line of JSON a kernel; exit code 1 where any did not compile, or asks for more shared memory than
there is.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from engine.attention.kernels.launch import mla_decode, mla_prefill, mla_write
from experiments.bench.cases import shapes_of
from experiments.bench.mla_search import CHECKED_LENGTHS
from experiments.bench.ours_mla import latent_configs
from tests.engine.attention.kernels import test_gpu_mla
from tests.engine.attention.kernels.launches import launches

RANK, LATENT = 512, 576
NUM_SMS = 132
Call = Callable[[], object]


def main(words: Sequence[str]) -> int:
    """Exit code 0, 1 for what does not compile."""
    bad = False
    for what in words:
        for name, call in CALLS[what]():
            with launches(90) as made:
                call()
            for one in made:
                bad |= bool(one.error)
                sys.stdout.write(json.dumps({"call": name, **dataclasses.asdict(one)}) + "\n")
    return int(bad)


def decode(num_seqs: int, num_heads: int, block_size: int, longest: int, config: Any = None, gap: int = 0) -> Call:
    """A decode in bfloat16; gap: elements between slots, and between query heads."""
    return lambda: _decode(num_seqs, num_heads, block_size, longest, config, torch.bfloat16, gap)


def half(num_heads: int, longest: int, config: Any) -> Call:
    """In float16 with strides of its own."""
    return lambda: _decode(9, num_heads, 64, longest, config, torch.float16, 64)


def _decode(
    num_seqs: int, num_heads: int, block_size: int, longest: int, config: Any, dtype: torch.dtype, gap: int
) -> None:
    q = torch.empty(num_seqs, num_heads, LATENT + gap, dtype=dtype)[..., :LATENT]
    cache = torch.empty(9, block_size, LATENT + gap, dtype=dtype)[..., :LATENT]
    table = torch.zeros(num_seqs, -(-longest // block_size) + 1, dtype=torch.int32)
    lengths = torch.ones(num_seqs, dtype=torch.int32)
    mla_decode(q, cache, table, lengths, rank=RANK, scale=LATENT**-0.5, max_seq_len=longest, config=config)


def chunks(num_heads: int, block_size: int) -> Call:
    """A prefill of the sizes of the test on a device."""

    def call() -> None:
        starts = torch.tensor([0, 300, 301, 338, 338], dtype=torch.int32)
        lengths = torch.tensor([300, 64, 900, 70], dtype=torch.int32)
        q, cache = (
            torch.empty(size, dtype=torch.bfloat16) for size in ((338, num_heads, LATENT), (9, block_size, 576))
        )
        table = torch.zeros(4, -(-900 // block_size), dtype=torch.int32)
        bounds = {"max_query_len": 300, "max_seq_len": 900}
        mla_prefill(q, cache, table, starts, lengths, rank=RANK, scale=0.1, **bounds)

    return call


def write(block_size: int) -> Call:
    """Of 300 tokens."""

    def call() -> None:
        latents = torch.empty(300, 1, LATENT, dtype=torch.bfloat16)
        cache = torch.empty(40, block_size, LATENT, dtype=torch.bfloat16)
        mla_write(latents[..., :RANK], latents[..., RANK:], cache, torch.zeros(300, dtype=torch.int64))

    return call


def search() -> Iterator[tuple[str, Call]]:
    """The small batch that is checked, and every shape that is timed."""
    shapes = [("checked", 16, 8, 64, max(CHECKED_LENGTHS)), ("checked", 128, 8, 64, max(CHECKED_LENGTHS))]
    for shape in shapes_of("mla"):
        heads = shape.heads.num_heads
        shapes.append((shape.label, heads, shape.num_seqs, shape.block_size, max(shape.seq_lens)))
    for label, heads, num_seqs, block_size, longest in shapes:
        for config in (None, *latent_configs(heads, NUM_SMS)):
            yield f"{label} {config}", decode(num_seqs, heads, block_size, longest, config)


def device_tests() -> Iterator[tuple[str, Call]]:
    """What test_gpu_mla.py launches."""
    for name, config in test_gpu_mla.CONFIGS.items():
        for heads, block_size in ((16, 64), (128, 64), (5, 16), (100, 24), (64, 256), (128, 8)):
            yield f"{name} {heads} {block_size}", decode(9, heads, block_size, 5000, config)
        yield f"{name} half", half(128, 5000, config)
        yield f"{name} far", decode(2, 16, 64, 200, config)
        yield f"{name} captured", decode(4, 128, 64, 3000, config)
    for heads, block_size in ((16, 64), (128, 64), (5, 16), (128, 24)):
        yield f"chunks {heads} {block_size}", chunks(heads, block_size)
    for block_size in (64, 24):
        yield f"write {block_size}", write(block_size)


def rules() -> Iterator[tuple[str, Call]]:
    """Each launcher once, the decode by both of its rules."""
    for heads in (16, 128):
        yield f"decode {heads}", decode(8, heads, 64, 4096)
    yield "chunks", chunks(16, 64)
    yield "write", write(64)


CALLS: dict[str, Callable[[], Iterator[tuple[str, Call]]]] = {
    "search": search,
    "device-tests": device_tests,
    "rules": rules,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
