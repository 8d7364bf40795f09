"""The engine's block table: one row a running request, kept on the CPU and mirrored on the device.

As vLLM's `BlockTable` (the chapter's section 4.4.3): rows are changed on the CPU array only, and `commit` brings the
device up to date before a step's inputs are prepared. vLLM copies whole rows; here only entries that changed are
uploaded, so that a step's cost does not depend on how long a sequence may become.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.worker.kernels.scatter import HEAD, scatter_counted, scatter_int32

Int64s = npt.NDArray[np.int64]
PAIRS_AT_ONCE = 1 << 16
"""(index, block id) pairs of one upload; more go in several rounds."""
FEW_PAIRS = 512
"""Pairs, at least, that travel with a step's graph."""


class Entries(NamedTuple):
    """Entries of a block table that its device lacks."""

    indices: Int64s
    """In the flat table."""
    blocks: npt.NDArray[np.int32]


NO_ENTRIES = Entries(np.zeros(0, np.int64), np.zeros(0, np.int32))


class BlockTable:
    """`cpu` and `gpu` int32 [max_num_reqs, max_blocks]: block ids of the request in each row, from entry 0 on.

    Entries behind a row's own blocks, and rows that nobody has, hold whatever was there: nobody reads them.
    """

    def __init__(self, max_num_reqs: int, max_blocks: int, block_size: int, device: torch.device | str = "cpu") -> None:
        """ValueError for sizes below one, or a table of 2^31 entries and more."""
        for name, value in (("max_num_reqs", max_num_reqs), ("max_blocks", max_blocks), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"need {name} of at least 1, got {value}")
        if max_num_reqs * max_blocks >= 1 << 31:
            raise ValueError(
                f"a block table of {max_num_reqs} x {max_blocks} entries has 2^31 or more: "
                "use larger blocks, fewer requests or a smaller max_model_len"
            )
        self.block_size = block_size
        self.max_blocks = max_blocks
        self.device = torch.device(device)
        self.cpu = np.zeros((max_num_reqs, max_blocks), np.int32)
        self._flat = self.cpu.reshape(-1)
        self.gpu = torch.zeros((max_num_reqs, max_blocks), dtype=torch.int32, device=self.device)
        self.num_blocks = np.zeros(max_num_reqs, np.int64)
        """Blocks of each row."""
        self.num_changes = 0
        """Times that a row was given other blocks than more behind its own, or none, so far."""
        self.num_uploaded = 0
        """Entries sent to the device so far."""
        self._behind: dict[int, int] = {}
        """By row: first entry that the device may lack."""
        pinned = self.device.type == "cuda"
        self._staging = torch.empty(2 * PAIRS_AT_ONCE, dtype=torch.int32, pin_memory=pinned)
        self._pairs = torch.empty_like(self._staging, device=self.device) if pinned else self._staging
        self._few = max(FEW_PAIRS, max_num_reqs)
        self._staged = torch.zeros(HEAD + 2 * self._few, dtype=torch.int32, pin_memory=pinned)
        self._staged_array = self._staged.numpy()
        self._arrived = torch.zeros_like(self._staged, device=self.device) if pinned else self._staged

    # the CPU array ------------------------------------------------------------------------------------------------

    def add_row(self, row: int, blocks: Sequence[int]) -> None:
        """The row holds these blocks, and nothing else. ValueError past the row's width, before any change."""
        self._check(row, len(blocks))
        self.cpu[row, : len(blocks)] = blocks
        self.num_blocks[row] = len(blocks)
        self._behind[row] = 0
        self.num_changes += 1

    def change_row(self, row: int, blocks: Sequence[int]) -> None:
        """As `add_row`, where the row mostly holds these blocks already: it is sent from the first other one on."""
        self._check(row, len(blocks))
        held, given = self.cpu[row, : int(self.num_blocks[row])], np.array(blocks, np.int32)
        common = min(len(held), len(given))
        others = np.flatnonzero(held[:common] != given[:common])
        first = int(others[0]) if len(others) else common
        self.cpu[row, first : len(given)] = given[first:]
        self.num_blocks[row] = len(given)
        self._behind[row] = min(self._behind.get(row, first), first)
        if first < len(held):
            self.num_changes += 1

    def append_row(self, row: int, blocks: Sequence[int]) -> None:
        """These blocks follow the row's own. ValueError past the row's width, before any change."""
        start = int(self.num_blocks[row])
        stop = start + len(blocks)
        self._check(row, stop)
        self.cpu[row, start:stop] = blocks
        self.num_blocks[row] = stop
        self._behind[row] = min(self._behind.get(row, start), start)

    def append_one_each(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """`append_row` of one block for each of several distinct rows."""
        index = np.array(rows, np.int64)
        starts = self.num_blocks[index]
        if len(index) and starts.max() >= self.max_blocks:
            self._check(int(index[starts.argmax()]), int(starts.max()) + 1)
        self.cpu[index, starts] = blocks
        self.num_blocks[index] += 1
        behind = self._behind
        for row, start in zip(rows, starts.tolist(), strict=True):
            behind.setdefault(row, start)  # what a row lacks already lies before its end

    def move_row(self, source: int, target: int) -> None:
        """`target` holds what `source` held; `source` holds nothing."""
        if source != target:
            count = int(self.num_blocks[source])
            self.add_row(target, self.cpu[source, :count])  # type: ignore[arg-type]
            self.clear_row(source)

    def swap_rows(self, first: int, second: int) -> None:
        """Each holds what the other held."""
        if first != second:
            blocks = self.cpu[first, : self.num_blocks[first]].copy()
            self.move_row(second, first)
            self.add_row(second, blocks)  # type: ignore[arg-type]

    def clear_row(self, row: int) -> None:
        """The row holds nothing; what stays in the arrays is never read."""
        self.num_blocks[row] = 0
        self._behind.pop(row, None)
        self.num_changes += 1

    def _check(self, row: int, count: int) -> None:
        if count > self.max_blocks:
            raise ValueError(f"row {row}: {count} blocks do not fit a block table of {self.max_blocks} entries a row")

    # the device ---------------------------------------------------------------------------------------------------

    def commit(self, num_rows: int) -> int:
        """Brings rows 0 to num_rows - 1 of the device up to date and returns the number of entries sent.

        First in the preparation of a step, so that the copies overlap the rest of it. Asynchronous: the caller waits
        for the step before it commits again. Rows from num_rows on are left as they are, on both sides.
        """
        return self._send(self.due(num_rows))

    def _send(self, entries: Entries) -> int:
        indices, blocks = entries
        for start in range(0, len(indices), PAIRS_AT_ONCE):
            if start and self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # the staging buffer is still being read
            part = slice(start, start + PAIRS_AT_ONCE)
            self._upload(indices[part], blocks[part])
        self.num_uploaded += len(indices)
        return len(indices)

    def stage(self, num_rows: int) -> int:
        """As `commit`, but what is to be sent only waits on the host for `send_staged`, which a CUDA graph may hold."""
        return self.stage_entries(self.due(num_rows))

    def stage_entries(self, entries: Entries) -> int:
        """`stage` of what is due. More than a graph has room for is sent at once instead."""
        staged, count = self._staged_array, len(entries.indices)
        if count > self._few:
            staged[0] = 0
            return self._send(entries)
        staged[0] = count
        if count:
            staged[HEAD : HEAD + count] = entries.indices
            staged[HEAD + self._few : HEAD + self._few + count] = entries.blocks
            self.num_uploaded += count
        return count

    def take(self, entries: Entries) -> None:
        """Into the CPU array, where another table has these entries; rows and their counts are that one's."""
        self._flat[entries.indices] = entries.blocks

    def send_staged(self) -> None:
        """Brings the device up to date with what was staged last. Commands only: captured, it is replayed with what is
        staged then."""
        if self._arrived is not self._staged:
            self._arrived.copy_(self._staged, non_blocking=True)
        scatter_counted(self.gpu.view(-1), self._arrived)

    def due(self, num_rows: int) -> Entries:
        """The entries of rows 0 to num_rows - 1 that the device lacks; whoever asks sends them."""
        behind = self._behind
        if not behind:
            return NO_ENTRIES
        due = behind
        if max(behind) < num_rows:
            self._behind = {}
        else:
            due = {row: start for row, start in behind.items() if row < num_rows}
            if not due:
                return NO_ENTRIES
            for row in due:
                del behind[row]
        rows, starts = np.array(list(due), np.int64), np.array(list(due.values()), np.int64)
        counts = self.num_blocks[rows] - starts
        indices = rows * self.max_blocks + starts
        if len(due) != counts.sum() or counts.min() != 1:  # mostly each lacks one entry
            indices = _ranges(indices, counts)
        return Entries(indices, self._flat[indices])

    def _upload(self, indices: Int64s, blocks: npt.NDArray[np.int32]) -> None:
        count = len(indices)
        staging = self._staging.numpy()
        staging[:count] = indices
        staging[count : 2 * count] = blocks
        if self._pairs is not self._staging:
            self._pairs[: 2 * count].copy_(self._staging[: 2 * count], non_blocking=True)
        scatter_int32(self.gpu.view(-1), self._pairs[: 2 * count].view(2, count), count)

    def slot_mapping(self, rows: Int64s, positions: Int64s) -> Int64s:
        """Slots [T] int64 of the tokens at `positions` [T] of `rows` [T], from the CPU array (see `engine.core.slots`).

        ValueError where a position lies outside the width of the table.
        """
        from engine.core.slots import slot_mapping

        return slot_mapping(self.cpu, rows, positions, self.block_size)


def _ranges(starts: Int64s, counts: Int64s) -> Int64s:
    """starts[0], starts[0] + 1, ... (counts[0] of them), then those of the next."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Int64s = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return ranges
