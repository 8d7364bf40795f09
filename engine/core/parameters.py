"""Exact parameter counts, layer by layer, of the architectures in the catalogue.

The weights are what a GPU holds before any KV, so a capacity is only as exact as this count. Totals agree
with the published ones to the last parameter. Unknown architectures are refused: an estimate would pass for a
count.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from engine.core.kv_spec import DTYPE_BITS, canonical_dtype
from engine.core.model_shape import ModelShape
from engine.core.suggestion import unknown_name

_OPT_EXTRA_POSITIONS = 2  # OPT's learned positions start at index 2
_QKV_BIAS = frozenset({"qwen2"})  # biases on q, k, v and none on o, which no config key says
_QK_NORM = frozenset({"qwen3", "qwen3_moe"})


def num_parameters(shape: ModelShape) -> int:
    """Parameters of the whole model. ValueError for an architecture whose layers are not known here."""
    count = COUNTS.get(shape.model_type)
    if count is None:
        what = "architecture without a parameter count (give the bytes of the weights instead):"
        raise unknown_name(what, shape.model_type, COUNTS)
    return count(shape)


def weight_bytes(shape: ModelShape, dtype: str | None = None) -> int:
    """Bytes of all weights in `dtype`, the model's own by default; the whole model, not one rank."""
    bits = DTYPE_BITS[canonical_dtype(dtype or shape.dtype)]
    return -(-num_parameters(shape) * bits // 8)


def _rms_norm_decoder(shape: ModelShape) -> int:
    """Llama and its relatives: gated MLP, RMS norms, rotary positions, dense or with experts."""
    attention = _latent_attention(shape) if shape.latent else _grouped_attention(shape)
    layers = shape.num_layers * (attention + 2 * shape.hidden_size) + _mlps(shape)
    return _embeddings(shape) + layers + shape.hidden_size


def _embeddings(shape: ModelShape) -> int:
    return shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)


def _grouped_attention(shape: ModelShape) -> int:
    hidden, queries = shape.hidden_size, shape.num_heads * shape.head_size
    keys, values = shape.num_kv_heads * shape.head_size, shape.num_kv_heads * shape.head_size_v
    output = shape.num_heads * shape.head_size_v * hidden
    matrices = hidden * (queries + keys + values) + output
    biases = queries + keys + values if shape.attention_bias or shape.model_type in _QKV_BIAS else 0
    biases += hidden if shape.attention_bias else 0
    return matrices + biases + (2 * shape.head_size if shape.model_type in _QK_NORM else 0)


def _latent_attention(shape: ModelShape) -> int:
    """DeepSeek-V2's projections: down to the latents, a norm on each, and up to the heads."""
    latent = shape.latent
    assert latent is not None
    hidden, queries = shape.hidden_size, shape.num_heads * latent.head_size
    rank = latent.q_lora_rank
    query = hidden * rank + rank + rank * queries if rank else hidden * queries
    heads = shape.num_heads * (latent.qk_nope_head_dim + shape.head_size_v)
    key_value = hidden * latent.size + latent.kv_lora_rank + latent.kv_lora_rank * heads
    biases = (rank + latent.size + hidden) if shape.attention_bias else 0
    return query + key_value + shape.num_heads * shape.head_size_v * hidden + biases


def _mlps(shape: ModelShape) -> int:
    dense = 3 * shape.hidden_size * shape.intermediate_size
    dense += 2 * shape.intermediate_size + shape.hidden_size if shape.mlp_bias else 0
    experts = shape.experts
    if experts is None:
        return shape.num_layers * dense
    expert = 3 * shape.hidden_size * experts.intermediate_size
    router = shape.hidden_size * experts.num_routed
    router += experts.num_routed if shape.model_type == "deepseek_v3" else 0  # its balancing bias
    sparse = (experts.num_routed + experts.num_shared) * expert + router
    return experts.num_dense_layers * dense + (shape.num_layers - experts.num_dense_layers) * sparse


def _layer_norm_decoder(shape: ModelShape, num_positions: int) -> int:
    """OPT, GPT-2 and GPT-NeoX: plain MLP, two layer norms a layer and one at the end, biases everywhere."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    layer = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return _embeddings(shape) + num_positions * hidden + shape.num_layers * layer + 2 * hidden


def _opt(shape: ModelShape) -> int:
    return _layer_norm_decoder(shape, shape.max_model_len + _OPT_EXTRA_POSITIONS)


def _gpt2(shape: ModelShape) -> int:
    return _layer_norm_decoder(shape, shape.max_model_len)


def _gpt_neox(shape: ModelShape) -> int:
    return _layer_norm_decoder(shape, 0)


COUNTS: Mapping[str, Callable[[ModelShape], int]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("deepseek_v2", "deepseek_v3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
            _rms_norm_decoder,
        ),
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "opt": _opt,
    }
)
"""How each architecture (`model_type` of the config) is counted."""
