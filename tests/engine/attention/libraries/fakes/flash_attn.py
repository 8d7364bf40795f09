"""Stands in for the package flash_attn 2: its two functions with a block table, and what they refuse."""

import torch

from tests.engine.attention.libraries.fakes.by_table import attended

CALLS = []


def _pages(k, v):
    assert k.shape == v.shape
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert k.stride(-1) == v.stride(-1) == 1
    CALLS.append(("run", k, v))


def flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, softmax_scale, causal, window_size, softcap, block_table
):
    assert causal
    assert q.shape[:2] == (len(cache_seqlens), 1)
    _pages(k_cache, v_cache)
    starts = torch.arange(len(cache_seqlens) + 1, dtype=torch.int32)
    rows = attended(q[:, 0], k_cache, v_cache, starts, cache_seqlens, block_table, softmax_scale, window_size, softcap)
    return rows[:, None]


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale, causal, window_size, softcap,
    block_table,
):  # fmt: skip
    assert causal
    lens = cu_seqlens_k.diff()
    assert int(lens.max()) <= max_seqlen_k
    assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q
    _pages(k, v)
    return attended(q, k, v, cu_seqlens_q, lens, block_table, softmax_scale, window_size, softcap)
