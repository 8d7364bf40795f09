"""A model's weights as tensors, and which shape each has in an architecture.

Matrices are [outputs, inputs], as in checkpoints. What is multiplied together lies together: q, k and v are one matrix,
and so are gate and up. Letters: H query heads, KH KV heads, D head size, E hidden size, I intermediate size, V
vocabulary; of latent attention Q q_lora_rank, R kv_lora_rank, N qk_nope_head_dim, P qk_rope_head_dim, W v_head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch

from engine.model.architecture import Architecture
from engine.model.latent import LatentAttention

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One layer; None where the architecture has no such weight."""

    input_norm: torch.Tensor
    """[E], before attention."""
    qkv: torch.Tensor
    """[(H + 2 KH) D, E]: rows of all query heads, then keys, then values. Of latent attention [Q + R + P, E]: the
    queries' latent, the latent of K and V, the rotary key; without the first, H (N + P) rows of all query heads."""
    o: torch.Tensor
    """[E, H D], after attention; [E, H W]."""
    post_norm: torch.Tensor
    """[E], before the MLP."""
    gate_up: torch.Tensor
    """[2 I, E], gate then up; [I, E] where the MLP has no gate."""
    down: torch.Tensor
    """[E, I]."""
    input_norm_bias: torch.Tensor | None = None
    qkv_bias: torch.Tensor | None = None
    o_bias: torch.Tensor | None = None
    post_norm_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    """[D], of each query head."""
    k_norm: torch.Tensor | None = None
    """[D], of each key head."""
    q_latent_norm: torch.Tensor | None = None
    """[Q]."""
    q_up: torch.Tensor | None = None
    """[H (N + P), Q]: from the queries' latent to all query heads."""
    kv_latent_norm: torch.Tensor | None = None
    """[R]."""
    kv_up: torch.Tensor | None = None
    """[H (N + W), R]: from the latent to each head's key, without its rotary part, and value."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A whole model."""

    embedding: torch.Tensor
    """[V, E]."""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    """[E]."""
    lm_head: torch.Tensor
    """[V, E]; the embedding itself where they are tied."""
    positions: torch.Tensor | None = None
    """[max_model_len + offset, E], learned positions (OPT)."""
    final_norm_bias: torch.Tensor | None = None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor once, a tied head not again."""
        top = (self.embedding, self.positions, self.final_norm, self.final_norm_bias)
        yield from (tensor for tensor in top if tensor is not None)
        if self.lm_head is not self.embedding:
            yield self.lm_head
        for layer in self.layers:
            values = (getattr(layer, field.name) for field in fields(layer))
            yield from (tensor for tensor in values if tensor is not None)

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors())

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


def layer_shapes(a: Architecture) -> dict[str, Shape]:
    """Shape of each weight that a layer of this architecture has, by the name of its field."""
    E, I = a.hidden_size, a.intermediate_size  # noqa: E741
    shapes: dict[str, Shape] = {
        "input_norm": (E,),
        "qkv": (a.qkv_size, E),
        "o": (E, a.attention_size),
        "post_norm": (E,),
        "gate_up": (a.gate_up_size, E),
        "down": (E, I),
    }
    if a.norm == "layer":
        shapes |= {"input_norm_bias": (E,), "post_norm_bias": (E,)}
    if a.attention_bias:
        shapes["qkv_bias"] = (a.qkv_size,)
    if a.output_bias:
        shapes["o_bias"] = (E,)
    if a.mlp_bias:
        shapes |= {"gate_up_bias": (a.gate_up_size,), "down_bias": (E,)}
    if a.qk_norm:
        shapes |= {"q_norm": (a.head_size,), "k_norm": (a.head_size,)}
    return shapes if a.latent is None else shapes | _latent_shapes(a.num_heads, a.latent)


def _latent_shapes(num_heads: int, latent: LatentAttention) -> dict[str, Shape]:
    rank, up = latent.kv_lora_rank, latent.qk_nope_head_dim + latent.v_head_dim
    shapes: dict[str, Shape] = {"kv_latent_norm": (rank,), "kv_up": (num_heads * up, rank)}
    if latent.q_lora_rank:
        shapes["q_latent_norm"] = (latent.q_lora_rank,)
        shapes["q_up"] = (num_heads * latent.head_size, latent.q_lora_rank)
    return shapes


def top_shapes(a: Architecture) -> dict[str, Shape]:
    """Shape of each weight outside the layers, by the name of its field; a tied head is none of its own."""
    shapes: dict[str, Shape] = {"embedding": (a.vocab_size, a.hidden_size), "final_norm": (a.hidden_size,)}
    if not a.tie_embeddings:
        shapes["lm_head"] = shapes["embedding"]
    if a.rope is None:
        shapes["positions"] = (a.max_model_len + a.position_offset, a.hidden_size)
    if a.norm == "layer":
        shapes["final_norm_bias"] = (a.hidden_size,)
    return shapes


def build_weights(a: Architecture, make: Callable[[int | None, str, Shape], torch.Tensor]) -> Weights:
    """Weights whose tensors come from `make(layer, field, shape)`; the layer is None outside the layers."""
    top = {name: make(None, name, shape) for name, shape in top_shapes(a).items()}
    if a.tie_embeddings:
        top["lm_head"] = top["embedding"]
    shapes = layer_shapes(a)
    layers = tuple(
        LayerWeights(**{name: make(layer, name, shape) for name, shape in shapes.items()})
        for layer in range(a.num_layers)
    )
    return Weights(layers=layers, **top)
