"""What the ranks of one model do together, as a decoder sees it; alone there is nothing to do."""

from __future__ import annotations

from typing import Protocol

import torch


class Collectives(Protocol):
    """Commands on the current stream, in the same order on all ranks: a step can be captured in a CUDA graph."""

    @property
    def rank(self) -> int:
        """0 to size - 1; rank 0 schedules and samples."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, x: torch.Tensor) -> None:
        """Replaces x by the sum over all ranks; contiguous, and the same bits everywhere."""
        ...

    def all_gather(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Every rank's x [...] into out [size, ...] of every rank; both contiguous."""
        ...

    def broadcast(self, x: torch.Tensor) -> None:
        """Replaces x by that of rank 0."""
        ...


class Alone:
    """One rank."""

    rank, size = 0, 1

    def all_reduce(self, x: torch.Tensor) -> None:
        """The sum of one."""

    def all_gather(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """A copy."""
        out.view(x.shape).copy_(x)

    def broadcast(self, x: torch.Tensor) -> None:
        """It is rank 0's."""


ALONE = Alone()
