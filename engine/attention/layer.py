"""One attention layer of a model: its backend's impl and its own KV cache, in the backend's shape.

vLLM allocates a cache for each layer and binds it to the layer by name (the chapter's section 4.3.5); here the layer
holds it. Nothing allocates memory after that: blocks are ids.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.attention.backend import AttentionBackend, LayerConfig
from engine.attention.checks import AttentionInputError, check_count, check_dtype, check_inner_stride, check_shape
from engine.attention.layouts import KVLayout


def allocate_kv_caches(
    backend: type[AttentionBackend],
    config: LayerConfig,
    *,
    num_layers: int,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    layout: KVLayout | None = None,
) -> list[torch.Tensor]:
    """Zeros for each layer's KV; AttentionInputError if the backend cannot do what the layers ask."""
    check_count("num_layers", num_layers, 1)
    backend.check_layer(config, block_size, dtype)
    shape = backend.get_kv_cache_shape(num_blocks, block_size, config.num_kv_heads, config.head_size, layout)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]


class AttentionLayer:
    """Called with a step's Q, K, V and metadata: writes K and V by slot, then reads by block table."""

    def __init__(
        self,
        backend: type[AttentionBackend],
        config: LayerConfig,
        kv_cache: torch.Tensor,
        layout: KVLayout | None = None,
        **impl_options: Any,
    ) -> None:
        """`kv_cache` has the backend's shape, or that of `layout`; options go to the impl.

        AttentionInputError if the backend cannot do what the layer asks, or for a cache of another shape.
        """
        layout = backend.pick_layout(layout)
        num_blocks, block_size = layout.pages(kv_cache)
        expected = layout.shape(num_blocks, block_size, config.num_kv_heads, config.head_size)
        check_shape("kv_cache", kv_cache, expected)
        check_dtype("kv_cache", kv_cache, backend.capabilities().stored)
        check_inner_stride("kv_cache", kv_cache)
        backend.check_layer(config, block_size, kv_cache.dtype)
        self.metadata_class = backend.get_metadata_cls()
        self.impl = backend.get_impl_cls()(config, layout, **impl_options)
        self.kv_cache = kv_cache

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: Any,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Output [T, H, DV] of the step's tokens; the step's K and V are in the cache afterwards.

        As `AttentionImpl.forward`, which see; metadata of another backend's class is refused as well.
        """
        if not isinstance(metadata, self.metadata_class):
            raise AttentionInputError(
                f"metadata: expected {self.metadata_class.__name__}, got {type(metadata).__name__}"
            )
        return self.impl.forward(query, key, value, self.kv_cache, metadata, out)
