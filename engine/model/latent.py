"""Multi-head latent attention as a configuration describes it (DeepSeek-V2, section 2.1): sizes, scale, which layers.

A token's K and V of all heads are made from one latent of kv_lora_rank elements and a rotary part that all heads share;
the cache holds those and nothing else. Only models without experts are computed here: what else a DeepSeek
configuration asks for is refused by the key that asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.core.model_shape import ModelShape
from engine.model.rope import rope_settings, yarn_magnitude

LATENT_NORM_EPS = 1e-6
"""Of the norms of both latents: transformers' modules keep their default there, whatever rms_norm_eps says."""
DENSE_LAYERS: Mapping[str, int] = MappingProxyType({"deepseek_v2": 0, "deepseek_v3": 3})
"""Leading layers without experts where first_k_dense_replace is absent, as transformers has it; by family."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of a layer's latent attention, and how its rotary part turns. ValueError for one that cannot turn."""

    q_lora_rank: int
    """Elements of the latent that queries are made from; 0: they are made in one step."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    """Elements of a query or key of one head that do not turn."""
    qk_rope_head_dim: int
    """Elements that turn: of each query head, and of the one rotary key of all heads."""
    v_head_dim: int
    interleaved: bool
    """Whether element 2i turns with 2i + 1, else i with i + qk_rope_head_dim / 2."""
    scale: float
    """Factor of the scores."""

    def __post_init__(self) -> None:
        if self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim={self.qk_rope_head_dim} must be even: rotary positions turn pairs")

    @property
    def size(self) -> int:
        """Elements of a token in a layer's cache: the latent of K and V, then the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def head_size(self) -> int:
        """Elements of a query of one head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def query_rows(self, num_heads: int) -> int:
        """Rows of the first matrix of the queries: their latent, or all heads at once."""
        return self.q_lora_rank or num_heads * self.head_size


def read_latent(config: Mapping[str, Any], shape: ModelShape) -> LatentAttention | None:
    """The latent attention of a config.json; None for a family without. ValueError for what is not done here."""
    if shape.model_type not in DENSE_LAYERS:
        return None
    if shape.latent is None:
        raise ValueError(f"model_type {shape.model_type!r} needs kv_lora_rank, which the config does not give")
    if "q_lora_rank" not in config:
        raise ValueError("q_lora_rank is absent; expected a number, or null where queries are made in one step")
    heads = config.get("num_key_value_heads")
    if heads not in (None, shape.num_heads):
        raise ValueError(
            f"num_key_value_heads={heads!r} is not done here: one latent serves all heads; expected "
            f"num_attention_heads={shape.num_heads}"
        )
    if shape.attention_bias and not shape.latent.q_lora_rank:
        raise ValueError("attention_bias=True without q_lora_rank is not done here; expected attention_bias=False")
    sizes = shape.latent
    return LatentAttention(
        sizes.q_lora_rank,
        sizes.kv_lora_rank,
        sizes.qk_nope_head_dim,
        sizes.qk_rope_head_dim,
        shape.head_size_v,
        interleaved=_interleaved(config, shape.model_type),
        scale=_scale(config, sizes.head_size),
    )


def _interleaved(config: Mapping[str, Any], family: str) -> bool:
    """DeepSeek-V2 always is; -V3 says so."""
    given = config.get("rope_interleave", True) if family == "deepseek_v3" else True
    if not isinstance(given, bool):
        raise ValueError(f"expected true or false as rope_interleave, got {given!r}")
    return given


def _scale(config: Mapping[str, Any], head_size: int) -> float:
    """1 / sqrt(elements of a query), times the square of YaRN's magnitude for mscale_all_dim: cos and sin are divided
    by that magnitude, so that the elements that do not turn are scaled alike."""
    found = rope_settings(config)
    factor, mscale = found.get("factor"), found.get("mscale_all_dim")
    magnitude = yarn_magnitude(factor, mscale) if factor and mscale else 1.0
    return float(head_size**-0.5 * magnitude**2)


def check_dense(config: Mapping[str, Any], family: str) -> None:
    """ValueError, with the key, for a DeepSeek model some of whose layers are mixtures of experts."""
    layers = config.get("num_hidden_layers")
    without_experts = "n_routed_experts" in config and config["n_routed_experts"] is None
    if family not in DENSE_LAYERS or without_experts or not isinstance(layers, int):
        return
    dense = config.get("first_k_dense_replace")
    dense = DENSE_LAYERS[family] if dense is None else dense
    if isinstance(dense, bool) or not isinstance(dense, int) or dense < 0:
        raise ValueError(f"expected a whole number of layers as first_k_dense_replace, got {dense!r}")
    if dense < layers:
        experts = config.get("n_routed_experts", "transformers' default")
        raise ValueError(
            f"first_k_dense_replace={dense} with n_routed_experts={experts}: layers {dense} to {layers - 1} are "
            "mixtures of experts, which are not computed here; expected first_k_dense_replace of at least "
            f"num_hidden_layers={layers}, or null as n_routed_experts"
        )
