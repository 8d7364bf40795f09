"""Copies of whole blocks inside the caches of all layers: forks, copy-on-write, moves of contiguous requests.

The allocator's contract reads all sources of a batch before it writes any destination, and a destination may be the
source of another pair. Programs of one launch run in any order, so such sources go through scratch memory: a first
launch gathers them, a second copies the pairs whose source nobody writes, a third scatters the scratch. Only the second
is left where no source is a destination: forks and copies on write into fresh blocks.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.checks import AttentionInputError, check_index, shown
from engine.attention.kernels.device import on_device
from engine.attention.kv_scales import as_bytes

PROGRAM_BYTES = 16 * 1024
"""A program's share: of one run, or of several short ones."""
THREAD_BYTES = 64
"""A thread's share of that: four vectors of 16 bytes in flight."""


@triton.jit(do_not_specialize=["count"])
def copy_kernel(
    FROM, TO, PAIRS, from_b, from_r, to_b, to_r, count, run, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr
):  # fmt: skip
    """Grid (pairs, ceil(count / BLOCK_R), ceil(run / BLOCK_E)): PAIRS [P, 2] int64, block of FROM and block of TO.

    `run` and the strides are specialised: accesses are 16 bytes wide only where 16 divides them all.
    """
    pair = PAIRS + tl.program_id(0) * 2
    runs = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    elements = tl.program_id(2) * BLOCK_E + tl.arange(0, BLOCK_E)[None, :]
    mask = (runs < count)[:, None] & (elements < run)
    number = runs.to(tl.int64)[:, None]
    source = FROM + tl.load(pair) * from_b + number * from_r + elements
    target = TO + tl.load(pair + 1) * to_b + number * to_r + elements
    tl.store(target, tl.load(source, mask=mask), mask=mask)


def copy_blocks(
    caches: Sequence[torch.Tensor], pairs: torch.Tensor, *, block_axis: int = 0, disjoint: bool = False
) -> None:
    """Copies block pairs[i, 0] to block pairs[i, 1] in every cache, all sources read before any destination is written.

    A cache is a layer's whole KV cache in any layout (`block_axis` as `KVLayout.block_axis`), or K or V of one, a view
    [NB, BS, KH, D]. pairs [P, 2] int64. On the host, where the allocator makes them, pairs are checked (inside the
    cache, each destination once) and only sources that are also destinations take the way through scratch. On the
    device nothing is known without waiting: they are trusted, and all take it, unless the caller promises that they are
    `disjoint`: no source is also a destination. Then each cache takes one launch. Both can be captured in a graph.
    AttentionInputError before anything is copied, also where the promise is seen to be broken.
    """
    check_index("pairs", pairs, ("P", 2), torch.int64)
    caches = [as_bytes(cache) for cache in caches]
    runs = [Runs.of(cache, block_axis) for cache in caches]
    if not runs or not len(pairs):
        return
    if pairs.is_cuda:
        direct, staged = (pairs, pairs[:0]) if disjoint else (pairs[:0], pairs)
    else:
        direct, staged = _sorted_out(pairs, min(one.num_blocks for one in runs))
        if disjoint and len(staged):
            raise AttentionInputError(f"pairs: expected no source that is a destination, got {staged.tolist()}")
    for cache, one in zip(caches, runs, strict=True):
        _copy(cache, one, direct.to(cache.device), staged.to(cache.device))


@dataclass(frozen=True, slots=True)
class Runs:
    """A block as runs of adjacent elements, a fixed stride apart."""

    num_blocks: int
    block_stride: int
    count: int
    stride: int
    run: int

    @classmethod
    def of(cls, cache: torch.Tensor, block_axis: int) -> Runs:
        """AttentionInputError where a block is no such set of runs."""
        if not -cache.dim() <= block_axis < cache.dim() or cache.dim() < 2:
            raise AttentionInputError(f"caches: expected at least 2 axes and axis {block_axis}, got {cache.dim()}")
        block = cache.movedim(block_axis, 0)
        levels: list[tuple[int, int]] = []  # size and stride, innermost first, adjacent ones merged
        for size, stride in zip(reversed(block.shape[1:]), reversed(block.stride()[1:]), strict=True):
            if size == 1:
                continue
            if levels and stride == levels[-1][0] * levels[-1][1]:
                levels[-1] = (levels[-1][0] * size, levels[-1][1])
            else:
                levels.append((size, stride))
        if len(levels) > 2 or (levels and levels[0][1] != 1):
            raise AttentionInputError(
                f"caches: expected blocks of evenly spaced runs, got strides {shown(cache.stride())} "
                f"of shape {shown(cache.shape)}"
            )
        # A lone run has no stride: 0 is divisible by 16, while 1 would forbid vectors.
        (run, _), (count, between) = (*(levels or [(1, 1)]), (1, 0))[:2]
        return cls(block.shape[0], block.stride(0), count, between, run)


def _sorted_out(pairs: torch.Tensor, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(direct, staged): pairs whose source nobody writes, and the others. Checks both ends."""
    ends = pairs.tolist()
    targets = {target for _, target in ends}
    outside = [end for pair in ends for end in pair if not 0 <= end < num_blocks]
    if outside:
        raise AttentionInputError(f"pairs: expected blocks 0 to {num_blocks - 1}, got {outside}")
    if len(targets) < len(ends):
        raise AttentionInputError(f"pairs: expected each destination once, got {[target for _, target in ends]}")
    written = torch.tensor([source in targets for source, _ in ends])
    return pairs[~written], pairs[written]


def _copy(cache: torch.Tensor, runs: Runs, direct: torch.Tensor, staged: torch.Tensor) -> None:
    """One cache: gather, copy, scatter. Stream order keeps the three apart."""
    here = (runs.block_stride, runs.stride)
    moves = [(cache, cache, direct.contiguous(), here + here)] if len(direct) else []
    if len(staged):
        numbers = torch.arange(len(staged), device=cache.device)
        there = (runs.count * runs.run, runs.run)
        scratch = torch.empty(len(staged) * runs.count * runs.run, dtype=cache.dtype, device=cache.device)
        gather = (cache, scratch, torch.stack([staged[:, 0], numbers], 1), here + there)
        scatter = (scratch, cache, torch.stack([numbers, staged[:, 1]], 1), there + here)
        moves = [gather, *moves, scatter]
    options = copy_options(runs.count, runs.run, cache.element_size())
    tiles = (-(-runs.count // options["BLOCK_R"]), -(-runs.run // options["BLOCK_E"]))
    with on_device(cache):
        for source, target, pairs, strides in moves:
            copy_kernel[(len(pairs), *tiles)](source, target, pairs, *strides, runs.count, runs.run, **options)


def copy_options(count: int, run: int, element_bytes: int) -> dict[str, Any]:
    """What is compiled into copy_kernel for blocks of `count` runs of `run` elements."""
    elements = PROGRAM_BYTES // element_bytes
    block_e = min(elements, triton.next_power_of_2(run))
    block_r = min(elements // block_e, triton.next_power_of_2(count))
    warps = block_r * block_e * element_bytes // (32 * THREAD_BYTES)
    return {"BLOCK_R": block_r, "BLOCK_E": block_e, "num_warps": max(1, warps)}
