"""Rows on their way from a file to a table: checked one by one, refused with a place and a count."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple

import numpy as np

from workloads.stamps import RowError
from workloads.tables import Blocks, Table
from workloads.validation import MAX_TOKENS

MAX_ID: Final = 2**63 - 1


class TraceError(ValueError):
    """A file that cannot be taken as a trace: where, why, and what to do."""


class LeftOutError(RowError):
    """A row that the recipe asked for does not take: counted with its reason, and no fault of the file."""


class Row(NamedTuple):
    """One request as a reader found it; `parent` counts the file's rows from 0, dropped ones included."""

    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    limit_tokens: int = -1
    priority: int = 0
    session: int = -1
    parent: int = -1
    delay_ns: int = -1
    block_ids: Sequence[int] = ()
    source_row: int = 0
    """0 stands for the line that the row was read from."""


@dataclass(slots=True)
class Rows:
    """The rows of one file. Readers add to it inside `row`; mutable, and thrown away after `table`."""

    path: str
    refuse: bool
    """Whether one bad row refuses the file; it is read to its end all the same, to count."""
    kept: list[Row] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    """For each row read, its index in `kept`, or -1."""
    dropped: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""
    first_left_out: str = ""
    notes: list[str] = field(default_factory=list)

    _line: int = 0
    _num_kept: int = 0

    def row(self, line: int) -> Rows:
        """`with rows.row(line):` counts one row of the file; a RowError inside drops it."""
        self._line, self._num_kept = line, len(self.kept)
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, bad: BaseException | None, _: TracebackType | None) -> bool:
        if bad is None:
            self.place.append(self._num_kept)
            return False
        if not isinstance(bad, RowError):
            return False
        del self.kept[self._num_kept :]
        said = f"{self.path}:{self._line}: {bad}"
        if isinstance(bad, LeftOutError):
            self.first_left_out = self.first_left_out or said
        else:
            self.first_bad = self.first_bad or said
        self.dropped[bad.reason] += 1
        self.place.append(-1)
        return True

    def add(self, row: Row, line: int) -> None:
        """Keep a row, failed ones too. Raises RowError when it contradicts itself or its parent."""
        _check_counts(row)
        parent = self.parent_of(row)
        if row.parent >= 0 and parent is None and row.delay_ns >= 0:
            raise RowError("delay without a parent", "the turn it counts from was dropped")
        if parent is not None and parent.arrival_ns > row.arrival_ns:
            raise RowError("earlier than its parent", f"{row.arrival_ns} ns against {parent.arrival_ns} ns")
        # Packed: a list of a million ids is a million objects.
        ids = array("q", row.block_ids) if row.block_ids else ()
        self.kept.append(row._replace(block_ids=ids, source_row=row.source_row or line))

    def parent_of(self, row: Row) -> Row | None:
        """The kept row that `row.parent` names, if any. Raises RowError for one not read yet."""
        if row.parent < 0:
            return None
        if row.parent >= len(self.place):
            raise RowError("parent is not an earlier row", f"parent {row.parent}")
        index = self.place[row.parent]
        return None if index < 0 else self.kept[index]

    def take(self, table: Table) -> None:
        """All rows at once: note those that were left out."""
        self.dropped.update(table.left_out)
        self.first_left_out = table.first_left_out
        self.finish(len(table))

    def counts(self, num_kept: int | None = None) -> str:
        """'read R = kept K + dropped D: reason xN, ...'."""
        kept, dropped = len(self.kept) if num_kept is None else num_kept, self.dropped.total()
        text = f"read {kept + dropped} = kept {kept} + dropped {dropped}"
        reasons = ", ".join(f"{reason} x{count}" for reason, count in self.dropped.most_common())
        return f"{text}: {reasons}" if reasons else text

    def finish(self, num_kept: int | None = None) -> None:
        """Raise TraceError if a bad row refuses the file; otherwise note what was dropped."""
        if not self.dropped:
            return
        if self.refuse and self.first_bad:
            raise TraceError(
                f"{self.first_bad} ({self.counts()}); mend it, or keep the other rows with --on-bad-row drop"
            )
        self.notes.append(f"{self.path}: {self.counts(num_kept)}; first: {self.first_bad or self.first_left_out}")

    def table(self, blocks: Blocks) -> Table:
        """The kept rows as columns; notes say which lost their parent."""
        columns = {key: np.array([getattr(row, key) for row in self.kept], np.int64) for key in _PLAIN}
        columns["parent"] = np.array(self._parents(), np.int64)
        counts = [len(row.block_ids) for row in self.kept]
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        ids = np.zeros(int(offsets[-1]), np.int64)
        for row, start, stop in zip(self.kept, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            ids[start:stop] = row.block_ids
        return Table(columns, blocks, offsets, ids)

    def _parents(self) -> list[int]:
        in_kept = [self.place[row.parent] if row.parent >= 0 else -2 for row in self.kept]
        orphans = in_kept.count(-1)
        if orphans:
            self.notes.append(f"{self.path}: {orphans} rows lost their parent and became roots")
        return [max(index, -1) for index in in_kept]


_PLAIN: Final = tuple(name for name in Row._fields if name not in ("parent", "block_ids"))
"""Columns that are taken over as they are."""


def _check_counts(row: Row) -> None:
    prompt, output = row.num_prompt_tokens, row.num_output_tokens
    if prompt < 0 or output < 0:
        raise RowError("negative token count", f"prompt {prompt}, output {output}")
    if prompt > MAX_TOKENS or output > MAX_TOKENS:
        raise RowError("token count out of range", f"prompt {prompt}, output {output}, at most {MAX_TOKENS}")
    if prompt == 0 and output > 0:
        raise RowError("no prompt tokens", f"0 in, {output} out")
    if row.limit_tokens < -1 or row.limit_tokens == 0:
        raise RowError("limit out of range", f"{row.limit_tokens}, need at least 1, or -1 for none")
    if row.block_ids and not (min(row.block_ids) >= 0 and max(row.block_ids) <= MAX_ID):
        raise RowError("block id out of range", f"{min(row.block_ids)} to {max(row.block_ids)}, need 0 to {MAX_ID}")
