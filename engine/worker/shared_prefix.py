"""Which decoding rows start with the same blocks, seen from their block tables, and whether it pays to know.

Looked for when rows have changed, not once a step: a running row's table only grows behind what it shares. Where no two
rows have their first block in common, which is one comparison, nothing more is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.attention.shared_prefix import GROUP_FIELDS, Group, packed

if TYPE_CHECKING:
    from engine.worker.block_table import BlockTable
    from engine.worker.staging import RowState

PAYS_BYTES, ROW_BYTES = 32 << 20, 2 << 20
"""K and V that a layer no longer reads, from which the shared kernels are used: so much, and so much more for each row
of a group. They add two launches a layer, parts that are written and merged, and a wave of programs. On an H200 (32
query heads over 8 of 128, block size 16) they break even at about 40, 45, 170 and 500 MiB for 4, 16, 64 and 256 rows;
what is read again comes from the L2, at 7 to 8 TB/s."""
Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SharingRule:
    """When sharing pays, for one model."""

    block_size: int
    token_bytes: int
    """K and V of a token in one layer."""
    least_bytes: int = PAYS_BYTES
    row_bytes: int = ROW_BYTES
    expected: bool = True
    """Whether to be ready before the first step; else kernels are compiled and captured when rows first share."""

    def groups(self, table: Table, num_blocks: npt.NDArray[np.int64], most: int) -> list[Group]:
        """At most `most` disjoint groups of rows, those that save most; none where all together do not pay.

        `table` int32 [n, W], of which the first num_blocks[n] entries of a row count: blocks that are full and no
        longer written. Of all ways to group rows by a common prefix, a group being all rows that have it, the one that
        saves most, less `row_bytes` a row.
        """
        if not _any_alike(table, num_blocks):
            return []
        found = best_groups(table, num_blocks, self.block_size, -(-self.row_bytes // self.token_bytes))
        found = sorted(found, key=lambda one: -one.net_tokens)[:most]
        return [one.group for one in found] if self.pays(found) else []

    def pays(self, found: list[Saving]) -> bool:
        """Whether these groups together are worth the shared kernels."""
        return bool(found) and sum(one.net_tokens for one in found) * self.token_bytes >= self.least_bytes


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
    return Saving(Group(tuple(sorted(rows)), num_blocks), saved, saved - row_tokens * len(rows))


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


class SharedRows:
    """Of the rows that decode: the groups in the device's record, brought up to date when rows have changed."""

    def __init__(self, rule: SharingRule | None, table: BlockTable, state: RowState) -> None:
        """`rule` None: nothing is ever shared."""
        self.rule = rule
        self._table, self._state = table, state
        self._looked_at = -1, -1
        self.groups: list[Group] = []
        """Of the rows as `look` found them last."""

    def __bool__(self) -> bool:
        """Whether a step of these rows is to use the groups in the record."""
        return bool(self.groups)

    def can_pay(self, num_rows: int) -> bool:
        """Whether a step of so many rows is to be ready for groups: the longest that there can be would pay."""
        if self.rule is None or not self.rule.expected:
            return False
        longest = self._table.max_blocks * self._table.block_size
        saved = (num_rows - 1) * longest * self.rule.token_bytes - num_rows * self.rule.row_bytes
        return num_rows > 1 and saved >= self.rule.least_bytes

    def look(self, num_rows: int) -> None:
        """Finds the groups of the first `num_rows` rows, whose lengths are in the record already, and records them.

        Blocks that are full before this step count: a row writes behind them. Those stay shared while the rows stay.
        """
        if self.rule is None or (self._table.num_changes, num_rows) == self._looked_at:
            return
        self._looked_at = self._table.num_changes, num_rows
        cpu = self._state.cpu
        full = cpu["seq_lens"][:num_rows].astype(np.int64) // self._table.block_size
        most = len(cpu["groups"]) // GROUP_FIELDS
        self.groups = self.rule.groups(self._table.cpu[:num_rows], full, most)
        if self.groups:
            members, table = packed(self.groups, len(cpu["members"]), most, self._table.block_size)
            cpu["members"][:] = members
            cpu["groups"][:] = table.reshape(-1)
