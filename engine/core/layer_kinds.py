"""Which layers of a model hold KV that grows with the sequence, read from its config.json.

Most models have one kind of layer. Hybrids mix attention with windows or with recurrent layers, and say so in
a dozen ways; what is not understood here is refused: a wrong layer count would silently scale every result.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FULL = frozenset({"full_attention", "attention", "full", "*"})
WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
WITHOUT_KV = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "mlp", "moe"})
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_RECURRENT_KEYS = (
    "linear_attn_config",
    "mamba_d_state",
    "rwkv_version",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
)
_UNEVEN_KEYS = ("block_configs", "global_head_dim", "num_global_key_value_heads", "swa_num_key_value_heads")


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """How many layers hold KV, and what the count stands for."""

    num_kv_layers: int
    notes: tuple[str, ...]


def read_layer_kinds(config: Mapping[str, Any], num_layers: int) -> LayerKinds:
    """Counts the layers with KV. ValueError for layers of different shapes and for kinds unknown here."""
    for key in _UNEVEN_KEYS:
        if config.get(key) is not None:
            raise ValueError(f"{key} is set: layers of different KV shapes have no single block size")
    kinds = _kinds(config, num_layers)
    if len(kinds) != num_layers:
        raise ValueError(f"{num_layers} layers, but the config names the kind of {len(kinds)}")
    counts = Counter(kinds)
    unknown = sorted(set(counts) - FULL - WINDOWED - WITHOUT_KV)
    if unknown:
        raise ValueError(f"layer kind {', '.join(map(repr, unknown))}: how much KV it holds is not known")
    without = {kind: counts[kind] for kind in sorted(counts) if kind in WITHOUT_KV}
    holding = num_layers - sum(without.values())
    shared = int(config.get("num_kv_shared_layers") or 0)
    notes = _without_notes(without, num_layers) + _window_notes(config, counts) + _other_notes(config, shared)
    return LayerKinds(holding - shared, tuple(notes))


def _kinds(config: Mapping[str, Any], num_layers: int) -> Sequence[str]:
    for key in ("layer_types", "layers_block_type"):
        if config.get(key) is not None:
            return [str(kind) for kind in config[key]]
    if config.get("hybrid_override_pattern") is not None:
        return [_PATTERN.get(letter, letter) for letter in config["hybrid_override_pattern"]]
    if config.get("attn_type_list") is not None:
        return ["attention" if flag == 1 else "linear_attention" for flag in config["attn_type_list"]]
    attending = _attending_layers(config, num_layers)
    if attending is not None:
        return ["attention" if layer in attending else "mamba" for layer in range(num_layers)]
    for key in _RECURRENT_KEYS:
        if config.get(key) is not None:
            raise ValueError(f"{key} is set: recurrent layers, but nothing says which layers hold KV")
    return ["attention"] * num_layers


def _attending_layers(config: Mapping[str, Any], num_layers: int) -> set[int] | None:
    """Layers with KV where the config gives their positions; None where it does not."""
    if config.get("attn_layer_indices") is not None:
        return set(config["attn_layer_indices"])
    if config.get("full_attention_interval") is not None:
        interval = int(config["full_attention_interval"])
        return {layer for layer in range(num_layers) if (layer + 1) % interval == 0}
    if config.get("attn_layer_period") is not None:
        period, offset = int(config["attn_layer_period"]), int(config.get("attn_layer_offset") or 0)
        return {layer for layer in range(num_layers) if layer % period == offset}
    return None


def _without_notes(without: Mapping[str, int], num_layers: int) -> list[str]:
    if not without:
        return []
    kinds = ", ".join(f"{count} {kind}" for kind, count in without.items())
    left = num_layers - sum(without.values())
    return [f"{left} of {num_layers} layers hold KV ({kinds}); a fixed state per sequence is not counted"]


def _window_notes(config: Mapping[str, Any], counts: Counter[str]) -> list[str]:
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    window = window or config.get("attention_chunk_size")
    windowed = sum(counts[kind] for kind in WINDOWED)
    if not window and not windowed:
        return []
    where = f"{windowed} layers have" if windowed else "some or all layers have"
    if window and (not isinstance(window, int) or isinstance(window, bool)):
        raise ValueError(f"sliding_window: expected a whole number of tokens, got {window!r}")
    width = f"{window:,} tokens" if window else "unstated width"
    return [f"{where} a window of {width}: counted as if they kept every token, an upper bound beyond it"]


def _other_notes(config: Mapping[str, Any], shared: int) -> list[str]:
    notes = []
    if shared:
        notes.append(f"the last {shared} layers reuse the KV of earlier ones: not counted")
    if config.get("index_head_dim"):
        notes.append(f"an indexer keeps {config['index_head_dim']} more elements per token and layer: not counted")
    if config.get("cross_attention_layers"):
        count = len(config["cross_attention_layers"])
        notes.append(f"{count} cross-attention layers keep KV of the other input: counted as if of every token")
    return notes
