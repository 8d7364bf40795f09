"""What the kernels ask of their arguments beyond `engine.attention.checks`. Attributes only, so nothing waits.

Contents are trusted, as everywhere on the device: lengths up to `max_seq_len` and `max_query_len`, block ids inside the
cache wherever a sequence has tokens, slots distinct and inside the cache. `out` may be q itself; else what is
written shares no memory with what is read. Shape letters as in `engine.attention`; N rows of a contiguous K.
"""

from __future__ import annotations

import math

import torch

from engine.attention.checks import (
    FP8,
    AttentionInputError,
    check_caches,
    check_count,
    check_dtype,
    check_index,
    check_queries,
    check_rank,
    check_same_device,
    check_scale,
    check_shape,
    check_table,
    check_tensor,
    shown,
)
from engine.attention.kv_scales import KVScales, check_scales

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Types of Q, K and V that the kernels compute with; float32 is for checks: no tensor cores."""
STORED = (*DTYPES, FP8)
"""Types of caches."""
MAX_HEAD_SIZE = 256

MAX_RANK, MAX_ROTARY = 512, 128
"""Of a latent: elements that V is read from, and the others."""


def padded(size: int) -> int:
    """The power of two that a head size is computed in, at least 16 (the smallest K of a dot product)."""
    return max(16, 1 << (size - 1).bit_length())


def check_head_size(head_size: int) -> None:
    """A multiple of 8 (16-byte loads of 2-byte elements) up to MAX_HEAD_SIZE."""
    if head_size % 8 or not 8 <= head_size <= MAX_HEAD_SIZE:
        raise AttentionInputError(f"head size: expected a multiple of 8 up to {MAX_HEAD_SIZE}, got {head_size}")


def check_rank_of(rank: int, latent: int) -> None:
    """V's part of the latent and the rotary part: multiples of 8 up to MAX_RANK and MAX_ROTARY, neither empty."""
    rotary = latent - rank
    fits = rank % 8 == 0 and rotary % 8 == 0 and 8 <= rank <= MAX_RANK and 8 <= rotary <= MAX_ROTARY
    if not fits:
        raise AttentionInputError(
            f"latent: expected kv_lora_rank a multiple of 8 up to {MAX_RANK} and a rotary part of one up to "
            f"{MAX_ROTARY}, got {rank} and {rotary} of {latent} elements"
        )


def check_same_strides(k: torch.Tensor, v: torch.Tensor) -> None:
    """K and V of equal shape and strides: one offset serves both. Every layout's two views have them."""
    check_shape("v", v, tuple(k.shape))
    if any(size > 1 and a != b for size, a, b in zip(k.shape, k.stride(), v.stride(), strict=True)):
        raise AttentionInputError(
            f"v: expected the strides of k, {shown(k.stride())}, got {shown(v.stride())}: "
            "pass both as views of one storage, or of two alike"
        )


def check_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int,
    out: torch.Tensor | None,
    scales: KVScales | None = None,
) -> None:
    """Q [T, H, D], caches [NB, BS, KH, D], block_table [S, max_blocks] int32, seq_lens [S] int32; scales beside FP8."""
    check_caches(k_cache, v_cache, STORED)
    check_same_strides(k_cache, v_cache)
    check_scales(k_cache, scales)
    check_queries(q, k_cache, v_cache, out)
    check_dtype("q", q, DTYPES)
    check_head_size(q.shape[2])
    check_table(block_table, seq_lens, k_cache.shape[1], max_seq_len)
    check_same_device(k_cache=k_cache, block_table=block_table)


def check_contiguous(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int,
    out: torch.Tensor | None,
    scales: KVScales | None = None,
) -> None:
    """Q [T, H, D], K and V [N, KH, D], starts [S] int64 (first row of each sequence), seq_lens [S] int32; scales beside
    FP8."""
    check_rank("k", k, 3, "[N, KH, D]")
    check_caches(k[None], v[None], STORED)
    check_same_strides(k, v)
    check_scales(k[None], scales)
    check_queries(q, k[None], v[None], out)
    check_dtype("q", q, DTYPES)
    check_head_size(q.shape[2])
    check_index("starts", starts, ("S",), torch.int64)
    check_index("seq_lens", seq_lens, (starts.shape[0],), torch.int32)
    check_same_device(k=k, starts=starts, seq_lens=seq_lens)
    check_count("max_seq_len", max_seq_len)
    if max_seq_len > k.shape[0]:
        raise AttentionInputError(f"max_seq_len: expected 0 to the {k.shape[0]} rows of k, got {max_seq_len}")


def with_an_entry(block_table: torch.Tensor) -> torch.Tensor:
    """A table whose rows have an entry: of an empty sequence the first is looked at, whatever it holds."""
    return block_table if block_table.shape[1] else block_table.new_zeros(block_table.shape[0], 1)


def check_kind(what: str, value: object, kind: type) -> None:
    """None, or of that class."""
    if value is not None and not isinstance(value, kind):
        raise AttentionInputError(f"{what}: expected a {kind.__name__} or None, got {value!r:.80}")


def check_one_query_each(q: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Decode: as many query tokens as sequences."""
    if q.shape[0] != seq_lens.shape[0]:
        raise AttentionInputError(
            f"q: expected one query token for each of the {seq_lens.shape[0]} sequences, got {q.shape[0]}"
        )


def check_query_starts(query_start_loc: torch.Tensor, seq_lens: torch.Tensor, max_query_len: int) -> None:
    """Prefill: query_start_loc [S+1] int32 beside seq_lens [S]; max_query_len at least 0."""
    check_index("query_start_loc", query_start_loc, (seq_lens.shape[0] + 1,), torch.int32)
    check_same_device(seq_lens=seq_lens, query_start_loc=query_start_loc)
    check_count("max_query_len", max_query_len)


def check_workspace(workspace: torch.Tensor, floats: int, q: torch.Tensor) -> None:
    """A contiguous float32 tensor of at least `floats` elements beside q."""
    check_tensor("workspace", workspace)
    fits = workspace.dtype == torch.float32 and workspace.is_contiguous() and workspace.numel() >= floats
    if not fits:
        raise AttentionInputError(
            f"workspace: expected at least {floats} contiguous float32 elements, "
            f"got {workspace.numel()} of {workspace.dtype} with strides {shown(workspace.stride())}"
        )
    check_same_device(q=q, workspace=workspace)


def score_factors(scale: float, window: int, soft_cap: float) -> float:
    """The kernels' `scale`: to base 2 without a soft-cap; with one, log2(e) comes after the cap. Checks all three."""
    check_scale(scale, window, soft_cap)
    return scale if soft_cap else scale * math.log2(math.e)
