"""Which attention backend serves a model on a device: named, or the registry's own for both."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.metadata import AttentionMetadata
from engine.attention.registry import BACKENDS, get_backend
from engine.core import catalogue
from engine.worker.budget import EngineError

OWN = {"cpu": "reference", "cuda": "triton"}
"""How the names of a device's own backends begin; the registry's first that keeps what the model caches is taken."""


def keeps_latents(model: str) -> bool:
    """Whether a model caches latents, by its configuration alone: a catalogue name, a folder, or a .gguf file, of which
    none does that is read here."""
    _, config = catalogue.entry(model)
    path = Path(model) / "config.json"
    if config is None and path.is_file():
        config = catalogue.read_json(path)
    return config is not None and config.get("kv_lora_rank") is not None


def backend_of(name: str, device: torch.device, *, latent: bool) -> type[AttentionBackend]:
    """The backend of that name, or (auto) the device's own, for a model that caches latents or K and V.

    ValueError for a name that nobody has; EngineError for a backend that cannot run here, or cannot serve the model.
    """
    backend = _own(device, latent) if name == "auto" else get_backend(name)
    if why := backend.unavailable_because():
        raise EngineError(f"attention backend {backend.get_name()}: {why}")
    if backend.capabilities().mla != latent:
        kept, wanted = ("K and V", "latents") if latent else ("latents", "K and V")
        raise EngineError(
            f"attention backend {backend.get_name()}: it keeps {kept}, and this model caches {wanted}: use "
            f"{' or '.join(_that_keep(latent))}"
        )
    metadata = backend.get_metadata_cls()
    if metadata is not AttentionMetadata and not hasattr(metadata, "of"):
        raise EngineError(
            f"attention backend {backend.get_name()}: the engine has no metadata for it ({metadata.__name__} has no "
            "`of`, which would make it from AttentionMetadata): use reference"
        )
    return backend


def never_waits(backend: type[AttentionBackend]) -> bool:
    """Whether steps with it can be captured in CUDA graphs, which later steps of other lengths replay: the
    specification looks at lengths, libraries plan on the host; Triton's kernels do neither."""
    return backend.capabilities().graphs == "any lengths"


def _own(device: torch.device, latent: bool) -> type[AttentionBackend]:
    known = _that_keep(latent)
    for name in known:
        if name.startswith(OWN[device.type]):
            return BACKENDS[name]
    raise EngineError(
        f"no attention backend of {device.type}'s own ({OWN[device.type]}...) keeps "
        f"{'latents' if latent else 'K and V'}: name one of {', '.join(known)}"
    )


def _that_keep(latent: bool) -> list[str]:
    return [name for name, backend in BACKENDS.items() if backend.capabilities().mla == latent]
