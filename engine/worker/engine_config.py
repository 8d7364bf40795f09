"""What an engine is made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.core.suggestion import unknown_name

MOST_SEQS, MOST_TOKENS = 1 << 14, 1 << 20
"""Rows and tokens of a step that buffers are made for at most."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is made from; nothing here depends on an allocator."""

    model: str
    """Catalogue name (random weights), Hugging Face folder, or .gguf file."""
    device: str = "cpu"
    """cpu or cuda."""
    dtype: str = "auto"
    """float32, float16 or bfloat16; auto: float32 on a CPU, the model's own on a GPU."""
    attention: str = "auto"
    """An attention backend that keeps what the model caches, K and V or latents; auto: torch's on a CPU (`reference`,
    `reference-mla`), Triton's on a GPU."""
    layout: str | None = None
    """KV layout by name (kv-first, block-first, interleaved, latent); None: the backend's own."""
    weights_seed: int | None = None
    """Of random weights, whatever the model; None: its own weights, or seed 0 for a catalogue name, which has none."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    """None: the model's."""
    graphs: bool = True
    """Decode steps as CUDA graphs, on a GPU."""
    shared_prefix_kernel: bool = True
    """Decodes take what their block tables have in common once for all rows, where that is long enough to pay."""
    kv_cache_dtype: str = "auto"
    """What K and V are stored in: auto, the model's type, or fp8_e4m3, also called fp8."""
    kv_scales: str = "unit"
    """Of FP8: unit, per-head, per-tensor, or a JSON file; see `engine.worker.kv_storage`."""
    kv_limit_bytes: int | tuple[int, ...] | None = None
    """The most that K and V may take, of every rank or one each; None: what is free on the device."""
    tensor_parallel_size: int = 1
    """Ranks that compute the model together, each with a device of its own (on a CPU: a process); see `open_engine`."""


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name; ValueError if there is none."""
    if name not in DTYPES:
        raise unknown_name("dtype", name, ("auto", *DTYPES))
    return DTYPES[name]
