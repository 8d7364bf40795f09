"""Attention backends by name: the one place that a new backend is added to."""

from __future__ import annotations

from types import MappingProxyType

from engine.attention.backend import AttentionBackend
from engine.attention.checks import short
from engine.attention.libraries.flash_attention import FlashAttention2Backend, FlashAttention3Backend
from engine.attention.libraries.flash_mla import FlashMLABackend
from engine.attention.libraries.flashinfer import FlashInferBackend
from engine.attention.pallas_backend import PallasBackend
from engine.attention.reference_backends import (
    ReferenceBackend,
    ReferenceFlashAttention,
    ReferenceFlashInfer,
    ReferenceFlashMLA,
    ReferenceMLA,
    ReferencePallas,
)
from engine.attention.triton_backend import TritonBackend
from engine.attention.triton_mla import TritonMLABackend
from engine.core.suggestion import unknown_name

BACKENDS: MappingProxyType[str, type[AttentionBackend]] = MappingProxyType(
    {
        backend.get_name(): backend
        for backend in (
            ReferenceBackend,
            ReferenceFlashAttention,
            ReferenceFlashInfer,
            ReferencePallas,
            ReferenceMLA,
            ReferenceFlashMLA,
            TritonBackend,
            TritonMLABackend,
            FlashInferBackend,
            FlashAttention3Backend,
            FlashAttention2Backend,
            FlashMLABackend,
            PallasBackend,
        )
    }
)


def get_backend(name: str) -> type[AttentionBackend]:
    """The backend of that name; ValueError with a suggestion if there is none."""
    if name not in BACKENDS:
        raise unknown_name("attention backend", name, BACKENDS)
    return BACKENDS[name]


def capability_table() -> list[dict[str, str]]:
    """One row a backend: what it can do, in words, and why it cannot run here, if so."""
    return [_row(backend) for backend in BACKENDS.values()]


def _row(backend: type[AttentionBackend]) -> dict[str, str]:
    able = backend.capabilities()
    yes = {True: "yes", False: "no"}
    return {
        "backend": backend.get_name(),
        "layouts": " ".join(layout.value for layout in able.layouts),
        "dtypes": " ".join(map(short, able.dtypes)),
        "kv_dtypes": " ".join(map(short, able.kv_dtypes)),
        "head_sizes": str(able.head_sizes),
        "block_sizes": str(able.block_sizes),
        "default_block_size": str(able.default_block_size),
        "archs": str(able.archs),
        "graphs": able.graphs,
        "sliding_window": yes[able.sliding_window],
        "soft_cap": yes[able.soft_cap],
        "mla": yes[able.mla],
        "mixed_batches": yes[able.mixed_batches],
        "shared_prefixes": yes[able.shared_prefixes],
        "unavailable_because": backend.unavailable_because(),
    }
