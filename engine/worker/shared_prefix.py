"""Which decoding rows start with the same blocks, seen from their block tables, and whether it pays to know.

Looked for when rows have changed, not once a step: a running row's table only grows behind what it shares. Where no two
rows have their first block in common, which is one comparison, nothing more is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.attention.shared_prefix import Group, packed

MAX_GROUPS = 16
"""Groups of a step that a captured graph has room for; of more, those that save most are taken."""
PAYS_BYTES = 64 << 20
"""K and V that a layer no longer reads, from which the shared kernels are used. They add two launches a layer, the
writing and merging of parts, and a wave of programs: about 10 us. Reading keys again that lie in the L2 costs at 6 to
9 TB/s (measured with FlashAttention-3), so 10 us are worth about 64 MiB."""
ROW_TOKENS = 64
"""Keys whose reading costs a row as much as the merge of its shared part: eight pieces or so of float32 outputs of all
heads, written and read, beside bfloat16 K and V."""
Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SharingRule:
    """When sharing pays, for one model."""

    block_size: int
    token_bytes: int
    """K and V of a token in one layer."""
    least_bytes: int = PAYS_BYTES
    row_tokens: int = ROW_TOKENS
    max_groups: int = MAX_GROUPS

    def groups(self, table: Table, num_blocks: npt.NDArray[np.int64]) -> list[Group]:
        """Disjoint groups of rows that save most; none where all together do not pay.

        `table` int32 [n, W], of which the first num_blocks[n] entries of a row count: blocks that are full and no longer
        written. Of all ways to group rows by a common prefix the one that saves most tokens, less `row_tokens` a row.
        """
        if not _any_alike(table, num_blocks):
            return []
        found = best_groups(table, num_blocks, self.block_size, self.row_tokens)
        found = sorted(found, key=lambda one: -one.saved_tokens)[: self.max_groups]
        if sum(one.saved_tokens for one in found) * self.token_bytes < self.least_bytes:
            return []
        return [one.group for one in found]


class Saving(NamedTuple):
    """A group, and tokens that are no longer read; less what its merge costs, in tokens."""

    group: Group
    saved_tokens: int
    net_tokens: int


def _any_alike(table: Table, num_blocks: npt.NDArray[np.int64]) -> bool:
    first = table[num_blocks > 0, 0]
    return len(np.unique(first)) < len(first)


def best_groups(table: Table, num_blocks: npt.NDArray[np.int64], block_size: int, row_tokens: int) -> list[Saving]:
    """Rows by the tree of their common prefixes: a node is a group of its own where that saves more than the best of
    its children together. Cost: sorting the rows, one comparison of neighbours, one pass over them."""
    counts = num_blocks.tolist()
    order = sorted(range(len(table)), key=lambda row: table[row, : counts[row]].tobytes())
    alike = _neighbours(table, num_blocks, order)
    stack: list[tuple[int, int, list[Saving]]] = []
    """Open nodes: common blocks, place of the first row, best groups of the rows that are behind it already."""
    for place in range(len(order)):
        depth = alike[place] if place < len(alike) else 0
        first, inside = place, list[Saving]()
        while stack and stack[-1][0] > depth:
            above, first, before = stack.pop()
            one = _node(order[first : place + 1], above, block_size, row_tokens)
            inside = before + inside
            if one.net_tokens > sum(saving.net_tokens for saving in inside):
                inside = [one]
        if stack and stack[-1][0] == depth:
            above, first, before = stack.pop()
            inside = before + inside
        stack.append((depth, first, inside))
    return [saving for _, _, inside in stack for saving in inside]


def _node(rows: list[int], num_blocks: int, block_size: int, row_tokens: int) -> Saving:
    saved = (len(rows) - 1) * num_blocks * block_size
    return Saving(Group(tuple(rows), num_blocks), saved, saved - row_tokens * len(rows))


def _neighbours(table: Table, num_blocks: npt.NDArray[np.int64], order: list[int]) -> list[int]:
    """Blocks that each row has in common with the next, in that order."""
    if len(order) < 2:
        return []
    index = np.array(order)
    shorter = np.minimum(num_blocks[index[:-1]], num_blocks[index[1:]])
    width = int(shorter.max())
    sorted_table = table[index, :width]
    same = (sorted_table[:-1] == sorted_table[1:]) & (np.arange(width) < shorter[:, None])
    return [int(run) for run in np.where(same.all(1), width, (~same).argmax(1))] if width else [0] * len(shorter)


def fill(groups: list[Group], block_size: int, members: Table, table: Table) -> None:
    """Puts groups where the device's record has its copy of them: members [R], groups [G x 3]."""
    new_members, new_table = packed(groups, len(members), len(table) // 3, block_size)
    members[:] = new_members
    table[:] = new_table.reshape(-1)
