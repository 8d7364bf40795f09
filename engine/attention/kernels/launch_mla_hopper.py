"""Launcher of Hopper's kernel of multi-head latent attention, and when it may be used."""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.device import on_device
from engine.attention.kernels.inputs_mla import LatentMatrix
from engine.attention.kernels.launch_hopper import DTYPES, HALF, box_rows
from engine.attention.kernels.matrix import MAX_COORDINATE, VECTOR_BYTES
from engine.attention.kernels.mla_pair import mla_pair_kernel
from engine.attention.kernels.plan import DecodePlan
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.tuning_mla import HOPPER_HEADS, HOPPER_KEYS

RANK, LATENT = 512, 576
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 240, 24


def takes(q: torch.Tensor, kv_cache: torch.Tensor, rank: int) -> bool:
    """Whether Hopper's kernel takes valid arguments of these shapes: DeepSeek's latent, whole 16-byte vectors."""
    sizes = q.dtype in DTYPES and rank == RANK and kv_cache.shape[2] == LATENT
    places = (*(stride * 2 for stride in q.stride()[:2]), q.data_ptr())
    vectors = not any(place % VECTOR_BYTES for place in places) and 0 < q.shape[0] <= MAX_COORDINATE
    return sizes and vectors and box_rows(kv_cache.shape[1], HOPPER_KEYS) > 0 and LatentMatrix.of(kv_cache) is not None


def launch(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    part: torch.Tensor,
    lse: torch.Tensor,
    plan: DecodePlan,
    rank: int,
    scale: float,
) -> None:
    """Outputs of sequences in one piece, parts of the others. AttentionInputError where it does not take the call."""
    if not takes(q, kv_cache, rank):
        raise AttentionInputError(
            f"hopper MLA: expected {DTYPES}, a latent of {RANK} + {LATENT - RANK} elements, block size in whole 8 "
            f"slots, whole 16-byte strides; got q {tuple(q.shape)} {q.dtype} with strides {q.stride()}, rank {rank}, "
            f"cache {tuple(kv_cache.shape)} with strides {kv_cache.stride()}"
        )
    cut, box = plan.cut, box_rows(kv_cache.shape[1], HOPPER_KEYS)
    matrix = LatentMatrix.of(kv_cache)
    assert matrix is not None
    with on_device(q):
        mla_pair_kernel[(cut.grid_heads, cut.max_items)](
            query_descriptor(q), latent_descriptor(kv_cache, matrix, box), table, seq_lens, plan.items, out, part, lse,
            table.stride(0), out.stride(0), out.stride(1), matrix.rows_per_block, scale, q.shape[1],
            kv_cache.shape[1], **hopper_options(cut.config, box, kv_cache.shape[1], split=cut.split),
        )  # fmt: skip


def hopper_options(config: DecodeConfig, box: int, block_size: int, *, split: bool) -> dict[str, Any]:
    """What is compiled into mla_pair_kernel."""
    return {
        "BLOCK_N": config.block_n,
        "STAGES": config.num_stages,
        "BOX": box,
        "PAGES": "boxes" if box == block_size else "blocks",
        "SPLIT": split,
        "CONSUMER_REGISTERS": CONSUMER_REGISTERS,
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
        "num_warps": 4,
    }


def latent_descriptor(kv_cache: torch.Tensor, matrix: LatentMatrix, box: int) -> TensorDescriptor:
    """For loads of 64 columns of `box` slots."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    return TensorDescriptor(kv_cache, [matrix.rows, matrix.columns], [matrix.row_stride, 1], [box, HALF], layout)


def query_descriptor(q: torch.Tensor) -> TensorDescriptor:
    """Q [S, H, latent] for loads of 64 columns of 64 heads; heads beyond H are zeros."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    return TensorDescriptor(q, list(q.shape), [q.stride(0), q.stride(1), 1], [1, HOPPER_HEADS, HALF], layout)
