"""The shapes in which one layer keeps its K and V, and how to see K and V in each of them.

A layout is a choice of the backend, not a constant (the chapter's section 4.3.3). Memory decisions never see it: they
deal in block ids, and `block_axis` says which axis those count. Shape letters as in `engine.attention`.
"""

from __future__ import annotations

import enum

import torch

from engine.attention.checks import AttentionInputError, check_count, check_rank


class KVLayout(enum.Enum):
    """Order of the axes of one layer's KV cache. The head size is innermost in all of them."""

    KV_FIRST = "(2, NB, BS, KH, D)"
    """FlashAttention and Triton: K and V in the outermost axis."""
    BLOCK_FIRST = "(NB, 2, BS, KH, D)"
    """FlashInfer: a block's K and V lie beside each other."""
    INTERLEAVED = "(NB, BS, 2*KH, D)"
    """Pallas: heads interleave, K of head h at 2h and V at 2h + 1."""
    LATENT = "(NB, BS, latent)"
    """MLA: one latent for K and V of all heads; V is its first kv_lora_rank elements, the rest is the rotary part."""

    @property
    def block_axis(self) -> int:
        """The axis that block ids count."""
        return 1 if self is KVLayout.KV_FIRST else 0

    def shape(self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
        """Shape of one layer's cache; LATENT takes num_kv_heads=1 and the whole latent as head_size.

        AttentionInputError for sizes below one.
        """
        sizes = {
            "num_blocks": num_blocks,
            "block_size": block_size,
            "num_kv_heads": num_kv_heads,
            "head_size": head_size,
        }
        for name, size in sizes.items():
            check_count(f"KV cache shape: {name}", size, 1)
        match self:
            case KVLayout.KV_FIRST:
                return (2, num_blocks, block_size, num_kv_heads, head_size)
            case KVLayout.BLOCK_FIRST:
                return (num_blocks, 2, block_size, num_kv_heads, head_size)
            case KVLayout.INTERLEAVED:
                return (num_blocks, block_size, 2 * num_kv_heads, head_size)
            case KVLayout.LATENT:
                if num_kv_heads != 1:
                    raise AttentionInputError(
                        f"KV cache shape {self.value}: expected num_kv_heads=1 (one latent for all heads), "
                        f"got {num_kv_heads}"
                    )
                return (num_blocks, block_size, head_size)

    def pages(self, cache: torch.Tensor) -> tuple[int, int]:
        """(NB, BS) of a cache in this layout."""
        check_rank("kv_cache", cache, self.value.count(",") + 1, self.value)
        axis = 2 if self in (KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST) else 1
        return cache.shape[self.block_axis], cache.shape[axis]

    def split(self, cache: torch.Tensor, kv_lora_rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [NB, BS, KH, D] as strided views of the cache's storage, never copies.

        LATENT gives K [NB, BS, 1, latent] and V [NB, BS, 1, kv_lora_rank], which overlap.
        """
        self._check(cache, kv_lora_rank)
        match self:
            case KVLayout.KV_FIRST:
                return cache[0], cache[1]
            case KVLayout.BLOCK_FIRST:
                return cache[:, 0], cache[:, 1]
            case KVLayout.INTERLEAVED:
                return cache[:, :, 0::2], cache[:, :, 1::2]
            case KVLayout.LATENT:
                latent = cache[:, :, None, :]
                return latent, latent[..., :kv_lora_rank]

    def _check(self, cache: torch.Tensor, kv_lora_rank: int) -> None:
        """AttentionInputError for a tensor that cannot have this layout."""
        check_rank("kv_cache", cache, self.value.count(",") + 1, self.value)
        check_count("kv_lora_rank", kv_lora_rank)
        fault = ""
        if self is KVLayout.KV_FIRST and cache.shape[0] != 2:
            fault = "2 entries in axis 0"
        elif self is KVLayout.BLOCK_FIRST and cache.shape[1] != 2:
            fault = "2 entries in axis 1"
        elif self is KVLayout.INTERLEAVED and cache.shape[2] % 2:
            fault = "an even number of heads in axis 2"
        elif self is KVLayout.LATENT and not 0 < kv_lora_rank <= cache.shape[2]:
            fault = f"a kv_lora_rank of 1 to {cache.shape[2]} (asked for {kv_lora_rank})"
        if fault:
            raise AttentionInputError(
                f"kv_cache: expected layout {self.value} with {fault}, got shape {tuple(cache.shape)}"
            )
