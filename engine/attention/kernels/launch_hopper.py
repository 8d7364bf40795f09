"""Launchers of the Hopper prefill kernel, paged and contiguous, and when it may be used.

`HopperConfig`'s defaults are those of the sweep in `results/LOG.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.device import multiprocessors, on_device
from engine.attention.kernels.inputs import check_contiguous, check_paged, check_query_starts, score_factors
from engine.attention.kernels.matrix import MAX_COORDINATE, VECTOR_BYTES, CacheMatrix
from engine.attention.kernels.prefill_hopper import hopper_kernel
from engine.attention.kv_scales import KVScales

ROWS = 64
"""Query rows of a warpgroup; a tile has two."""
HALF = 64
"""Columns of a box of K or V."""
SWIZZLE_ROWS = 8
"""Rows after which the swizzle repeats: the smallest box."""
HEAD_SIZES = (64, 128)
DTYPES = (torch.float16, torch.bfloat16)
CAPABILITY = 9
"""Major compute capability whose warpgroup instructions the kernel is made of."""


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """How the kernel is cut and compiled."""

    block_n: int = 128
    """Keys a tile: 64 or 128."""
    stages: int = 2
    """Tiles of K, and of V, in shared memory."""
    dynamic: bool = True
    """Programs take the next query tile from a counter; otherwise each takes every n-th."""
    ping_pong: bool = False
    """The warpgroups take turns at the tensor cores; otherwise the hardware decides."""
    consumer_registers: int = 232
    producer_registers: int = 40


def box_rows(block_size: int, block_n: int) -> int:
    """Slots that one load of K or V brings: the largest power of two in block_size (0: without blocks), at most a tile;
    0 where that is below SWIZZLE_ROWS."""
    box = min(block_size & -block_size, block_n) if block_size else block_n
    return box if box >= SWIZZLE_ROWS else 0


def supports_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_size: int) -> bool:
    """Whether Hopper's kernel takes valid arguments of these shapes, without window and soft-cap.

    block_size 0: the contiguous twin's k and v, one block of all rows.
    """
    num_heads, head_size = q.shape[1:]
    fits = q.dtype in DTYPES and k.dtype == q.dtype and head_size in HEAD_SIZES and num_heads // k.shape[2] <= 2 * ROWS
    box = box_rows(block_size, HopperConfig().block_n)
    return fits and k.numel() > 0 and box > 0 and CacheMatrix.of(k, v, box) is not None


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
    scales: KVScales | None = None,
    config: HopperConfig | None = None,
) -> torch.Tensor:
    """`prefill_attention` where `supports_shapes` says so: the same but for window and soft-cap. FP8 is refused."""
    check_paged(q, k_cache, v_cache, block_table, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    call = HopperCall(score_factors(scale, 0, 0.0), max_query_len, k_cache.shape[1], config or HopperConfig())
    return call.launch(q, k_cache, v_cache, block_table, query_start_loc, seq_lens, out)


def prefill_hopper_contiguous(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    scales: KVScales | None = None,
    config: HopperConfig | None = None,
) -> torch.Tensor:
    """`prefill_contiguous` where `supports_shapes` says so of k[None] and v[None]."""
    check_contiguous(q, k, v, starts, seq_lens, max_seq_len=max_seq_len, out=out, scales=scales)
    check_query_starts(query_start_loc, seq_lens, max_query_len)
    call = HopperCall(score_factors(scale, 0, 0.0), max_query_len, 0, config or HopperConfig())
    return call.launch(q, k[None], v[None], starts, query_start_loc, seq_lens, out)


@dataclass(frozen=True, slots=True)
class HopperCall:
    """A checked call but for its tensors."""

    scale: float
    max_query_len: int
    block_size: int
    """0 for the contiguous twin."""
    config: HopperConfig

    def launch(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        table: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        """k, v [NB, BS, KH, D]; table is the block table, or the starts of the twin."""
        if not supports_shapes(q, k, v, self.block_size):
            raise AttentionInputError(
                f"hopper prefill: expected Q, K and V of one of {DTYPES}, head size in {HEAD_SIZES}, at most "
                f"{2 * ROWS} query heads a KV head, block size in whole {SWIZZLE_ROWS} slots, whole 16-byte strides; "
                f"got q {tuple(q.shape)} {q.dtype}, k {tuple(k.shape)} {k.dtype} with strides {k.stride()}"
            )
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        group, num_seqs = q.shape[1] // k.shape[2], seq_lens.shape[0]
        queries = 2 * ROWS // group
        tiles = min(num_seqs * -(-self.max_query_len // queries), q.shape[0] // queries + num_seqs) * k.shape[2]
        if tiles == 0:
            return out
        config, box = self.config, box_rows(self.block_size, self.config.block_n)
        q_desc, matrix = query_descriptor(q, group), CacheMatrix.of(k, v, box)
        assert matrix is not None
        with on_device(q):
            counter = torch.zeros(1, dtype=torch.int32, device=q.device) if config.dynamic else seq_lens
            hopper_kernel[(min(tiles, multiprocessors(q.device)),)](
                q, q_desc or q, cache_descriptor(k, matrix, box), cache_descriptor(v, matrix, box), table,
                query_start_loc, seq_lens, counter, out, q.stride(0), q.stride(1), k.stride(2), table.stride(0),
                out.stride(0), out.stride(1), matrix.rows_per_block, self.scale, num_seqs, k.shape[2], group, queries,
                self.block_size, **kernel_options(config, q.shape[2], box, self.pages(box), group if q_desc else 0),
            )  # fmt: skip
        return out

    def pages(self, box: int) -> str:
        """The kernel's PAGES."""
        if self.block_size == 0:
            return "contiguous"
        return "boxes" if box == self.block_size else "blocks"


def kernel_options(config: HopperConfig, head_size: int, box: int, pages: str, group: int) -> dict[str, object]:
    """What is compiled into hopper_kernel; group 0: Q by pointers."""
    return {
        "D": head_size,
        "BLOCK_N": config.block_n,
        "STAGES": config.stages,
        "BOX": box,
        "GROUP": group,
        "PAGES": pages,
        "TMA_Q": group > 0,
        "DYNAMIC": config.dynamic,
        "PINGPONG": config.ping_pong,
        "CONSUMER_REGISTERS": config.consumer_registers,
        "PRODUCER_REGISTERS": config.producer_registers,
        "num_warps": 4,
    }


def cache_descriptor(cache: torch.Tensor, matrix: CacheMatrix, box: int) -> TensorDescriptor:
    """K or V for loads of half a head's columns of `box` slots."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    return TensorDescriptor(cache, [matrix.rows, matrix.columns], [matrix.row_stride, 1], [box, HALF], layout)


def query_descriptor(q: torch.Tensor, group: int) -> TensorDescriptor | None:
    """Q [T, H, D] for loads of a warpgroup's rows; None where they are no box, or strides or the address do not fit."""
    if group & (group - 1) or group > ROWS or q.shape[0] > MAX_COORDINATE:
        return None
    if any(place % VECTOR_BYTES for place in (q.stride(0) * 2, q.stride(1) * 2, q.data_ptr())):
        return None
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    return TensorDescriptor(q, list(q.shape), [q.stride(0), q.stride(1), 1], [ROWS // group, group, q.shape[2]], layout)
