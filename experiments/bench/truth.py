"""What should come out, in float32 on the same inputs, and how far an output is from it.

Written from the definition, apart from every kernel and reference of the engine: softmax over all scores at once. Only
some sequences are compared (first, middle, last, longest), with their latest queries; that every element of the output
was written is seen from the NaNs that were there before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from experiments.bench.inputs import InputSet, Problem
from experiments.bench.timing import Call, Stopwatch

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_ERROR: Final = 5e-3
"""||out - expected|| / ||expected|| that a half-precision kernel may have."""
MOST_QUERIES: Final = 128
"""Queries of a sequence that are compared: the first and the last half of them."""
PLANTED: Final = 7.0


def sampled(problem: Problem) -> list[int]:
    """Sequences that are compared, ascending."""
    lengths = problem.shape.seq_lens
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    return sorted({0, len(lengths) // 2, len(lengths) - 1, longest})


def rows_of(problem: Problem, sequence: int) -> list[int]:
    """Query tokens of a sequence that are compared, counted from its first query."""
    query = problem.shape.query_lens[sequence]
    half = MOST_QUERIES // 2
    return list(range(query)) if query <= MOST_QUERIES else [*range(half), *range(query - half, query)]


def expected(problem: Problem, which: InputSet, *, contiguous: bool) -> Tensor:
    """float32 [compared queries, H, D] of the sampled sequences, in order.

    contiguous: the memory is read as sequences one after another (`starts`), not by the block table.
    """
    import torch

    return torch.cat([_attended(problem, which, row, contiguous=contiguous) for row in sampled(problem)])


def compared(problem: Problem, out: Tensor) -> Tensor:
    """The rows of an output [T, H, D] that `expected` has."""
    import torch

    firsts = problem.query_start_loc.tolist()
    rows = [firsts[sequence] + row for sequence in sampled(problem) for row in rows_of(problem, sequence)]
    return out[torch.tensor(rows, device=out.device)]


def relative_error(out: Tensor, wanted: Tensor) -> float:
    """||out - wanted|| / ||wanted||; infinite where anything in `out` is not finite."""
    out = out.float()
    if not bool(out.isfinite().all()):
        return math.inf
    return float((out - wanted.float()).norm() / wanted.float().norm())


def attention_error(problem: Problem, out: Tensor, wanted: Tensor) -> float:
    """Of an output [T, H, D]; infinite where any element of it, compared or not, is not finite."""
    heads = problem.shape.heads
    if tuple(out.shape) != (problem.shape.query_tokens, heads.num_heads, heads.value_size):
        raise ValueError(f"an output of shape {tuple(out.shape)} for {problem.shape.query_tokens} query tokens")
    if not bool(out.isfinite().all()):
        return math.inf
    return relative_error(compared(problem, out), wanted)


def write_error(problem: Problem, call: Call, stopwatch: Stopwatch) -> float:
    """Share of values that are not bit for bit in their slots after a write into slots that held something else."""
    one, slots = problem.sets[0], problem.slot_mapping
    blocks, offsets = slots // problem.shape.block_size, slots % problem.shape.block_size
    for cache in (one.k_cache, one.v_cache):
        cache[blocks, offsets] = PLANTED
    call()
    stopwatch.synchronize()
    wrong = [
        (cache[blocks, offsets].float() != new.float()).float().mean()
        for cache, new in zip((one.k_cache, one.v_cache), _stored(problem, one), strict=True)
    ]
    return float(max(wrong))


def _stored(problem: Problem, one: InputSet) -> tuple[Tensor, Tensor]:
    """What a write leaves in the slots."""
    if problem.scales is None:
        return one.k, one.v
    from engine.attention.kv_scales import quantized

    return quantized(one.k, problem.scales.k), quantized(one.v, problem.scales.v)


def copy_error(problem: Problem, call: Call, stopwatch: Stopwatch) -> float:
    """Share of values that are not bit for bit those of the source block, which itself must not change."""
    one, (sources, targets) = problem.sets[0], problem.pairs.unbind(1)
    before = [cache[sources].clone() for cache in (one.k_cache, one.v_cache)]
    for cache in (one.k_cache, one.v_cache):
        cache[targets] = PLANTED
    call()
    stopwatch.synchronize()
    wrong = [
        (cache[places] != kept).float().mean()
        for cache, kept in zip((one.k_cache, one.v_cache), before, strict=True)
        for places in (sources, targets)
    ]
    return float(max(wrong))


def _attended(problem: Problem, which: InputSet, sequence: int, *, contiguous: bool) -> Tensor:
    import torch

    shape = problem.shape
    length, query = shape.seq_lens[sequence], shape.query_lens[sequence]
    k, v = (
        _keys(problem, cache, sequence, contiguous=contiguous) for cache in (which.k_cache, which.v_cache)
    )  # [n, KH, D]
    if problem.scales is not None:
        k, v = k * problem.scales.k[:, None], v * problem.scales.v[:, None]
    rows = torch.tensor(rows_of(problem, sequence), device=k.device)
    first = int(problem.query_start_loc[sequence])
    groups = shape.heads.num_heads // shape.heads.num_kv_heads
    q = which.q[first + rows].float().view(len(rows), shape.heads.num_kv_heads, groups, -1)  # [r, KH, G, D]
    scores = torch.einsum("rhgd,nhd->hgrn", q, k) * problem.scale
    hidden = torch.arange(length, device=k.device) > (length - query + rows)[:, None]
    shares = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hgrn,nhd->rhgd", shares, v).flatten(1, 2)


def _keys(problem: Problem, cache: Tensor, sequence: int, *, contiguous: bool) -> Tensor:
    """float32 [length, KH, D] of one sequence."""
    shape = problem.shape
    num_blocks, length = shape.blocks_of[sequence], shape.seq_lens[sequence]
    if contiguous:
        first = int(problem.starts[sequence]) // shape.block_size
        blocks = cache[first : first + num_blocks]
    else:
        blocks = cache[problem.block_table[sequence, :num_blocks].long()]
    return blocks.flatten(0, 1)[:length].float()
