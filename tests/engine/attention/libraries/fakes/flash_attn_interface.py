"""Stands in for the package flash_attn_interface of FlashAttention-3."""

from tests.engine.attention.libraries.fakes.by_table import attended

CALLS = []


def flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q, softmax_scale, causal, window_size,
    softcap,
):  # fmt: skip
    assert causal
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q
    CALLS.append(("run", k_cache, v_cache))
    return attended(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, softmax_scale, window_size, softcap)
