"""Checkpoints of tiny random models, written without transformers, to be damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.model import Weights, architecture_of, random_weights
from engine.model.names import Naming, hugging_face_names, rows_of
from engine.model.weights import layer_shapes, top_shapes

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 40,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-5,
}


def weights_of(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """Random, float32."""
    return random_weights(architecture_of(config, "test"), seed=seed, dtype=torch.float32)


def named(config: Mapping[str, Any], weights: Weights, naming: Naming = hugging_face_names) -> dict[str, torch.Tensor]:
    """A model's tensors by their stored names."""
    a = architecture_of(config, "test")
    found: dict[str, torch.Tensor] = {}
    places = [(None, weights, top_shapes(a)), *((n, of, layer_shapes(a)) for n, of in enumerate(weights.layers))]
    for layer, holder, shapes in places:
        for field, shape in shapes.items():
            parts = getattr(holder, field).split(rows_of(a, field, shape))
            found |= zip(naming(a, layer, field), (part.contiguous() for part in parts), strict=True)
    return found


def save_folder(
    folder: Path, config: Mapping[str, Any] = CONFIG, tensors: Mapping[str, torch.Tensor] | None = None, shards: int = 1
) -> Path:
    """A folder with config.json and safetensors, sharded with an index if there are several."""
    stored = dict(named(config, weights_of(config)) if tensors is None else tensors)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(stored, folder / "model.safetensors")
        return folder
    names, shard_of = sorted(stored), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = names[number::shards]
        save_file({name: stored[name] for name in part}, folder / file)
        shard_of |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    return folder


def same(one: Weights, other: Weights) -> bool:
    """Bit by bit."""
    return all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))
