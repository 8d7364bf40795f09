"""Tiny random models of transformers, one for each way of computing that is done here."""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 97
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GATED = {**_SIZES, "intermediate_size": 80, "num_key_value_heads": 2}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 1,
    "beta_slow": 0.25,
}
_DEEPSEEK = {
    **_SIZES,
    "intermediate_size": 80,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
}
LATENT = ("deepseek-v2", "deepseek-v2-plain-rope", "deepseek-v3", "deepseek-v3-biases-halves", "deepseek-v3-one-step")
"""Those that cache latents."""
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _GATED),
    "llama-biases-wide-heads-tied": (
        "Llama",
        {**_GATED, "head_dim": 24, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama-rope-llama3": ("Llama", {**_GATED, "rope_parameters": _LLAMA3}),
    "llama-rope-linear": (
        "Llama",
        {**_GATED, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}},
    ),
    "llama-rope-yarn": ("Llama", {**_GATED, "rope_parameters": _YARN}),
    "mistral-window": ("Mistral", {**_GATED, "head_dim": 8, "sliding_window": 7}),
    "mistral-no-window": ("Mistral", {**_GATED, "head_dim": 8, "sliding_window": None}),
    "qwen2": ("Qwen2", {**_GATED, "head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 1}),
    "qwen2-window-above": (
        "Qwen2",
        {**_GATED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**_GATED, "head_dim": 16, "rms_norm_eps": 1e-5}),
    "qwen3-window-by-layer": (
        "Qwen3",
        {
            **_GATED,
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "deepseek-v2": ("DeepseekV2", {**_DEEPSEEK, "q_lora_rank": None, "mlp_bias": True}),
    "deepseek-v2-plain-rope": (
        "DeepseekV2",
        {**_DEEPSEEK, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 1e-3},
    ),
    "deepseek-v3": ("DeepseekV3", _DEEPSEEK),
    "deepseek-v3-biases-halves": ("DeepseekV3", {**_DEEPSEEK, "attention_bias": True, "rope_interleave": False}),
    "deepseek-v3-one-step": ("DeepseekV3", {**_DEEPSEEK, "q_lora_rank": None, "tie_word_embeddings": True}),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 80}),
    "opt-untied": ("OPT", {**_SIZES, "ffn_dim": 80, "tie_word_embeddings": False}),
}
"""Name, then transformers' class and its configuration."""


def hugging_face(name: str, seed: int = 0, **changes: Any) -> Any:
    """A model whose every parameter is random: biases not 0 and norms not 1, as they begin, but told apart. `changes`:
    of its configuration."""
    import transformers

    kind, config = CONFIGS[name]
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**{**config, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if "norm" in label and label.endswith("weight"):
                parameter.add_(1.0)
    return model.eval().float()


def text(length: int, seed: int) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


@torch.no_grad()
def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits [tokens, V] of one pass over all of them."""
    return model(torch.tensor([tokens])).logits[0]
