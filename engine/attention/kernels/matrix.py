"""A layer's K or V as the matrix that a TMA descriptor needs, in any layout whose strides allow it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

VECTOR_BYTES = 16
"""Alignment of a descriptor's base and row stride."""
MAX_COORDINATE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CacheMatrix:
    """K or V [NB, BS, KH, D] by rows of one token's stride: slot o of block b is row b * rows_per_block + o, KV head h
    starts at column h * head stride. K and V first, block first and interleaved heads are all of this form: what lies
    between two blocks of K, or between two heads, is a whole number of rows, or part of one."""

    rows: int
    columns: int
    row_stride: int
    rows_per_block: int
    box: tuple[int, int]
    """Rows and columns of a load: a tile of one head."""

    @classmethod
    def of(cls, k: torch.Tensor, v: torch.Tensor, block_n: int) -> CacheMatrix | None:
        """For loads of block_n slots of one head; None where strides, head size or addresses do not allow it."""
        num_blocks, block_size, num_heads, head_size = k.shape
        block_stride, row_stride, head_stride, _ = k.stride()
        if num_blocks == 1:
            block_stride = row_stride * block_size
        columns = (num_heads - 1) * head_stride + head_size
        rows_per_block, between = divmod(block_stride, row_stride)
        rows = (num_blocks - 1) * rows_per_block + block_size
        bytes_of = k.element_size()
        places = (row_stride * bytes_of, head_stride * bytes_of, k.data_ptr(), v.data_ptr())
        fits = head_size & (head_size - 1) == 0 and columns <= row_stride and between == 0 and rows <= MAX_COORDINATE
        if not fits or any(place % VECTOR_BYTES for place in places):
            return None
        return cls(rows, columns, row_stride, rows_per_block, (block_n, head_size))

    def descriptor(self, cache: torch.Tensor) -> TensorDescriptor:
        """Of K or of V: one matrix fits both, their strides are equal."""
        return TensorDescriptor(cache, [self.rows, self.columns], [self.row_stride, 1], list(self.box))
