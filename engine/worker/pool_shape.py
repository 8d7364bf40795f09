"""What a rank's memory depends on of an allocator that it does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Stands for an allocator where an executor only holds memory, or follows another rank."""

    block_size: int
    num_blocks: int = 2
    """The null block included."""
    growth_tokens: int | None = 0
    enable_caching: bool = True
    """Whether the graphs of steps that share prefixes, which take memory, are there from the start."""
    host_blocks: int = 0
    contiguous: bool = False

    @classmethod
    def of(cls, allocator: Any) -> PoolShape:
        """The shape of an allocator's pool."""
        return cls(
            allocator.block_size,
            allocator.num_blocks,
            allocator.growth_tokens,
            bool(getattr(allocator, "enable_caching", False)),
            getattr(allocator, "host_blocks", 0),
            bool(getattr(allocator, "contiguous", False)),
        )
