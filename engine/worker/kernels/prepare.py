"""The inputs of a decode step from the device's own record of rows: the host sends nothing and waits for nothing.

R rows of the record, W entries of a row of the block table, b rows of the step's bucket (b <= R).
"""

from __future__ import annotations

import torch

from engine.model.kernels.inputs import check_dense, described


def prepare_decode(
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
    """Each row in use feeds its last token at the position behind what is computed, and is one token longer.

    Of row i < num_rows: ids = last_tokens[i], positions = seq_lens[i], slots by block_table [R, W] int32, step_lens =
    seq_lens[i] + 1, which seq_lens [R] int32 holds afterwards too. Rows from num_rows on, up to b, are padding: id 0,
    position 0, slot -1, length 0; their entries in last_tokens [R] int32, seq_lens and the table play no part. ids,
    positions and slots [b] int64, step_lens [b] int32; num_rows int32, its first entry. One launch on a CUDA device,
    plain torch elsewhere, which is what the kernel is compared with. Contents are trusted: rows in use have a block
    for their position. ValueError before anything is written.
    """
    _check(last_tokens, seq_lens, block_table, num_rows, ids, block_size)
    batch = ids.shape[0]
    check_dense("positions", positions, (batch,), torch.int64, ids)
    check_dense("slots", slots, (batch,), torch.int64, ids)
    check_dense("step_lens", step_lens, (batch,), torch.int32, ids)
    if not batch:
        return
    if ids.is_cuda:
        from engine.worker.kernels.launch import launch_prepare

        launch_prepare(last_tokens, seq_lens, block_table, num_rows, ids, positions, slots, step_lens, block_size)
        return
    used = torch.arange(batch, device=ids.device) < num_rows[:1]
    position = torch.where(used, seq_lens[:batch], 0).long()
    # Of a row that is not in use entry 0 is looked at, and dropped.
    block = block_table[:batch].gather(1, (position // block_size)[:, None])[:, 0].long()
    ids.copy_(torch.where(used, last_tokens[:batch], 0))
    positions.copy_(position)
    slots.copy_(torch.where(used, block * block_size + position % block_size, -1))
    step_lens.copy_(torch.where(used, position + 1, 0))
    seq_lens[:batch].add_(used)


def _check(
    last_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    num_rows: torch.Tensor,
    ids: torch.Tensor,
    block_size: int,
) -> None:
    """The record, the table, and that they have rows for the step."""
    batch, count = ids.shape[0], last_tokens.shape[0]
    check_dense("ids", ids, (batch,), torch.int64, ids)
    check_dense("last_tokens", last_tokens, (count,), torch.int32, ids)
    check_dense("seq_lens", seq_lens, (count,), torch.int32, ids)
    check_dense("num_rows", num_rows[:1], (1,), torch.int32, ids)
    check_dense("block_table", block_table, (block_table.shape[0], block_table.shape[1]), torch.int32, ids)
    if block_size < 1:
        raise ValueError(f"block_size: expected at least 1, got {block_size}")
    if batch > min(count, block_table.shape[0]):
        raise ValueError(
            f"ids: expected at most the {count} rows of last_tokens and the {block_table.shape[0]} of block_table, "
            f"got {described(ids)}"
        )
