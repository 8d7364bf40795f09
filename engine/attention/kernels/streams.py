"""Two kernels of one step side by side: one on a stream of higher priority, which the caller's waits for.

Both streams fork from and join the caller's, which holds under capture too: the kernels become branches of the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from engine.attention.kernels.device import on_device


@functools.cache
def _ahead(device: int) -> torch.cuda.Stream:
    """One a device: each stream has memory of its own in torch's allocator, which a new one a call would ask for."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def side_by_side(q: torch.Tensor, first: Callable[[], object], second: Callable[[], object]) -> None:
    """`first` on a stream of high priority, `second` on the current one, which then waits for both."""
    with on_device(q):
        here = torch.cuda.current_stream()
        ahead = _ahead(torch.cuda.current_device())
        ahead.wait_stream(here)
        with torch.cuda.stream(ahead):
            first()
        second()
        here.wait_stream(ahead)
