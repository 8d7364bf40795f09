"""The dimensions of a decoder-only model, read from a Hugging Face config.json.

No default is guessed where a guess could be wrong: head_dim comes from the file if the file has it (hidden /
heads is wrong for many models), latent attention is recognised by kv_lora_rank, the rest is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.core.kv_spec import Kind, KVSpec, canonical_dtype
from engine.core.layer_kinds import read_layer_kinds

_NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head": ("head_dim", "kv_channels"),
    "inner": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "length": ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length"),
    "vocab": ("vocab_size", "padded_vocab_size"),
}
_STRETCHING = ("linear", "dynamic")


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention; names and meaning as in the DeepSeek-V2 configuration."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    q_lora_rank: int
    """0: queries are projected in one step."""

    @property
    def size(self) -> int:
        """Elements stored per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def head_size(self) -> int:
        """Elements of a query or key of one head, as computed (never stored)."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in place of the dense MLP."""

    num_routed: int
    num_shared: int
    intermediate_size: int
    num_dense_layers: int
    """Leading layers that keep a dense MLP."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's size follows from: its KV, its parameters and its longest context."""

    name: str
    model_type: str
    num_layers: int
    num_kv_layers: int
    """Layers that hold KV; fewer than num_layers in hybrids."""
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    """Elements of a K vector of one head."""
    head_size_v: int
    """Elements of a V vector of one head."""
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    """Longest context in tokens, prompt and output together."""
    dtype: str
    """Storage type of the weights, and of the KV unless told otherwise."""
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    latent: Latent | None
    experts: Experts | None
    notes: tuple[str, ...]

    def kv_spec(self, dtype: str | None = None, tp: int = 1, pp: int = 1) -> KVSpec:
        """The KV cache of this model in `dtype` (the model's own by default) over `tp * pp` ranks."""
        kind: Kind = "mla" if self.latent else "attention"
        return KVSpec(
            num_layers=self.num_kv_layers,
            num_kv_heads=1 if self.latent else self.num_kv_heads,
            head_size=self.latent.size if self.latent else self.head_size,
            head_size_v=0 if self.latent else self.head_size_v,
            kind=kind,
            dtype=dtype or self.dtype,
            tp=tp,
            pp=pp,
            model_notes=self.notes,
        )


def read_model_shape(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """Reads a config.json.

    ValueError names the key that is missing or not understood; models without KV and encoder-decoders are
    refused.
    """
    text, notes = _text_part(config)
    if text.get("is_encoder_decoder"):
        raise ValueError("is_encoder_decoder: only decoder-only models are sized here")
    num_layers, hidden = _size(text, "layers"), _size(text, "hidden")
    num_heads, latent = _size(text, "heads"), _latent(text)
    kinds = read_layer_kinds(text, num_layers)
    if kinds.num_kv_layers < 1:
        raise ValueError(f"none of the {num_layers} layers holds KV")
    head_size = latent.head_size if latent else _head_size(text, hidden, num_heads)
    return ModelShape(
        name=name or str(text.get("model_type", "")),
        model_type=str(text.get("model_type", "")),
        num_layers=num_layers,
        num_kv_layers=kinds.num_kv_layers,
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=num_heads if latent else _num_kv_heads(text, num_heads),
        head_size=head_size,
        head_size_v=_optional(text, ("v_head_dim",)) or head_size,
        intermediate_size=_optional(text, _NAMES["inner"]) or 4 * hidden,
        vocab_size=_size(text, "vocab"),
        max_model_len=_max_model_len(text),
        dtype=canonical_dtype(str(text.get("dtype") or text.get("torch_dtype") or "bf16")),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", text.get("model_type") in ("gpt2", "opt"))),
        attention_bias=bool(text.get("attention_bias", False)),
        mlp_bias=bool(text.get("mlp_bias", False)),
        latent=latent,
        experts=_experts(text, num_layers),
        notes=(*notes, *kinds.notes, *_weight_notes(text)),
    )


def _text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The language model's own keys, over those of the configurations around it."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            outer = {name: value for name, value in config.items() if name != key}
            text, notes = _text_part({**outer, **inner})
            return text, [f"read from {key}: the other parts of the model are not counted", *notes]
    return config, []


def _size(config: Mapping[str, Any], what: str) -> int:
    found = _optional(config, _NAMES[what])
    if found is None:
        raise ValueError(f"the config has none of {', '.join(_NAMES[what])}")
    return found


def _optional(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of `names` that is set. ValueError unless it is a positive integer."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, the same in all layers, got {value!r}")
        return value
    return None


def _num_kv_heads(config: Mapping[str, Any], num_heads: int) -> int:
    """KV heads; all heads where the file says nothing, as the older multi-head configurations do."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    num_kv_heads = _optional(config, _NAMES["kv_heads"]) or num_heads
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} KV heads")
    return num_kv_heads


def _head_size(config: Mapping[str, Any], hidden: int, num_heads: int) -> int:
    explicit = _optional(config, _NAMES["head"])
    if explicit is None and hidden % num_heads:
        raise ValueError(f"no head_dim, and hidden size {hidden} is not a multiple of {num_heads} heads")
    return explicit or hidden // num_heads


def _latent(config: Mapping[str, Any]) -> Latent | None:
    rank = _optional(config, ("kv_lora_rank",))
    if rank is None:
        return None
    rope, nope = _optional(config, ("qk_rope_head_dim",)), _optional(config, ("qk_nope_head_dim",))
    if rope is None or nope is None:
        raise ValueError("kv_lora_rank without qk_rope_head_dim and qk_nope_head_dim")
    return Latent(rank, rope, nope, _optional(config, ("q_lora_rank",)) or 0)


def _experts(config: Mapping[str, Any], num_layers: int) -> Experts | None:
    """None where all layers are dense: without experts, or with as many leading dense layers as there are layers."""
    num_routed = _optional(config, ("n_routed_experts", "num_local_experts", "num_experts"))
    if num_routed is None:
        return None
    num_dense = int(config.get("first_k_dense_replace") or 0)
    if num_dense >= num_layers:
        return None
    inner = _optional(config, ("moe_intermediate_size", *_NAMES["inner"]))
    if inner is None:
        raise ValueError("a mixture of experts without moe_intermediate_size or intermediate_size")
    num_shared = int(config.get("n_shared_experts") or 0)
    return Experts(num_routed, num_shared, inner, num_dense)


def _max_model_len(config: Mapping[str, Any]) -> int:
    """Positions the file allows, times the factor of those rope scalings that leave it out of that number."""
    length = _size(config, "length")
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ValueError(f"rope_scaling (or rope_parameters): expected an object, got {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in _STRETCHING:
        return length
    factor = scaling.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
        raise ValueError(f"rope type {kind!r} without a positive number as factor, got {factor!r}")
    return int(length * factor)


def _weight_notes(config: Mapping[str, Any]) -> list[str]:
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is None:
        return []
    return [f"{method} checkpoint: weights are counted in the type asked for, not as stored"]
