"""Mooncake's rows at once: some of them at a time by pyarrow, then what depends on other rows by whole columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.id_lists import Column, IdLists, cover_alike
from workloads.readers.turns import latest_before, origins
from workloads.tables import NotPlainError, Table

Int64s = NDArray[np.int64]

SESSION: Final = "session_id"


class _Columns:
    """What the rows so far say of themselves."""

    def __init__(self) -> None:
        self.stamp, self.delay, self.prompt, self.output = Column(), Column(), Column(), Column()
        self.sessions: list[Any] = []


def read(content: Content, stamp: str, prompt: str, output: str, size: int, unit_ns: int) -> Table:
    """All rows, with the names of three keys, ids of `size` tokens and times in `unit_ns`. What the ids mean is open.

    Raises NotPlainError where a row needs words of its own.
    """
    columns, lists = _Columns(), IdLists(size)
    kinds = {stamp: "decimal", "delay": "decimal", prompt: "whole", output: "whole", "hash_ids": "ids", SESSION: "text"}
    for piece in arrow_files.json_pieces(content, kinds, needed=(prompt, output)):
        prompts = arrow.whole_numbers(piece[prompt])
        columns.stamp.add(_times(piece[stamp], unit_ns))
        columns.delay.add(_times(piece["delay"], unit_ns))
        columns.prompt.add(prompts)
        columns.output.add(arrow.whole_numbers(piece[output]))
        columns.sessions.append(piece[SESSION])
        lists.add(piece["hash_ids"], prompts)
    prompts = columns.prompt.take()
    offsets, ids = lists.take()
    if not cover_alike(prompts, offsets, ids, size):
        raise NotPlainError
    table = _table(columns, prompts)
    return replace(table, block_offsets=offsets, block_ids=ids) if len(ids) else table


def _times(column: Any, unit_ns: int) -> Int64s:
    """Nanoseconds, -1 where there is none."""
    times = arrow.scaled(column.drop_null(), unit_ns)
    if (times < 0).any():
        raise NotPlainError
    return arrow.filled(column, times)


def _table(columns: _Columns, prompt: Int64s) -> Table:
    stamp, delay, output = columns.stamp.take(), columns.delay.take(), columns.output.take()
    session = _sessions(columns)
    parent = latest_before(session, output > 0)
    # A turn has one of the two, and with a delay a turn to count from.
    if ((stamp >= 0) == (delay >= 0)).any() or ((delay >= 0) & (parent < 0)).any():
        raise NotPlainError
    arrival = stamp[origins(np.where(delay >= 0, parent, -1))]
    return arrow.plain_table(1, arrival, prompt, output, session=session, parent=parent, delay_ns=delay)


def _sessions(columns: _Columns) -> Int64s:
    import pyarrow as pa

    texts = pa.chunked_array([chunk for column in columns.sessions for chunk in column.chunks], pa.string())
    columns.sessions.clear()
    return arrow.numbered(texts, as_written=True)
