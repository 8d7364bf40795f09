"""Rows and block tables of the engine, brought to where a batch wants them before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.core.request import Status
from engine.worker.rows import BatchRows

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch
    from engine.core.request import Request
    from engine.worker.block_table import BlockTable


class Arrangement(BatchRows):
    """The rows of those that run, over one allocator."""

    def __init__(self, table: BlockTable, allocator: KVAllocator) -> None:
        super().__init__(table)
        self._allocator = allocator

    def arrange(self, batch: Batch) -> None:
        """Who left, who came, who decodes, and everybody's blocks, as the scheduler has decided them."""
        for request, _, _ in batch.preempted:
            self.leave_if_there(request)
        if batch.forks:
            self._fork(batch)
        for request, _, _ in batch.admitted:
            self.join(request, self._blocks_of(request))
        for request, _ in batch.swapped_in:
            self.join(request, self._blocks_of(request))
        for request in batch.joined:
            self.promote(request)
        if self.num_decodes != len(batch.decodes.members):
            for request in self.decodes():
                if request.decoding is None:  # the step's budget did not reach it, or it owes more than a token
                    self.demote(request)
        for grant in batch.grants:
            for request in grant.moved:
                self._give_blocks(request)
        self._grow(batch)
        self.bring_forward(chunk.request for chunk in batch.chunks)

    def leave_if_there(self, request: Request) -> None:
        """Members of a group may end before they have had a row."""
        if request in self.row_of:
            self.leave(request)

    def _fork(self, batch: Batch) -> None:
        """Children that run get a row, or other blocks in the one that they have."""
        for _, child, _ in batch.forks:
            if child in self.row_of:
                self._give_blocks(child)
                self.changed = True
            elif child.status is Status.RUNNING:
                self.join(child, self._blocks_of(child))

    def _give_blocks(self, request: Request) -> None:
        if request in self.row_of:
            self.table.change_row(self.row_of[request], self._blocks_of(request))

    def _blocks_of(self, request: Request) -> list[int]:
        """The blocks that the model can need: a reservation may be larger than any sequence."""
        return list(self._allocator.block_table(request)[: self.table.max_blocks])

    def _grow(self, batch: Batch) -> None:
        """New blocks of those that run, at the ends of their rows."""
        growth = self._allocator.growth_tokens
        if growth is None:
            grown = self.decodes()
        elif growth:
            grown = batch.decodes.buckets[(batch.clock - 1) % growth]
        else:
            grown = []
        row_of, num_blocks = self.row_of, self.table.num_blocks
        single: list[tuple[int, int]] = []
        for request in (*grown, *(chunk.request for chunk in batch.chunks)):
            row, blocks = row_of[request], self._allocator.block_table(request)
            held = num_blocks[row]
            missing = min(len(blocks), self.table.max_blocks) - held
            if missing == 1:
                single.append((row, blocks[held]))
            elif missing > 0:
                self.table.append_row(row, list(blocks[held : held + missing]))
        if single:
            self.table.append_one_each(*zip(*single, strict=True))
