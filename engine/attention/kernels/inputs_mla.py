"""What the kernels of multi-head latent attention ask of their arguments. Attributes only, so nothing waits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.attention.checks import (
    check_caches,
    check_queries,
    check_rank,
    check_same_device,
    check_table,
)
from engine.attention.kernels.inputs import DTYPES, check_rank_of
from engine.attention.kernels.matrix import MAX_COORDINATE, VECTOR_BYTES


def check_latents(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    rank: int,
    max_seq_len: int,
    out: torch.Tensor | None,
) -> None:
    """Absorbed Q [T, H, latent], cache [NB, BS, latent], block_table [S, max_blocks] int32, seq_lens [S] int32, and
    the output [T, H, rank], if it is given."""
    check_rank("kv_cache", kv_cache, 3, "[NB, BS, latent]")
    check_rank_of(rank, kv_cache.shape[2])
    k_cache = kv_cache[:, :, None]
    check_caches(k_cache, k_cache[..., :rank], DTYPES)
    check_queries(q, k_cache, k_cache[..., :rank], out)
    check_table(block_table, seq_lens, kv_cache.shape[1], max_seq_len)
    check_same_device(kv_cache=kv_cache, block_table=block_table)


@dataclass(frozen=True, slots=True)
class LatentMatrix:
    """A cache of latents as the matrix that a TMA descriptor needs: slot o of block b is row b * rows_per_block + o."""

    rows: int
    columns: int
    row_stride: int
    rows_per_block: int

    @classmethod
    def of(cls, kv_cache: torch.Tensor) -> LatentMatrix | None:
        """None where strides or the address do not allow it."""
        num_blocks, block_size, latent = kv_cache.shape
        block_stride, row_stride, _ = kv_cache.stride()
        if num_blocks == 1:
            block_stride = row_stride * block_size
        if num_blocks == 0 or block_size == 0 or row_stride < latent:
            return None
        rows_per_block, between = divmod(block_stride, row_stride)
        rows = (num_blocks - 1) * rows_per_block + block_size
        whole = row_stride * kv_cache.element_size() % VECTOR_BYTES == 0 and kv_cache.data_ptr() % VECTOR_BYTES == 0
        if between or not whole or rows > MAX_COORDINATE:
            return None
        return cls(rows, latent, row_stride, rows_per_block)

    def descriptor(self, kv_cache: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
        """For loads of that many rows and columns."""
        return TensorDescriptor(kv_cache, [self.rows, self.columns], [self.row_stride, 1], [rows, columns])
