"""Batches of which some rows start alike, on the pools of `pools`: as poisoned, and with nothing shared kept twice."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.shared_prefix import Group, SharedPrefixes
from tests.engine.attention.kernels.pools import GARBAGE, Case


class SharedCase(Case):
    """A Case whose `groups` of rows have the first num_blocks blocks in common."""

    def __init__(self, groups: Sequence[tuple[Sequence[int], int]], lengths: Sequence[int], **options: object) -> None:
        self.groups = [Group(tuple(rows), num_blocks) for rows, num_blocks in groups]
        super().__init__(lengths, (1,) * len(lengths), **options)  # type: ignore[arg-type]
        for leader, row, tokens in self._followers():
            self.keys[row][:tokens] = self.keys[leader][:tokens]
            self.values[row][:tokens] = self.values[leader][:tokens]

    def _followers(self) -> list[tuple[int, int, int]]:
        return [
            (group.rows[0], row, group.num_blocks * self.block_size) for group in self.groups for row in group.rows[1:]
        ]

    def shared(self, num_groups: int = 0) -> SharedPrefixes:
        """With room for `num_groups`, or for as many as there are."""
        made = SharedPrefixes.of(self.groups, len(self.lengths), self.block_size, self.device)
        more = max(0, num_groups - len(made.groups))
        return SharedPrefixes(made.members, torch.nn.functional.pad(made.groups, (0, 0, 0, more)))

    def paged(self, window: int = 0, *, unread: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As Case's; a follower's own copy of what is shared is NaN, and so, if `unread`, are its table entries."""
        k_cache, v_cache, table = super().paged(window)
        for leader, row, tokens in self._followers():
            count = tokens // self.block_size
            k_cache[table[row, :count].long()] = v_cache[table[row, :count].long()] = torch.nan
            table[row, :count] = table[leader, :count]
        if unread:
            for _, row, tokens in self._followers():
                table[row, : tokens // self.block_size] = GARBAGE[row % 3]
        return k_cache, v_cache, table
