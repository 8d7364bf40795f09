"""For which devices a backend's kernels are built, and whether its calls can be captured in a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class Archs:
    """Which CUDA devices a backend's kernels are built for, by compute capability; without bounds: any device."""

    least: tuple[int, int] | None = None
    below: tuple[int, int] | None = None

    def why_not_here(self) -> str:
        """What the current device lacks; empty where it will do."""
        if self.least is None:
            return ""
        if not torch.cuda.is_available():
            return "no CUDA device"
        found = torch.cuda.get_device_capability()
        if self.least <= found and (self.below is None or found < self.below):
            return ""
        return f"needs compute capability {self}, this device has {found[0]}.{found[1]}"

    def __str__(self) -> str:
        if self.least is None:
            return "any device"
        lowest = f"{self.least[0]}.{self.least[1]}"
        return f"{lowest} to below {self.below[0]}.{self.below[1]}" if self.below else f"{lowest} or above"


ANY_DEVICE = Archs()

Graphs = Literal["no", "own stream", "planned lengths", "any lengths"]
"""Whether calls can be captured in a CUDA graph: not, as they wait for the device; not, as they issue to a stream
of their own, though nothing waits; for the lengths that were planned outside of it; or for whatever its tensors hold
when it is replayed."""
