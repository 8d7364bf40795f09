"""Stands in for the package flash_mla: its dense decode."""

import torch

from tests.engine.attention.libraries.fakes.by_table import attended

CALLS = []


def get_mla_metadata(cache_seqlens, num_q_tokens_per_head_k, num_heads_k):
    assert num_heads_k == 1
    return ("schedule", len(cache_seqlens), num_q_tokens_per_head_k), None


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits, softmax_scale, causal
):
    num_seqs, num_queries, num_heads, size = q.shape
    assert tile_scheduler_metadata == ("schedule", num_seqs, num_heads)
    assert num_splits is None
    assert num_queries == 1
    assert q.is_contiguous()
    assert k_cache.shape[1:] == (64, 1, size)
    assert head_dim_v == 512
    CALLS.append(("run", k_cache, k_cache))
    starts = torch.arange(num_seqs + 1, dtype=torch.int32)
    # V are the first elements of K: attend over the whole latent, keep those
    out = attended(q[:, 0], k_cache, k_cache, starts, cache_seqlens, block_table, softmax_scale, (-1, -1), 0.0)
    return out[:, None, :, :head_dim_v], None
