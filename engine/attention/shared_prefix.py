"""Which rows of a decode start with the same blocks: the shared part is then attended to once for all of them.

Attention over a sequence is the merge of attention over its parts (`engine.attention.merge`), so rows whose block
tables start alike may take the shared tokens in one product of all their queries and only their own tokens one by one.
Nothing else changes: the result is that of plain attention.

Everything here is data, on the device where the other metadata is: a captured graph that takes shared prefixes replays
with other rows, groups and lengths, up to the number of groups that the table has room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.checks import AttentionInputError, check_index, check_same_device

GROUP_FIELDS = 3
"""int32 a group: place of its first member, number of members, tokens that they share; zeros: no group."""
Int32s = npt.NDArray[np.int32]


class Group(NamedTuple):
    """Rows whose first `num_blocks` table entries are the same."""

    rows: tuple[int, ...]
    num_blocks: int


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """Of a step's decodes. AttentionInputError where shapes, types or devices do not agree.

    Contents are trusted, as those of a block table are: `members` is a permutation, groups lie in it side by side
    without overlap, shared tokens fill whole blocks and are no more than any member's length.
    """

    members: torch.Tensor
    """[S] int32: every row once, those of a group side by side."""
    groups: torch.Tensor
    """[G, 3] int32, as GROUP_FIELDS."""

    def __post_init__(self) -> None:
        check_index("shared members", self.members, ("S",), torch.int32)
        check_index("shared groups", self.groups, ("G", GROUP_FIELDS), torch.int32)
        check_same_device(members=self.members, groups=self.groups)
        if not self.groups.is_contiguous() or not len(self.groups):
            raise AttentionInputError(
                f"shared groups: expected at least one row, contiguous, got shape {tuple(self.groups.shape)} with "
                f"strides {self.groups.stride()}"
            )

    @classmethod
    def of(
        cls, groups: Sequence[Group], num_rows: int, block_size: int, device: torch.device | str = "cpu"
    ) -> SharedPrefixes:
        """Of `num_rows` rows. AttentionInputError for rows outside, or in two groups."""
        members, table = packed(groups, num_rows, max(1, len(groups)), block_size)
        return cls(torch.from_numpy(members).to(device), torch.from_numpy(table).to(device))


def packed(groups: Sequence[Group], num_rows: int, num_groups: int, block_size: int) -> tuple[Int32s, Int32s]:
    """`members` [num_rows] and `groups` [num_groups, 3]; AttentionInputError as `SharedPrefixes.of`.

    Rows of no group follow in their own order, so that what lies behind the last grouped row is in place whatever the
    number of rows: a table packed for more rows than a step has serves the step, too.
    """
    if len(groups) > num_groups:
        raise AttentionInputError(f"shared groups: expected at most {num_groups}, got {len(groups)}")
    used = [row for group in groups for row in group.rows]
    if len(set(used)) < len(used) or not all(0 <= row < num_rows for row in used):
        raise AttentionInputError(f"shared groups: expected each of the rows 0 to {num_rows - 1} once, got {used}")
    members = np.array([*used, *_others(used, num_rows)], np.int32)
    table = np.zeros((num_groups, GROUP_FIELDS), np.int32)
    first = 0
    for index, group in enumerate(groups):
        table[index] = first, len(group.rows), group.num_blocks * block_size
        first += len(group.rows)
    return members, table


def _others(used: Iterable[int], num_rows: int) -> list[int]:
    taken = set(used)
    return [row for row in range(num_rows) if row not in taken]
