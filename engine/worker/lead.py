"""What an executor asks of whoever knows the other ranks; alone there are none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from engine.worker.order import Order

Run = Callable[[Order], torch.Tensor]


class Lead(Protocol):
    """Of the ranks that compute one model, seen from rank 0."""

    def run(self, order: Order, here: Run) -> torch.Tensor:
        """Has the others launch a step and launches it here: what `here` gives."""
        ...

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Returns when the device has come so far. Raises where it never will, as another rank is gone."""
        ...

    def check(self) -> None:
        """Raises if another rank is gone: what a step gave is not to be used then."""
        ...

    def guard(self) -> AbstractContextManager[None]:
        """Around what may fail because another rank is gone: says so then, instead of what the device says."""
        ...


class Lone:
    """One rank."""

    def run(self, order: Order, here: Run) -> torch.Tensor:
        """Here."""
        return here(order)

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Blocks."""
        event.synchronize()

    def check(self) -> None:
        """Nobody to be gone."""

    def guard(self) -> AbstractContextManager[None]:
        """Errors are what they say."""
        return nullcontext()


LONE = Lone()
