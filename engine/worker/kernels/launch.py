"""The kernels of `prepare` and `scatter` with their launchers, of checked arguments. Importing this imports Triton."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.model.kernels.launching import on_device
from engine.worker.kernels.scatter import HEAD

ROWS = 128
"""Of a program of prepare_kernel, one a thread."""
PAIRS = 1_024
"""Of a program of scatter_kernel."""


@triton.jit(do_not_specialize=["batch", "table_r"])
def prepare_kernel(
    LAST_TOKENS, SEQ_LENS, TABLE, NUM_ROWS, IDS, POSITIONS, SLOTS, STEP_LENS, batch, table_r,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(batch / ROWS),). Rows in use have loads, the others only stores."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < batch
    used = inside & (rows < tl.load(NUM_ROWS))
    token = tl.load(LAST_TOKENS + rows, mask=used, other=0)
    position = tl.load(SEQ_LENS + rows, mask=used, other=0)
    entry = TABLE + rows.to(tl.int64) * table_r + position // BLOCK_SIZE
    block = tl.load(entry, mask=used, other=0).to(tl.int64)
    length = tl.where(used, position + 1, 0)
    tl.store(SEQ_LENS + rows, length, mask=used)
    tl.store(IDS + rows, token.to(tl.int64), mask=inside)
    tl.store(POSITIONS + rows, position.to(tl.int64), mask=inside)
    tl.store(SLOTS + rows, tl.where(used, block * BLOCK_SIZE + position % BLOCK_SIZE, -1), mask=inside)
    tl.store(STEP_LENS + rows, length, mask=inside)


@triton.jit(do_not_specialize=["between", "count"])
def scatter_kernel(TARGET, PAIRS, between, count, BLOCK: tl.constexpr):
    """Grid (ceil(count / BLOCK),). PAIRS: indices, and their values `between` elements later."""
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = numbers < count
    at = tl.load(PAIRS + numbers, mask=mask, other=0)
    values = tl.load(PAIRS + between + numbers, mask=mask, other=0)
    tl.store(TARGET + at, values, mask=mask)


@triton.jit
def scatter_counted_kernel(TARGET, STAGED, MOST: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (ceil(MOST / BLOCK),). STAGED: the count, from HEAD on MOST indices, then their values."""
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = numbers < tl.load(STAGED)
    at = tl.load(STAGED + HEAD + numbers, mask=mask, other=0)
    values = tl.load(STAGED + HEAD + MOST + numbers, mask=mask, other=0)
    tl.store(TARGET + at, values, mask=mask)


def launch_prepare(
    last_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    num_rows: torch.Tensor,
    ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    step_lens: torch.Tensor,
    block_size: int,
) -> None:
    """`prepare.prepare_decode`, of a batch of at least one row."""
    batch = ids.shape[0]
    with on_device(ids):
        prepare_kernel[(-(-batch // ROWS),)](
            last_tokens, seq_lens, block_table, num_rows, ids, positions, slots, step_lens, batch,
            block_table.stride(0), BLOCK_SIZE=block_size, ROWS=ROWS, num_warps=4,
        )  # fmt: skip


def launch_scatter(target_flat: torch.Tensor, pairs: torch.Tensor, count: int) -> None:
    """`scatter.scatter_int32`, of at least one pair."""
    with on_device(target_flat):
        scatter_kernel[(-(-count // PAIRS),)](target_flat, pairs, pairs.stride(0), count, BLOCK=PAIRS, num_warps=4)


def launch_scatter_counted(target_flat: torch.Tensor, staged: torch.Tensor, most: int) -> None:
    """`scatter.scatter_counted`, of room for `most` pairs."""
    with on_device(target_flat):
        scatter_counted_kernel[(-(-most // PAIRS),)](
            target_flat, staged, MOST=most, HEAD=HEAD, BLOCK=PAIRS, num_warps=4
        )  # fmt: skip
