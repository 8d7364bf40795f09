"""From a token's position to the slot that holds its K and V: slot = block_id * block_size + offset.

One function for one token, one for a whole batch (vLLM's `slot_mapping`). Positions count from 0, so the token at
position p is a request's (p + 1)-th.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def slot_of(block_table: Sequence[int], position: int, block_size: int) -> int:
    """Slot of the token at `position` of the request with that table; ValueError beyond the table."""
    if block_size < 1:
        raise ValueError(f"need block_size of at least 1, got {block_size}")
    logical, offset = divmod(position, block_size)
    if not 0 <= logical < len(block_table):
        raise ValueError(
            f"position {position} lies outside a table of {len(block_table)} blocks of {block_size} tokens"
        )
    return block_table[logical] * block_size + offset


def slot_mapping(
    tables: npt.NDArray[np.integer], rows: npt.NDArray[np.integer], positions: npt.NDArray[np.integer], block_size: int
) -> Int64s:
    """Slots [T] of the tokens at `positions` [T] of the requests in `rows` [T] of `tables` [max_num_seqs, max_blocks].

    What lies in a table's row beyond the request's own blocks is never read, as long as positions are its own.
    ValueError where a position lies outside the width of the tables.
    """
    if block_size < 1:
        raise ValueError(f"need block_size of at least 1, got {block_size}")
    logical, offset = np.divmod(positions.astype(np.int64), block_size)
    width = tables.shape[1]
    if len(logical) and (logical.min() < 0 or logical.max() >= width):
        raise ValueError(f"positions {positions.min()} to {positions.max()} lie outside {width} blocks of {block_size}")
    blocks: Int64s = tables.reshape(-1)[rows.astype(np.int64) * width + logical].astype(np.int64)
    return blocks * block_size + offset
