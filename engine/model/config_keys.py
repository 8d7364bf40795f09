"""Which keys of a config.json are read, which must have one value, and which say nothing about the computation.

A key in none of these lists is refused unless it is switched off: what it would change is not known here, and a model
that is silently computed in another way looks like a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
_GATED = (*_SIZES, *_ROPE, "intermediate_size", "num_key_value_heads", "head_dim", "rms_norm_eps")
_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
_SIZES_OF_LATENTS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK = (*_GATED, *_SIZES_OF_LATENTS, "q_lora_rank", "attention_bias", "first_k_dense_replace", "n_routed_experts")
_OF_EXPERTS = frozenset(
    {
        "aux_loss_alpha",
        "ep_size",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_group",
        "n_shared_experts",
        "norm_topk_prob",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "scoring_func",
        "seq_aux",
        "topk_group",
        "topk_method",
    }
)
"""Of DeepSeek's mixtures of experts: without such layers they say nothing."""
_BESIDE = frozenset({"auto_map", "num_nextn_predict_layers", "qk_head_dim"})
"""Of DeepSeek: its own modelling files; heads that guess further tokens, which nobody asks here; a sum of two sizes."""

_READ: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "llama": frozenset({*_GATED, "attention_bias", "mlp_bias"}),
        "mistral": frozenset({*_GATED, "sliding_window"}),
        "qwen2": frozenset({*_GATED, *_WINDOWS}),
        "qwen3": frozenset({*_GATED, *_WINDOWS, "attention_bias"}),
        "deepseek_v2": frozenset({*_DEEPSEEK, *_OF_EXPERTS, *_BESIDE, "mlp_bias"}),
        "deepseek_v3": frozenset({*_DEEPSEEK, *_OF_EXPERTS, *_BESIDE, "rope_interleave"}),
        "opt": frozenset({*_SIZES, "ffn_dim"}),
    }
)
FAMILIES = tuple(_READ)
"""Values of `model_type` that are computed here."""

_NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "llama": ("intermediate_size",),
        "mistral": ("intermediate_size", "num_key_value_heads"),
        "qwen2": ("intermediate_size", "num_key_value_heads"),
        "qwen3": ("intermediate_size", "num_key_value_heads", "head_dim"),
        "deepseek_v2": ("intermediate_size", *_SIZES_OF_LATENTS),
        "deepseek_v3": ("intermediate_size", *_SIZES_OF_LATENTS),
        "opt": ("ffn_dim",),
    }
)
"""Keys without which transformers takes a constant that only fits one model."""

_MUST_BE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        **{family: {"hidden_act": "silu"} for family in _READ if family != "opt"},
        "opt": {
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
        },
    }
)

_EVERYWHERE = frozenset({"model_type", "dtype", "torch_dtype", "tie_word_embeddings", "eos_token_id"})
_SAYS_NOTHING = frozenset(
    {
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "activation_dropout",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "bos_token_id",
        "decoder_start_token_id",
        "dropout",
        "hidden_dropout",
        "init_std",
        "initializer_range",
        "layerdrop",
        "max_length",
        "max_sequence_length",
        "pad_token_id",
        "prefix",
        "pretraining_tp",  # how the product was split in training: the same sum in another order
        "return_dict",
        "task_specific_params",
        "tokenizer_class",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)


def check_keys(config: Mapping[str, Any], family: str, source: str) -> None:
    """ValueError, with names and values, for every key that asks for what is not done here, or is missing."""
    missing = [key for key in _NEEDED[family] if config.get(key) is None]
    if missing:
        raise ValueError(f"{source}: model_type {family!r} needs {', '.join(missing)}, which the config does not give")
    if family == "opt":
        _check_opt_width(config, source)
    for key, wanted in _MUST_BE[family].items():
        if config.get(key, wanted) != wanted:
            raise ValueError(f"{source}: {key}={config[key]!r} is not done here; expected {wanted!r}")
    known = {*_READ[family], *_MUST_BE[family], *_EVERYWHERE, *_SAYS_NOTHING, "word_embed_proj_dim"}
    refused = {key: value for key, value in config.items() if key not in known and not _is_off(value)}
    if refused:
        shown = ", ".join(f"{key}={value!r:.60}" for key, value in sorted(refused.items()))
        raise ValueError(
            f"{source}: {shown}: what this changes in a {family!r} model is not done here; "
            "set it to null if it changes nothing"
        )


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ([], {}, "")


def _check_opt_width(config: Mapping[str, Any], source: str) -> None:
    width, hidden = config.get("word_embed_proj_dim"), config.get("hidden_size")
    if width is not None and width != hidden:
        raise ValueError(
            f"{source}: word_embed_proj_dim={width!r} is not done here (embeddings of another width than the layers); "
            f"expected hidden_size={hidden!r}"
        )
