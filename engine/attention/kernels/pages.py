"""Which address arithmetic a block size needs: the constexpr PAGES of `tiles`, and its run-time numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["contiguous", "whole", "shift", "divide"]


@dataclass(frozen=True, slots=True)
class Pages:
    """Block sizes share compiled kernels: the size is a run-time number, only the arithmetic is compiled in."""

    mode: Mode
    block_size: int
    shift: int
    """log2(block_size) for "shift", else 0."""

    @property
    def whole_tiles(self) -> bool:
        """Whether the rows of a tile lie side by side."""
        return self.mode in ("contiguous", "whole")

    @classmethod
    def of(cls, block_size: int, block_n: int) -> Pages:
        """For tiles of block_n keys (a power of two) in blocks of block_size slots."""
        if block_size % block_n == 0:
            return cls("whole", block_size, 0)
        return cls.of_slots(block_size)

    @classmethod
    def of_slots(cls, block_size: int) -> Pages:
        """For slots one by one."""
        if block_size & (block_size - 1) == 0:
            return cls("shift", block_size, block_size.bit_length() - 1)
        return cls("divide", block_size, 0)

    @classmethod
    def contiguous(cls) -> Pages:
        """No blocks."""
        return cls("contiguous", 1, 0)
