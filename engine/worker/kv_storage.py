"""What K and V are stored in: the model's type, or FP8 with a scale for every layer and KV head.

Scales are `unit` (all 1, as in vLLM), read from a JSON file, or fitted to the first prompts before any of them runs:
`per-head`, or `per-tensor` as vLLM's calculate_kv_scales. A fitted scale stores the largest magnitude that was seen as
a quarter of E4M3's largest number; what comes later and is more than four times as large saturates. What was fitted
stays: completions depend on the prompts of the first call, not on how memory is managed.

A file says {"k": [...], "v": [...]}: an entry a layer, one number or one a KV head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.builders import MetadataBuilder
from engine.attention.checks import FP8, AttentionInputError, short
from engine.attention.kv_scales import KVScales
from engine.attention.registry import BACKENDS
from engine.core.kv_spec import canonical_dtype
from engine.model.decoder import Decoder
from engine.worker.budget import EngineError
from engine.worker.engine_config import SCALES_EXPECTED
from engine.worker.kv_memory import KVMemory

if TYPE_CHECKING:
    from engine.model.architecture import Architecture
    from engine.worker.engine import Engine, EngineConfig

FITTED = ("per-head", "per-tensor")
MOST_FITTED_TOKENS = 1024
"""Of the prompts that scales are fitted to; K and V of so many lie unquantized in memory meanwhile."""


@dataclass(slots=True)
class KVStorage:
    """How an engine stores K and V. Scales are changed in place: what was captured sees them."""

    dtype: torch.dtype
    scales: list[KVScales] | None = None
    """One a layer; None: K and V have the model's type."""
    source: str = ""
    """unit, per-head, per-tensor, or the file's name."""
    waits: bool = False
    """Whether scales are still to be fitted to the first prompts."""

    @property
    def provenance(self) -> dict[str, Any]:
        """For the record."""
        scales = {} if self.scales is None else {"kv_scales": self.source, "kv_scales_fitted": not self.waits}
        return {"kv_cache_dtype": "fp8_e4m3" if self.dtype == FP8 else short(self.dtype), **scales}

    def to_dict(self) -> dict[str, list[list[float]]]:
        """The scales as a file has them; nothing without scales."""
        return {name: [getattr(one, name).tolist() for one in self.scales or ()] for name in ("k", "v")}

    def fit(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
        """Fits scales that wait for it to prompts of token ids: computes them once, without quantization."""
        if not self.waits or self.scales is None or not prompts:
            return
        kv = _computed(engine, _first_tokens(prompts, engine.limits.max_model_len))
        for layer, scales in enumerate(self.scales):
            scales.copy_(KVScales.fitted(*kv.views(layer), per_head=self.source == "per-head"))
        self.waits = False


def storage_of(
    config: EngineConfig,
    architecture: Architecture,
    backend: type[AttentionBackend],
    dtype: torch.dtype,
    device: torch.device,
) -> KVStorage:
    """What a configuration asks for. EngineError or ValueError for what nobody stores."""
    name, source = config.kv_cache_dtype, config.kv_scales
    wanted = canonical_dtype(short(dtype) if name == "auto" else name)
    if wanted == canonical_dtype(short(dtype)):
        if source != "unit":
            raise EngineError(f"kv_scales={source}: K and V are stored as they are; say kv_cache_dtype=fp8_e4m3")
        return KVStorage(dtype)
    if wanted != "fp8_e4m3":
        raise EngineError(
            f"kv_cache_dtype: expected auto, {short(dtype)} or fp8_e4m3 (fp8), got {name!r}: no attention backend "
            "stores it, only the capacity arithmetic knows it"
        )
    if FP8 not in backend.capabilities().kv_dtypes:
        raise EngineError(f"kv_cache_dtype: attention backend {backend.get_name()} keeps no FP8: {_instead(backend)}")
    if source != "unit" and config.tensor_parallel_size > 1:
        raise EngineError(
            f"kv_scales={source}: several ranks keep FP8 by unit scales only: say unit, or tensor_parallel_size=1"
        )
    heads, layers = architecture.num_kv_heads, architecture.num_layers
    if source == "unit" or source in FITTED:
        scales = [KVScales.of(1.0, 1.0, heads, device) for _ in range(layers)]
        return KVStorage(FP8, scales, source, waits=source in FITTED)
    return KVStorage(FP8, _read(Path(source), layers, heads, device), Path(source).name)


def _instead(backend: type[AttentionBackend]) -> str:
    """What a user of a backend without FP8 can do."""
    latent = backend.capabilities().mla
    found = ((name, one.capabilities()) for name, one in BACKENDS.items())
    able = [name for name, can in found if FP8 in can.kv_dtypes and can.mla == latent]
    if able:
        return f"use {' or '.join(able)}"
    return f"none that keeps {'latents' if latent else 'K and V'} does: say kv_cache_dtype=auto"


def _read(path: Path, num_layers: int, num_kv_heads: int, device: torch.device) -> list[KVScales]:
    """Scales of a file; EngineError with its name and the layer for what is wrong in it."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise EngineError(f"kv_scales: expected {SCALES_EXPECTED}, got {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path}: expected JSON: {error}") from error
    given = [found.get(name) if isinstance(found, dict) else None for name in ("k", "v")]
    if not all(isinstance(one, list) and len(one) == num_layers for one in given):
        raise EngineError(f'{path}: expected {{"k": [...], "v": [...]}} with an entry for each of {num_layers} layers')
    scales = []
    for layer, (k, v) in enumerate(zip(*given, strict=True)):
        try:
            scales.append(KVScales.of(k, v, num_kv_heads, device))
        except (AttentionInputError, TypeError, ValueError) as error:
            raise EngineError(f"{path}: layer {layer}: {error}") from error
    return scales


def _first_tokens(prompts: Sequence[Sequence[int]], longest: int) -> list[Sequence[int]]:
    """Prompts, or beginnings of them, of MOST_FITTED_TOKENS together; those of one token first."""
    taken: list[Sequence[int]] = []
    left = MOST_FITTED_TOKENS
    for prompt in prompts:
        part = prompt[: min(left, longest)]
        if len(part):
            taken.append(part)
            left -= len(part)
    return sorted(taken, key=lambda part: len(part) != 1)


@torch.inference_mode()
def _computed(engine: Engine, prompts: Sequence[Sequence[int]]) -> KVMemory:
    """K and V of the prompts, as they are; zeros where there is no token."""
    size = engine.backend.capabilities().default_block_size
    blocks = [-(-len(prompt) // size) for prompt in prompts]
    ends = [sum(blocks[: row + 1]) for row in range(len(blocks))]
    tables = [list(range(end - count, end)) for end, count in zip(ends, blocks, strict=True)]
    shape, lengths = engine.architecture, [len(prompt) for prompt in prompts]
    kv = KVMemory(
        engine.backend,
        [shape.layer_config(layer) for layer in range(shape.num_layers)],
        num_blocks=ends[-1],
        block_size=size,
        dtype=engine.dtype,
        device=engine.device,
        layout=engine.layout,
    )
    step = MetadataBuilder(size, engine.device).build(lengths, lengths, tables)
    decoder = Decoder(shape, engine.model.weights, engine.ops(), kv, max_tokens=sum(lengths), max_num_seqs=1)
    ids = torch.tensor([token for prompt in prompts for token in prompt], device=engine.device)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(engine.device)
    decoder.forward(ids, positions, step.slot_mapping, step)
    return kv
