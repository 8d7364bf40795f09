"""BLIS TraceV2: the CSV beside the YAML header, times in whole microseconds, columns by name.

As BLIS itself replays it: a row with a prefix_group has prefix_length + input_tokens tokens of prompt, another one
server_input_tokens where the server counted, else input_tokens. Rounds of a session follow each other by
round_index. A row whose status is neither 'ok' nor empty has failed. What prefix groups share is not carried over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.reader import Options, csv_rows, wrong_width
from workloads.readers.turns import rounds_before
from workloads.rows import Row, Rows
from workloads.stamps import RowError, nanoseconds, whole
from workloads.tables import Blocks, NotPlainError, Table

Int64s = NDArray[np.int64]

STAMP: Final = "arrival_time_us"
NEEDED: Final = (STAMP, "input_tokens", "output_tokens")
NUMBERS: Final = ("server_input_tokens", "prefix_length", "round_index", "vllm_priority")
OPTIONAL: Final = (*NUMBERS, "prefix_group", "status", "session_id")
NS_PER_US: Final = 1000
EXPECTS = "CSV arrival_time_us,input_tokens,output_tokens (BLIS TraceV2, the file beside the YAML header)"
REBASE = True
TAKES: tuple[str, ...] = ()


def claims(content: Content) -> bool:
    """By its three column names."""
    return set(NEEDED) <= set(content.header())


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """A round waits for no other: BLIS's own gaps between arrivals stay."""
    sessions = _Sessions()
    failed = shared = 0
    for line, fields, at in csv_rows(content):
        with rows.row(line):
            if fields is None:
                raise wrong_width(at)
            record = {name: fields[i].strip() for name, i in at.items()}
            gone = record.get("status", "") not in ("", "ok")
            key, turn = record.get("session_id", ""), record.get("round_index") or "0"
            row = Row(
                nanoseconds(STAMP, record[STAMP], NS_PER_US),
                _prompt(record),
                0 if gone else whole("output_tokens", record["output_tokens"]),
                priority=_priority(record),
                session=sessions.number.get(key, len(sessions.number)) if key else -1,
                parent=sessions.parent(key, whole("round_index", turn)),
            )
            rows.add(row, line)
            sessions.keep(key, whole("round_index", turn), row.session, len(rows.place))
            failed += gone
            shared += bool(record.get("prefix_group"))
    _say(content, rows, failed, shared)
    return Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow."""
    names = [STAMP, "input_tokens", "output_tokens", *(name for name in OPTIONAL if name in content.header())]
    columns = arrow_files.csv_columns(
        content, ["input_tokens"], as_text=[name for name in names if name != "input_tokens"]
    )
    there = columns.keys()
    given = arrow.whole_numbers(columns["input_tokens"])
    zeros = np.zeros(len(given), np.int64)
    server, prefix, turn, priority = (_or_0(columns[name]) if name in there else zeros for name in NUMBERS)
    grouped = _filled(columns["prefix_group"]) if "prefix_group" in there else zeros > 0
    gone = ~arrow.matches(arrow.stripped(columns["status"]), "^(ok)?$") if "status" in there else zeros > 0
    output = _or_0(columns["output_tokens"])
    if (~gone & ~_filled(columns["output_tokens"])).any():
        raise NotPlainError
    session = arrow.numbered(columns["session_id"]) if "session_id" in there else zeros - 1
    table = arrow.plain_table(
        2,
        arrow.scaled(columns[STAMP], NS_PER_US),
        np.where(grouped, prefix + given, np.where(server > 0, server, given)),
        np.where(gone, 0, output),
        priority=priority,
        session=session,
        parent=rounds_before(session, turn),
    )
    _say(content, rows, int(gone.sum()), int(grouped.sum()))
    return table


def _or_0(column: Any) -> Int64s:
    """Whole numbers, 0 for an empty text."""
    return np.maximum(arrow.whole_texts(column), 0)


def _filled(column: Any) -> NDArray[np.bool_]:
    return arrow.numbered(column) >= 0


def _say(content: Content, rows: Rows, failed: int, shared: int) -> None:
    if failed:
        rows.notes.append(f"{content.path}: {failed} rows have another status than ok: kept as failed, not replayed")
    if shared:
        rows.notes.append(
            f"{content.path}: {shared} rows are in a prefix group: its length counts, its sharing is lost"
        )


class _Sessions:
    """Numbers of the sessions in first-seen order, and the row of each of their rounds."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self._rows: dict[tuple[str, int], int] = {}

    def parent(self, key: str, turn: int) -> int:
        """The row of the round before, -1 for a first round."""
        if not key:
            return -1
        if (key, turn) in self._rows:
            raise RowError("round twice", f"round_index {turn} of session {key}")
        if turn > 0 and (key, turn - 1) not in self._rows:
            raise RowError("round without the one before", f"round_index {turn} of session {key}")
        return self._rows.get((key, turn - 1), -1)

    def keep(self, key: str, turn: int, number: int, row: int) -> None:
        if key:
            self.number.setdefault(key, number)
            self._rows[key, turn] = row


def _priority(record: Mapping[str, str]) -> int:
    priority = whole("vllm_priority", record.get("vllm_priority") or "0")
    if priority < 0:
        raise RowError("negative priority", f"vllm_priority is {priority}; BLIS takes none below 0")
    return priority


def _prompt(record: Mapping[str, str]) -> int:
    given = whole("input_tokens", record["input_tokens"])
    if record.get("prefix_group"):
        return whole("prefix_length", record.get("prefix_length") or "0") + given
    return whole("server_input_tokens", record.get("server_input_tokens") or "0") or given
