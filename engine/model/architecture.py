"""What a decoder-only model computes, read from a Hugging Face config.json: sizes, norms, positions, windows, biases.

Seven families: Llama, Mistral, Qwen2 and Qwen3 (RMS norms before each part, rotary positions, a gated MLP), DeepSeek-V2
and -V3 without experts (the same with latent attention, `engine.model.latent`) and OPT (Zhang et al., 2022: layer norms
before each part, learned positions, relu, biases everywhere). Sizes are read by `engine.core.model_shape`, which also
counts parameters; what a configuration asks for beyond that is either done here or refused by name
(`engine.model.config_keys`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from engine.attention.backend import LayerConfig
from engine.core.kv_spec import KVSpec, canonical_dtype
from engine.core.model_shape import ModelShape, read_model_shape
from engine.core.suggestion import unknown_name
from engine.model.config_keys import FAMILIES, check_keys
from engine.model.latent import DENSE_LAYERS, LatentAttention, check_dense, read_latent
from engine.model.rope import Rope, read_rope

OPT_POSITION_OFFSET = 2
"""OPT's learned position of token p is row p + 2 of its table."""
_LAYER_NORM_EPS = 1e-5  # torch's default, which OPT's modules keep
_RMS_NORM_EPS = 1e-6
_MISTRAL_WINDOW = 4096  # transformers' value where the key is absent; `null` means none
_QWEN_FULL_LAYERS = 28
_MAX_LAYERS = 10_000  # more is a damaged file, and would fill the memory before any weight is missed
_TORCH = MappingProxyType({"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything about a model but its weights. ValueError for sizes that do not fit together."""

    family: str
    """`llama`, `mistral`, `qwen2`, `qwen3`, `deepseek_v2`, `deepseek_v3` or `opt`."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    max_model_len: int
    """Longest sequence in tokens, prompt and output together."""
    norm: str
    """`rms`, or `layer` (with bias)."""
    norm_eps: float
    activation: str
    """`silu` or `relu`."""
    gated: bool
    """Whether the MLP has a gate: down(activation(gate(x)) * up(x))."""
    attention_bias: bool
    """On q, k and v; of latent attention on both first projections."""
    output_bias: bool
    """On the projection after attention."""
    mlp_bias: bool
    qk_norm: bool
    """An RMS norm of each query and key head before it is rotated (Qwen3)."""
    rope: Rope | None
    """None: positions are learned."""
    position_offset: int
    """Learned positions: row of the table for position 0; 0 with rope."""
    windows: tuple[int, ...]
    """One a layer: tokens that a token sees, itself included; 0: all before it."""
    tie_embeddings: bool
    """Whether the head that names the next token is the embedding."""
    dtype: str
    """Type of the weights as published, in `engine.core`'s spelling: `bf16`, `fp16` or `fp32`."""
    eos_token_ids: tuple[int, ...] = ()
    latent: LatentAttention | None = None
    """None: K and V of each head are cached."""

    def __post_init__(self) -> None:
        if len(self.windows) != self.num_layers:
            raise ValueError(f"windows: expected one for each of {self.num_layers} layers, got {len(self.windows)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}")
        if self.rope is not None and self.latent is None and self.head_size % 2:
            raise ValueError(f"head_size={self.head_size} must be even: rotary positions turn pairs")

    @property
    def qkv_size(self) -> int:
        """Rows of the matrix that makes q, k and v: (H + 2 * KH) * D; or the latents, see `LayerWeights.qkv`."""
        if self.latent is not None:
            return self.latent.query_rows(self.num_heads) + self.latent.size
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def attention_size(self) -> int:
        """Elements of a token behind attention, all heads: H * D, or H * v_head_dim."""
        return self.num_heads * (self.head_size if self.latent is None else self.latent.v_head_dim)

    @property
    def rotary_size(self) -> int:
        """Elements of a head that turn."""
        return self.head_size if self.latent is None else self.latent.qk_rope_head_dim

    def kv_spec(self, dtype: torch.dtype, tp: int = 1) -> KVSpec:
        """What a token's cache takes in that type, over so many ranks: K and V, or one latent, whole on each rank."""
        if self.latent is not None:
            return KVSpec(self.num_layers, 1, self.latent.size, kind="mla", dtype=str(dtype), tp=tp)
        return KVSpec(self.num_layers, self.num_kv_heads, self.head_size, dtype=str(dtype), tp=tp)

    @property
    def gate_up_size(self) -> int:
        """Rows of the MLP's first matrix: 2 * I with a gate, else I."""
        return self.intermediate_size * (2 if self.gated else 1)

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch's."""
        return _TORCH[self.dtype]

    def layer_config(self, layer: int) -> LayerConfig:
        """What one layer asks of attention."""
        if self.latent is not None:
            size, rank = self.latent.size, self.latent.kv_lora_rank
            return LayerConfig(self.num_heads, 1, size, self.latent.scale, self.windows[layer], kv_lora_rank=rank)
        return LayerConfig(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            scale=self.head_size**-0.5,
            window=self.windows[layer],
        )


def architecture_of(config: Mapping[str, Any], source: str) -> Architecture:
    """Reads a config.json; `source` says in messages where it is from.

    ValueError for a model_type that is not known here, for a key that asks for what is not done here, for one that is
    missing, and for sizes that cannot be.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"{source}: {unknown_name('architecture (model_type)', str(family), FAMILIES)}")
    num_layers = config.get("num_hidden_layers")
    if isinstance(num_layers, int) and num_layers > _MAX_LAYERS:
        raise ValueError(f"{source}: expected at most {_MAX_LAYERS} as num_hidden_layers, got {num_layers}")
    try:
        check_dense(config, family)
        check_keys(config, family, source)
        shape = read_model_shape(config)
        return _opt(config, shape) if family == "opt" else _gated(config, shape, source)
    except ValueError as error:
        if str(error).startswith(f"{source}: "):
            raise
        raise ValueError(f"{source}: {error}") from error


def _gated(config: Mapping[str, Any], shape: ModelShape, source: str) -> Architecture:
    """Llama and its relatives, DeepSeek among them."""
    bias = bool(config.get("attention_bias", False))
    return Architecture(
        family=shape.model_type,
        **_sizes(shape),
        norm="rms",
        norm_eps=_eps(config),
        activation="silu",
        gated=True,
        attention_bias=bias or shape.model_type == "qwen2",
        output_bias=bias,
        mlp_bias=shape.mlp_bias,
        qk_norm=shape.model_type == "qwen3",
        rope=read_rope(config, source),
        position_offset=0,
        windows=_windows(config, shape),
        eos_token_ids=token_ids(config.get("eos_token_id")),
        latent=read_latent(config, shape),
    )


def _opt(config: Mapping[str, Any], shape: ModelShape) -> Architecture:
    return Architecture(
        family=shape.model_type,
        **_sizes(shape),
        norm="layer",
        norm_eps=_LAYER_NORM_EPS,
        activation="relu",
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        rope=None,
        position_offset=OPT_POSITION_OFFSET,
        windows=(0,) * shape.num_layers,
        eos_token_ids=token_ids(config.get("eos_token_id")),
    )


def _sizes(shape: ModelShape) -> dict[str, Any]:
    dtype = canonical_dtype(shape.dtype)
    if dtype not in _TORCH:
        raise ValueError(f"weights of type {dtype!r} are not loaded here; expected one of {', '.join(_TORCH)}")
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "intermediate_size": shape.intermediate_size,
        "max_model_len": shape.max_model_len,
        "tie_embeddings": shape.tie_word_embeddings,
        "dtype": dtype,
    }


def _eps(config: Mapping[str, Any]) -> float:
    eps = config.get("rms_norm_eps", _RMS_NORM_EPS)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        raise ValueError(f"expected a finite number of at least 0 as rms_norm_eps, got {eps!r}")
    return float(eps)


def token_ids(value: Any) -> tuple[int, ...]:
    """A token id, a list of them or none, as a configuration has it. ValueError for anything else."""
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
        raise ValueError(f"expected token ids as eos_token_id, got {value!r}")
    return tuple(ids)


def _windows(config: Mapping[str, Any], shape: ModelShape) -> tuple[int, ...]:
    """transformers' sliding_window lets token i see i - window + 1 to i: the count includes the token itself."""
    if shape.model_type == "mistral":
        return (_window(config.get("sliding_window", _MISTRAL_WINDOW)),) * shape.num_layers
    if shape.model_type in ("llama", *DENSE_LAYERS):
        return (0,) * shape.num_layers
    window = _window(config.get("sliding_window")) if config.get("use_sliding_window", False) else 0
    kinds = config.get("layer_types")
    if kinds is None:
        full = config.get("max_window_layers", _QWEN_FULL_LAYERS)
        return tuple(window if layer >= full else 0 for layer in range(shape.num_layers))
    unknown = sorted({*kinds} - {"full_attention", "sliding_attention"})
    if unknown:
        raise ValueError(f"layer_types: {', '.join(map(repr, unknown))} is not done here")
    if "sliding_attention" in kinds and not window:
        raise ValueError("layer_types has sliding_attention, but use_sliding_window and sliding_window give no window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _window(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"expected a positive number of tokens, or null, as sliding_window, got {value!r}")
    return value
