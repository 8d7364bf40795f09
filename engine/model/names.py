"""What a weight is called in a file: one function from field to stored names for each way of naming.

A field that is several stored weights (q, k and v; gate and up) has several names, whose rows lie one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from engine.model.architecture import Architecture
from engine.model.weights import Shape

Naming = Callable[[Architecture, int | None, str], tuple[str, ...]]
"""Stored names of a field of a layer, or (None) of the model's own."""

_LLAMA_TOP = MappingProxyType(
    {
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "lm_head": "lm_head.weight",
    }
)
_LLAMA_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input_norm": ("input_layernorm",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "o": ("self_attn.o_proj",),
        "q_norm": ("self_attn.q_norm",),
        "k_norm": ("self_attn.k_norm",),
        "post_norm": ("post_attention_layernorm",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    }
)
_LATENT_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **_LLAMA_LAYER,
        "qkv": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
        "q_latent_norm": ("self_attn.q_a_layernorm",),
        "q_up": ("self_attn.q_b_proj",),
        "kv_latent_norm": ("self_attn.kv_a_layernorm",),
        "kv_up": ("self_attn.kv_b_proj",),
    }
)
"""Of DeepSeek."""
_ONE_STEP_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {**_LATENT_LAYER, "qkv": ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa")}
)
"""Of DeepSeek where queries have no latent of their own."""
_OPT_TOP = MappingProxyType(
    {
        "embedding": "model.decoder.embed_tokens.weight",
        "positions": "model.decoder.embed_positions.weight",
        "final_norm": "model.decoder.final_layer_norm.weight",
        "final_norm_bias": "model.decoder.final_layer_norm.bias",
        "lm_head": "lm_head.weight",
    }
)
_OPT_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input_norm": ("self_attn_layer_norm",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "o": ("self_attn.out_proj",),
        "post_norm": ("final_layer_norm",),
        "gate_up": ("fc1",),
        "down": ("fc2",),
    }
)
_GGUF_TOP = MappingProxyType(
    {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
)
_GGUF_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input_norm": ("attn_norm",),
        "qkv": ("attn_q", "attn_k", "attn_v"),
        "o": ("attn_output",),
        "q_norm": ("attn_q_norm",),
        "k_norm": ("attn_k_norm",),
        "post_norm": ("ffn_norm",),
        "gate_up": ("ffn_gate", "ffn_up"),
        "down": ("ffn_down",),
    }
)


def hugging_face_names(a: Architecture, layer: int | None, field: str) -> tuple[str, ...]:
    """As transformers' classes with a language model's head save them."""
    top, each = (_OPT_TOP, _OPT_LAYER) if a.family == "opt" else (_LLAMA_TOP, _LLAMA_LAYER)
    if a.latent is not None:
        each = _LATENT_LAYER if a.latent.q_lora_rank else _ONE_STEP_LAYER
    prefix = "model.decoder.layers" if a.family == "opt" else "model.layers"
    return (top[field],) if layer is None else _layer_names(f"{prefix}.{layer}", each, field)


def gguf_names(_a: Architecture, layer: int | None, field: str) -> tuple[str, ...]:
    """As llama.cpp's converters write them."""
    return (_GGUF_TOP[field],) if layer is None else _layer_names(f"blk.{layer}", _GGUF_LAYER, field)


def _layer_names(prefix: str, names: Mapping[str, tuple[str, ...]], field: str) -> tuple[str, ...]:
    stem = field.removesuffix("_bias")
    kind = "weight" if stem == field else "bias"
    return tuple(f"{prefix}.{name}.{kind}" for name in names[stem])


def rows_of(a: Architecture, field: str, shape: Shape) -> tuple[int, ...]:
    """Rows of each stored weight of a field of that shape, in the order of their names."""
    stem = field.removesuffix("_bias")
    if stem == "qkv" and a.latent is not None:
        return (a.latent.query_rows(a.num_heads), a.latent.size)
    if stem == "qkv":
        keys = a.num_kv_heads * a.head_size
        return (a.num_heads * a.head_size, keys, keys)
    if stem == "gate_up" and a.gated:
        return (a.intermediate_size, a.intermediate_size)
    return (shape[0],)
