"""Rows of requests by column: a hundred bytes each in place of several hundred, so that a million fit.

Rows come in one at a time and are packed by the thousand into NumPy columns. They read as a sequence of `RequestRow`s,
made when they are looked at, or as whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from sim.int_log import Packed, packed
from sim.rows import RequestRow

PACK_ROWS: Final = 1_024
STATUSES: Final = ("finished", "truncated", "rejected", "failed", "unfinished")
_CODES: Final = {status: code for code, status in enumerate(STATUSES)}
_STATUS: Final = RequestRow._fields.index("status")


class RowStore(Sequence[RequestRow]):
    """Rows in the order in which they were appended, or by id once sorted."""

    def __init__(self) -> None:
        self._recent: list[RequestRow] = []
        self._packed: list[list[Packed]] = []
        """Columns of each pack."""
        self._num_packed = 0

    def append(self, row: RequestRow) -> None:
        """O(1), amortised."""
        self._recent.append(row)
        if len(self._recent) >= PACK_ROWS:
            self._pack()

    def _pack(self) -> None:
        if not self._recent:
            return
        columns: list[Any] = list(zip(*self._recent, strict=True))
        columns[_STATUS] = [_CODES[status] for status in columns[_STATUS]]
        self._packed.append([packed(values) for values in columns])
        self._num_packed += len(self._recent)
        self._recent.clear()

    @classmethod
    def joined(cls, stores: Iterable[RowStore]) -> RowStore:
        """The rows of several, by request id; O(1) more memory a row."""
        whole = cls()
        for store in stores:
            store._pack()
            whole._packed += [list(pack) for pack in store._packed]
            whole._num_packed += store._num_packed
        whole.sort()
        return whole

    def rename(self, ids: Packed) -> None:
        """Gives the row of request i the id `ids[i]`."""
        self._join()
        if self._packed:
            self._packed[0][0] = ids[self._packed[0][0]]

    def sort(self) -> None:
        """By request id; rows of the same id keep their order."""
        self._join()
        if self._packed:
            (columns,) = self._packed
            ids = columns[0]
            if (ids[1:] < ids[:-1]).any():
                order = np.argsort(ids, kind="stable")
                for index, column in enumerate(columns):
                    columns[index] = column[order]

    def _join(self) -> None:
        """One pack of everything, column by column, so that never more than one is there twice."""
        self._pack()
        if len(self._packed) > 1:
            joined: list[Packed] = []
            for index in range(len(RequestRow._fields)):
                joined.append(np.concatenate([pack[index] for pack in self._packed]))
                for pack in self._packed:
                    pack[index] = joined[-1][:0]
            self._packed = [joined]

    def column(self, name: str) -> Packed:
        """All values of a field, int64 or Python integers; not for `status`, see `has_status`."""
        self._join()
        index = RequestRow._fields.index(name)
        return self._packed[0][index] if self._packed else np.zeros(0, np.int64)

    def has_status(self, *statuses: str) -> NDArray[np.bool_]:
        """Which rows have one of these."""
        return np.isin(self.column("status"), [_CODES[status] for status in statuses])

    def statuses(self) -> NDArray[np.object_]:
        """Of every row, in words."""
        return np.array(STATUSES, dtype=object)[self.column("status")]

    def __len__(self) -> int:
        return self._num_packed + len(self._recent)

    def __iter__(self) -> Iterator[RequestRow]:
        for pack in self._packed:
            for low in range(0, len(pack[0]), PACK_ROWS):
                values = [column[low : low + PACK_ROWS].tolist() for column in pack]
                values[_STATUS] = [STATUSES[code] for code in values[_STATUS]]
                yield from map(RequestRow._make, zip(*values, strict=True))
        yield from self._recent

    @overload
    def __getitem__(self, index: int) -> RequestRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[RequestRow]: ...

    def __getitem__(self, index: int | slice) -> RequestRow | list[RequestRow]:
        """O(1) for one row, but the first time after an append."""
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        if place >= self._num_packed:
            return self._recent[place - self._num_packed]
        self._join()
        values = [column[place : place + 1].tolist()[0] for column in self._packed[0]]
        values[_STATUS] = STATUSES[values[_STATUS]]
        return RequestRow._make(values)

    def __eq__(self, other: object) -> bool:
        """The same rows in the same order, stored in whatever sequence."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, islice(self, 3)))
        return f"RowStore([{shown}{', ...' if len(self) > 3 else ''}])"
