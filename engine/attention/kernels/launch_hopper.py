"""Launcher of the Hopper prefill kernel, and when it may be used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.device import multiprocessors, on_device
from engine.attention.kernels.inputs import check_paged, check_query_starts, score_factors
from engine.attention.kernels.matrix import CacheMatrix
from engine.attention.kernels.prefill_hopper import prefill_kernel

ROWS = 128
"""Query rows of a tile: 64 a warpgroup."""
HALF = 64
"""Columns of a box."""
HEAD_SIZES = (128,)
DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """How the kernel is cut and compiled."""

    block_n: int = 128
    """Keys a tile: 64 or 128."""
    stages: int = 2
    """Tiles of K, and of V, in shared memory."""
    dynamic: bool = True
    """Programs take the next query tile from a counter; otherwise each takes every n-th."""
    consumer_registers: int = 232
    producer_registers: int = 40


def box_rows(block_size: int, block_n: int) -> int:
    """Slots of a box: the largest power of two in block_size, at most a tile; 0 below the 8 rows of the swizzle."""
    box = min(block_size & -block_size, block_n)
    return box if box >= 8 else 0


def supports(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, config: HopperConfig | None = None) -> bool:
    """Whether `prefill_hopper` can take such a call (after the checks that every launcher makes)."""
    config = config or HopperConfig()
    if not q.is_cuda or torch.cuda.get_device_capability(q.device)[0] != 9:
        return False
    num_blocks, block_size, num_kv_heads, head_size = k_cache.shape
    fits = q.dtype in DTYPES and head_size in HEAD_SIZES and q.shape[1] // num_kv_heads <= ROWS
    if not fits or num_blocks == 0 or box_rows(block_size, config.block_n) == 0:
        return False
    return CacheMatrix.of(k_cache, v_cache, config.block_n) is not None


def prefill_hopper(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    config: HopperConfig | None = None,
) -> torch.Tensor:
    """`prefill_attention` where `supports` says so: same arguments, without window and soft-cap, same result."""
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    config = config or HopperConfig()
    if not supports(q, k_cache, v_cache, config):
        raise AttentionInputError(
            f"hopper prefill: expected sm_90, {DTYPES}, head size in {HEAD_SIZES}, at most {ROWS} heads a KV head and "
            f"a block size of whole 8 slots, got q {tuple(q.shape)} {q.dtype} on {q.device}, k {tuple(k_cache.shape)}"
        )
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    num_heads, head_size = q.shape[1:]
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    tile_queries = ROWS // group
    num_seqs = seq_lens.shape[0]
    tiles = min(num_seqs * -(-max_query_len // tile_queries), q.shape[0] // tile_queries + num_seqs) * num_kv_heads
    if tiles == 0:
        return out
    matrix = CacheMatrix.of(k_cache, v_cache, config.block_n)
    assert matrix is not None
    box = box_rows(block_size, config.block_n)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    k_desc, v_desc = (
        TensorDescriptor(cache, [matrix.rows, matrix.columns], [matrix.row_stride, 1], [box, HALF], layout)
        for cache in (k_cache, v_cache)
    )
    next_item = torch.zeros(1, dtype=torch.int32, device=q.device) if config.dynamic else seq_lens
    with on_device(q):
        prefill_kernel[(min(tiles, multiprocessors(q.device)),)](
            q, k_desc, v_desc, block_table, query_start_loc, seq_lens, next_item, out,
            q.stride(0), q.stride(1), k_cache.stride(2), block_table.stride(0), out.stride(0), out.stride(1),
            matrix.rows_per_block, score_factors(scale, 0, 0.0), num_seqs, num_kv_heads, group, tile_queries,
            block_size,
            D=head_size, BLOCK_N=config.block_n, STAGES=config.stages, BOX=box, PAGED=True, DYNAMIC=config.dynamic,
            CONSUMER_REGISTERS=config.consumer_registers, PRODUCER_REGISTERS=config.producer_registers, num_warps=4,
        )  # fmt: skip
    return out
