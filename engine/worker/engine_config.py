"""What an engine is made from."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from engine.attention.layouts import KVLayout
from engine.attention.registry import BACKENDS
from engine.core.option_checks import MOST_SEED, check_choice, check_switch, check_text, check_whole
from engine.worker.budget import EngineError

MOST_SEQS, MOST_TOKENS = 1 << 14, 1 << 20
"""Rows and tokens of a step that buffers are made for at most."""
DEVICES = ("cpu", "cuda")
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

    def check(self) -> None:
        """EngineError, by the option's name, for a value that none of its kind can be; what a model, a backend or a
        device does not take is refused where these are known."""
        try:
            self._check_names()
            self._check_numbers()
        except ValueError as error:
            raise EngineError(str(error)) from error

    def _check_names(self) -> None:
        check_text("model", self.model, "a catalogue name, a Hugging Face folder or a .gguf file, as a text")
        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, ("auto", *DTYPES))
        check_choice("attention", self.attention, ("auto", *BACKENDS), "attention backend")
        if self.layout is not None:
            check_choice("layout", self.layout, LAYOUTS, "KV layout")
        check_text("kv_cache_dtype", self.kv_cache_dtype, "auto or a storage type (fp8_e4m3), as a text")
        if not isinstance(self.kv_scales, os.PathLike):
            check_text("kv_scales", self.kv_scales, SCALES_EXPECTED)
        for name in ("graphs", "shared_prefix_kernel"):
            check_switch(name, getattr(self, name))

    def _check_numbers(self) -> None:
        check_whole("max_num_seqs", self.max_num_seqs, 1, MOST_SEQS)
        check_whole("max_num_batched_tokens", self.max_num_batched_tokens, 1, MOST_TOKENS)
        check_whole("tensor_parallel_size", self.tensor_parallel_size, 1)
        for name, least, most in (("max_model_len", 1, None), ("weights_seed", 0, MOST_SEED)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least, most)
        limit, size = self.kv_limit_bytes, self.tensor_parallel_size
        for one in limit if isinstance(limit, tuple) else () if limit is None else (limit,):
            check_whole("kv_limit_bytes", one, 0)
        if isinstance(limit, tuple) and len(limit) != size:
            raise ValueError(f"kv_limit_bytes: expected one for all or one for each of {size} ranks, got {limit}")


LAYOUTS = {layout.name.lower().replace("_", "-"): layout for layout in KVLayout}
"""By the names that options give them."""
SCALES_EXPECTED = "unit, per-head, per-tensor, or the name of a JSON file"
