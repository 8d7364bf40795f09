"""Rows on their way from a file to a trace: checked one by one, refused with a place and a count, then
assembled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from types import TracebackType
from typing import Final, NamedTuple

import numpy as np

from workloads.columns import Trace
from workloads.stamps import RowError
from workloads.validation import MAX_TOKENS

MAX_ID: Final = 2**63 - 1


class TraceError(ValueError):
    """A file that cannot be taken as a trace: where, why, and what to do."""


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


class Blocks(NamedTuple):
    """What the block ids of a file mean; see `Trace`."""

    size: int = 0
    scope: str = ""
    partial: str = ""


@dataclass(slots=True)
class Rows:
    """The rows of one file. Readers add to it inside `row`; mutable, and thrown away after `assemble`."""

    path: str
    refuse: bool
    """Whether one bad row refuses the file; it is read to its end all the same, to count."""
    kept: list[Row] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    """For each row read, its index in `kept`, or -1."""
    dropped: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""
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
        self.first_bad = self.first_bad or f"{self.path}:{self._line}: {bad}"
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
        self.kept.append(row if row.source_row else row._replace(source_row=line))

    def parent_of(self, row: Row) -> Row | None:
        """The kept row that `row.parent` names, if any. Raises RowError for one not read yet."""
        if row.parent < 0:
            return None
        if row.parent >= len(self.place):
            raise RowError("parent is not an earlier row", f"parent {row.parent}")
        index = self.place[row.parent]
        return None if index < 0 else self.kept[index]

    def counts(self) -> str:
        """'read R = kept K + dropped D: reason xN, ...'."""
        text = f"read {len(self.place)} = kept {len(self.kept)} + dropped {self.dropped.total()}"
        reasons = ", ".join(f"{reason} x{count}" for reason, count in self.dropped.most_common())
        return f"{text}: {reasons}" if reasons else text

    def finish(self) -> None:
        """Raise TraceError if a bad row refuses the file; otherwise note what was dropped."""
        if not self.dropped:
            return
        if self.refuse:
            raise TraceError(
                f"{self.first_bad} ({self.counts()}); mend it, or keep the other rows with --on-bad-row drop"
            )
        self.notes.append(f"{self.path}: {self.counts()}; first: {self.first_bad}")


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


def assemble(rows: Rows, blocks: Blocks, *, name: str, source: dict[str, str], rebase: bool) -> Trace:
    """The kept rows as a trace: sorted stably by arrival, re-based to 0 if asked; notes say what was done."""
    arrivals = [row.arrival_ns for row in rows.kept]
    order = sorted(range(len(arrivals)), key=arrivals.__getitem__)
    out_of_order = sum(before > after for before, after in pairwise(arrivals))
    if out_of_order:
        rows.notes.append(f"{rows.path}: {out_of_order} rows arrive before the row above them: sorted stably")
    kept = [rows.kept[i] for i in order]
    origin_ns = kept[0].arrival_ns if rebase and kept else 0
    parent = _parents(rows, order)
    column = {key: [getattr(row, key) for row in kept] for key in _PLAIN}
    return Trace.build(
        [row.arrival_ns - origin_ns for row in kept],
        parent=parent,
        block_offsets=np.concatenate(([0], np.cumsum([len(row.block_ids) for row in kept], dtype=np.int64))),
        block_ids=list(chain.from_iterable(row.block_ids for row in kept)),
        block_size=blocks.size,
        block_scope=blocks.scope,
        block_partial=blocks.partial,
        name=name,
        source=source,
        **column,
    )


_PLAIN: Final = (
    "num_prompt_tokens",
    "num_output_tokens",
    "limit_tokens",
    "priority",
    "session",
    "delay_ns",
    "source_row",
)


def _parents(rows: Rows, order: list[int]) -> list[int]:
    new_index = {old: new for new, old in enumerate(order)}
    in_kept = [rows.place[rows.kept[i].parent] if rows.kept[i].parent >= 0 else -2 for i in order]
    orphans = in_kept.count(-1)
    if orphans:
        rows.notes.append(f"{rows.path}: {orphans} rows lost their parent and became roots")
    return [new_index[old] if old >= 0 else -1 for old in in_kept]
