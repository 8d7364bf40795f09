"""A GGUF file as a model: its architecture from the metadata, its tensors dequantised to float32.

Block-quantised tensors are read by the NumPy code of the `gguf` package (an extra). llama.cpp stores the query and key
rows of Llama and Mistral so that its rotation turns neighbours (2i, 2i + 1); they are put back into the half-split
order (i, i + D/2) in which everything here, as transformers, rotates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from engine.model.architecture import Architecture, architecture_of
from engine.model.gguf_header import GGUFHeader, TensorPlace, read_header
from engine.model.weights import Shape

_PERMUTED = "llama"  # llama.cpp's name for Llama and Mistral
_KEYS = MappingProxyType(
    {
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "context_length": "max_position_embeddings",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "rope.freq_base": "rope_theta",
    }
)
"""Metadata, behind the architecture's name, and what config.json calls it."""
_CHECKED = frozenset({"vocab_size", "rope.dimension_count", "attention.value_length", "rope.scaling.type"})
_FAMILIES = ("llama", "qwen2", "qwen3")


class GGUFFile:
    """Tensors by name, in the order of axes and rows that the rest of this package has.

    ModuleNotFoundError without the package gguf; ValueError for a file that is not whole, a model that is not computed
    here, a storage type that the package does not read.
    """

    def __init__(self, path: Path) -> None:
        self.header = read_header(path)
        self._quantised = _package(path)
        for name, place in self.header.tensors.items():
            end = place.offset + self._num_bytes(name, place)
            if end > self.header.num_bytes:
                raise ValueError(
                    f"{path}: truncated: tensor {name} ends at byte {end}, the file at byte {self.header.num_bytes}"
                )
        self.architecture: Architecture = architecture_of(config_of(self.header), self.where)
        a = self.architecture
        self._permuted = {".attn_q.": a.num_heads, ".attn_k.": a.num_kv_heads} if a.family == _PERMUTED else {}
        self._data = np.memmap(path, dtype=np.uint8, mode="r")

    @property
    def where(self) -> str:
        """The file."""
        return str(self.header.path)

    def shapes(self) -> Mapping[str, Shape]:
        """Every tensor."""
        return {name: place.shape for name, place in self.header.tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        """One tensor, float32."""
        place = self.header.tensors[name]
        raw = self._data[place.offset : place.offset + self._num_bytes(name, place)]
        kind = self._quantised.GGMLQuantizationType(place.type_id)
        # As one row: blocks never cross rows, and the package works on a few rows at a time.
        values = self._quantised.dequantize(raw.reshape(1, -1), kind)
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy()).view(place.shape)
        heads = next((count for part, count in self._permuted.items() if part in name), 0)
        return _half_split(tensor, heads) if heads else tensor

    def read_part(self, name: str, axis: int, start: int, stop: int) -> torch.Tensor:
        """A part along an axis, float32; the whole tensor is unpacked for it."""
        return self.read(name).narrow(axis, start, stop - start)

    def _num_bytes(self, name: str, place: TensorPlace) -> int:
        """Bytes of a tensor as it is stored. ValueError for a type or row length that cannot be read."""
        where = f"{self.header.path}: tensor {name}"
        try:
            kind = self._quantised.GGMLQuantizationType(place.type_id)
            per_block, block_bytes = self._quantised.GGML_QUANT_SIZES[kind]
            self._quantised.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ValueError(f"{where} is stored as ggml type {place.type_id}, which is not read here") from error
        if place.shape[-1] % per_block:
            raise ValueError(f"{where}: rows of {place.shape[-1]} do not fill {kind.name} blocks of {per_block}")
        num_blocks = math.prod(place.shape) // int(per_block)
        return num_blocks * int(block_bytes)


def _package(path: Path) -> Any:
    """The gguf package."""
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path}: reading GGUF needs the package gguf: pip install 'pagelab[gguf]'"
        ) from error
    return gguf


def _half_split(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows (or biases) of heads from the order 0, D/2, 1, D/2 + 1, ... back to 0, 1, ..., D - 1."""
    pairs = rows.view(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def config_of(header: GGUFHeader) -> dict[str, Any]:
    """The config.json that the metadata amounts to. ValueError for keys that say what is not done here."""
    metadata, where = header.metadata, header.path
    model = metadata.get("general.architecture")
    if model not in _FAMILIES:
        raise ValueError(f"{where}: architecture {model!r} is not read from GGUF here; expected {', '.join(_FAMILIES)}")
    own = {key.removeprefix(f"{model}."): value for key, value in metadata.items() if key.startswith(f"{model}.")}
    refused = {key: value for key, value in own.items() if key not in _KEYS and key not in _CHECKED and value}
    if refused:
        shown = ", ".join(f"{model}.{key}={value!r:.60}" for key, value in refused.items())
        raise ValueError(f"{where}: {shown}: what this changes in a {model!r} model is not done here")
    config: dict[str, Any] = {name: own[key] for key, name in _KEYS.items() if key in own}
    _check_heads(own, config, header)
    config |= {
        "model_type": model,
        "vocab_size": _vocab_size(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }
    if model == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    return config


def _check_heads(own: Mapping[str, Any], config: Mapping[str, Any], header: GGUFHeader) -> None:
    """The head sizes that the file gives in several ways are one size, and the whole of it is rotated."""
    scaling = own.get("rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in header.tensors:
        raise ValueError(f"{header.path}: stretched rotary positions ({scaling}) are not read from GGUF here")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        raise ValueError(f"{header.path}: expected an embedding_length and a head_count, got {hidden!r} and {heads!r}")
    head_size = config.get("head_dim", hidden // heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.get(key, head_size) != head_size:
            raise ValueError(f"{header.path}: expected {key} to be the head size {head_size}, got {own[key]!r}")


def _vocab_size(header: GGUFHeader) -> int:
    place = header.tensors.get("token_embd.weight")
    if place is None:
        raise ValueError(f"{header.path}: missing weight token_embd.weight, which every model needs")
    return place.shape[0]
