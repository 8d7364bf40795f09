"""From hidden states to queries and cached latents, and what turns latents into K and V, of one layer.

The up-projections of K and V are views of the checkpoint's one matrix. Whether attention moves them to the other side
of its products (*absorbed*: a decode) or makes K and V of every latent (a prefill) is the backend's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.reference_mla import UpProjections
from engine.model.architecture import Architecture
from engine.model.latent import LATENT_NORM_EPS, LatentAttention
from engine.model.ops import Ops
from engine.model.weights import LayerWeights, Weights


def up_projections(a: Architecture, weights: Weights) -> list[UpProjections]:
    """W_UK and W_UV of each layer, views of its `kv_up`; none without latent attention."""
    return [] if a.latent is None else [_split(a.num_heads, a.latent, layer.kv_up) for layer in weights.layers]


def _split(num_heads: int, latent: LatentAttention, kv_up: torch.Tensor | None) -> UpProjections:
    assert kv_up is not None, "latent attention without its up-projection"
    heads = kv_up.view(num_heads, -1, latent.kv_lora_rank).transpose(1, 2)  # [H, R, N + W]
    return UpProjections(heads[..., : latent.qk_nope_head_dim], heads[..., latent.qk_nope_head_dim :])


def buffer_sizes(a: Architecture, latent: LatentAttention) -> tuple[int, int, int, int]:
    """Elements of a token in each buffer of `project` (0: it needs none), and behind attention."""
    up = a.num_heads * latent.head_size if latent.q_lora_rank else 0
    return a.qkv_size, latent.q_lora_rank, up, a.attention_size


def project(
    a: Architecture,
    layer: LayerWeights,
    buffers: Sequence[torch.Tensor],
    ops: Ops,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    kv_cache: torch.Tensor,
) -> torch.Tensor:
    """Queries [T, H, N + P], turned, in one of the buffers; the step's latents and rotary keys are written.

    The first buffer holds what `LayerWeights.qkv` made of the step's tokens. kv_cache [NB, BS, R + P]; slots [T] int64,
    below 0: not written. Letters as in `engine.model.weights`.
    """
    latent = a.latent
    assert latent is not None
    assert layer.kv_latent_norm is not None
    down, q_latent, q_up = buffers
    normed = None if layer.q_latent_norm is None else q_latent
    ops.write_latents(
        down, cos_sin, positions, kv_cache, slots, layer.kv_latent_norm, eps=LATENT_NORM_EPS,
        interleaved=latent.interleaved, q_norm=layer.q_latent_norm, q_out=normed,
    )  # fmt: skip
    if layer.q_up is None:
        queries = down[:, : a.num_heads * latent.head_size]
    else:
        queries = torch.mm(q_latent, layer.q_up.t(), out=q_up)
    heads = queries.view(-1, a.num_heads, latent.head_size)
    return ops.rotate_queries(heads, cos_sin, positions, latent.interleaved)
