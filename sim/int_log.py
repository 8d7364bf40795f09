"""Integers that are noted by the million, eight bytes each, and exact sums of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PACK: Final = 1_024
LOW_BITS: Final = 32
Packed = NDArray[Any]
"""int64, or Python integers where one of them does not fit."""


def packed(values: Sequence[int]) -> Packed:
    """An array of 64-bit integers; of Python's where one is larger (106 days in picoseconds)."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)


def exact_sum(values: Packed) -> int:
    """Of up to 2^31 values: halves are summed apart, so that 64 bits hold."""
    low = int((values & ((1 << LOW_BITS) - 1)).sum())
    return (int((values >> LOW_BITS).sum()) << LOW_BITS) + low


class IntLog:
    """Integers in the order in which they came; packed by the thousand."""

    def __init__(self) -> None:
        self._recent: list[int] = []
        self._packs: list[Packed] = []

    def append(self, value: int) -> None:
        """O(1), amortised."""
        self._recent.append(value)
        if len(self._recent) >= PACK:
            self._packs.append(packed(self._recent))
            self._recent.clear()

    @classmethod
    def joined(cls, logs: Iterable[IntLog]) -> IntLog:
        """The integers of several, as one log."""
        whole = cls()
        for log in logs:
            whole._packs += [*log._packs, packed(log._recent)]
        return whole

    def __len__(self) -> int:
        return sum(map(len, self._packs)) + len(self._recent)

    def __iter__(self) -> Iterator[int]:
        for pack in self._packs:
            yield from pack.tolist()
        yield from self._recent

    def sorted(self) -> Packed:
        """All of them, ascending."""
        return np.sort(np.concatenate([*self._packs, packed(self._recent)]))

    def sum(self) -> int:
        """Exact."""
        return sum(exact_sum(pack) for pack in self._packs) + sum(self._recent)
