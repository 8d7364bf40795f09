"""Which running request has which row of the engine's batch: those that decode in front, without a gap.

A decode step then runs over rows 0 to num_decodes - 1 as they are, and a mixed step over the chunks' rows right behind
them (decodes first, as the attention backends want it). The scheduler's own rows are stable instead; they never see
these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.request import Request
    from engine.worker.block_table import BlockTable


class BatchRows:
    """Rows of the requests that run, kept together with those of the block table."""

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.requests: list[Request] = []
        """By row."""
        self.row_of: dict[Request, int] = {}
        self.num_decodes = 0
        """Rows in front whose requests decode."""
        self.changed = True
        """Whether the decoding rows are others, or other ones' now, than when this was last set to False."""

    def __len__(self) -> int:
        return len(self.requests)

    def join(self, request: Request, blocks: Sequence[int]) -> None:
        """The request runs, behind all others; ValueError where it does so already or the table is full."""
        row = len(self.requests)
        if request in self.row_of:
            raise ValueError(f"request {request.request_id!r} has row {self.row_of[request]} already")
        if row >= len(self.table.cpu):
            raise ValueError(f"no row for request {request.request_id!r}: all {row} rows of the block table are taken")
        self.table.add_row(row, blocks)
        self.requests.append(request)
        self.row_of[request] = row

    def leave(self, request: Request) -> None:
        """The request runs no longer; the last of its kind takes its row."""
        if self.row_of[request] < self.num_decodes:
            self.demote(request)
        last = len(self.requests) - 1
        self._swap(self.row_of[request], last)
        self.table.clear_row(last)
        self.requests.pop()
        del self.row_of[request]

    def promote(self, request: Request) -> None:
        """The request decodes from now on."""
        self._swap(self.row_of[request], self.num_decodes)
        self.num_decodes += 1
        self.changed = True

    def demote(self, request: Request) -> None:
        """The request decodes no longer, but runs."""
        self._swap(self.row_of[request], self.num_decodes - 1)
        self.num_decodes -= 1
        self.changed = True

    def bring_forward(self, requests: Iterable[Request]) -> None:
        """These, which do not decode, get the first rows behind those that do, in their order."""
        for row, request in enumerate(requests, self.num_decodes):
            self._swap(self.row_of[request], row)

    def decodes(self) -> list[Request]:
        """Those that decode, by row."""
        return self.requests[: self.num_decodes]

    def _swap(self, first: int, second: int) -> None:
        if first == second:
            return
        self.table.swap_rows(first, second)
        requests = self.requests
        requests[first], requests[second] = requests[second], requests[first]
        self.row_of[requests[first]] = first
        self.row_of[requests[second]] = second
