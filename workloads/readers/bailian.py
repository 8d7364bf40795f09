"""Qwen-Bailian JSON lines: timestamp (s), input_length, output_length, chat_id, parent_chat_id, hash_ids.

An id is a hash of its own 16 tokens (content, not chained), ceil(input / 16) of them, so it is a key only together
with the ids before it. A follow-up's input is the whole request, history included. A session is a root and all that
follow it. `type` and `turn` are not used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.id_lists import Column, IdLists
from workloads.readers.mooncake import block_ids, check_count
from workloads.readers.reader import Options, Record, first_record, json_record
from workloads.readers.turns import origins, places_of
from workloads.rows import Row, Rows
from workloads.stamps import NS_PER_S, RowError, nanoseconds, whole
from workloads.tables import Blocks, NotPlainError, Table

Int64s = NDArray[np.int64]

EXPECTS = "JSON lines with chat_id, parent_chat_id, timestamp (s), input_length, output_length, hash_ids (16 tokens)"
REBASE = True
TAKES: tuple[str, ...] = ("block_size",)
BLOCK_SIZE: Final = 16
KEYS: Final = ("chat_id", "timestamp", "input_length", "output_length")
ROOT: Final = -1


def claims(content: Content) -> bool:
    """By the first row's keys."""
    return set(KEYS) <= first_record(content).keys()


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """A turn whose parent is not in the file becomes a root, and said. Turns that follow each other in a circle
    are bad rows."""
    size = BLOCK_SIZE if options.block_size is None else options.block_size
    chats, orphans = _Chats(content), 0
    number: dict[int, int] = {}
    for line, text in content.lines():
        with rows.row(line):
            record = json_record(text)
            chat = _chat(record, "chat_id")
            root = chats.root(chat, len(rows.place))
            session = number.get(root, len(number))
            rows.add(_row(record, size)._replace(session=session, parent=chats.row.get(chats.parent[chat], -1)), line)
            number.setdefault(root, session)
            orphans += chats.parent[chat] != ROOT and chats.parent[chat] not in chats.row
    if orphans:
        rows.notes.append(_said(content, orphans))
    return _blocks(size) if any(row.block_ids for row in rows.kept) else Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow; what a row says besides is not looked at."""
    size = BLOCK_SIZE if options.block_size is None else options.block_size
    names = ("chat_id", "parent_chat_id", *KEYS[1:])
    columns, lists = {name: Column() for name in names}, IdLists(size)
    kinds = {**dict.fromkeys(names, "whole"), "timestamp": "decimal", "hash_ids": "ids"}
    for piece in arrow_files.json_pieces(content, kinds, needed=KEYS, others=True):
        for name in names:
            columns[name].add(_plain_column(name, piece[name]))
        lists.add(piece["hash_ids"], arrow.whole_numbers(piece["input_length"]))
    chat, above, arrival, prompt, output = (columns[name].take() for name in names)
    parent = places_of(above, chat)
    if (chat == ROOT).any() or (parent >= np.arange(len(chat))).any():
        raise NotPlainError
    orphans = int(((above != ROOT) & (parent < 0)).sum())
    table = arrow.plain_table(1, arrival, prompt, output, session=_sessions(parent), parent=parent)
    if orphans:
        rows.notes.append(_said(content, orphans))
    offsets, ids = lists.take()
    return replace(table, blocks=_blocks(size), block_offsets=offsets, block_ids=ids) if len(ids) else table


def _plain_column(name: str, column: Any) -> Int64s:
    if name == "timestamp":
        return arrow.scaled(column, NS_PER_S)
    return arrow.filled(column, arrow.whole_numbers(column.drop_null()))  # without a parent, -1


def _sessions(parent: Int64s) -> Int64s:
    """Numbers of the roots in file order, which is the order in which sessions are first seen."""
    is_root = parent < 0
    return np.asarray((np.cumsum(is_root) - 1)[origins(parent)], np.int64)


def _said(content: Content, orphans: int) -> str:
    return f"{content.path}: {orphans} rows name a parent that is not in the file: now roots"


def _blocks(size: int) -> Blocks:
    return Blocks(size, "content", "ceil")


class _Chats:
    """Who follows whom, known before the first row is taken: a circle is seen only from outside."""

    def __init__(self, content: Content) -> None:
        self.parent: dict[int, int] = {}
        """By chat_id, the parent_chat_id, -1 for none."""
        self.row: dict[int, int] = {}
        """By chat_id, the row of the file, counted from 0."""
        self._root: dict[int, int] = {}
        for index, (_, text) in enumerate(content.lines()):
            try:
                record = json_record(text)
                chat, parent = _chat(record, "chat_id"), _chat(record, "parent_chat_id")
            except RowError:
                continue  # said when the row itself is read
            self.parent.setdefault(chat, parent)
            self.row.setdefault(chat, index)

    def root(self, chat: int, row: int) -> int:
        """The chat that it all began with. Raises RowError for a circle, or a second row of one chat."""
        if self.row.get(chat) != row:
            raise RowError("chat_id twice", f"chat_id {chat}")
        path = [chat]
        while path[-1] not in self._root and self.parent[path[-1]] in self.parent:
            above = self.parent[path[-1]]
            if above == chat:
                raise RowError("parent cycle", f"between {' and '.join(map(str, sorted(path)))}")
            if above in path:
                break  # a circle further up, whose rows are dropped: this one becomes a root
            path.append(above)
        root = self._root.get(path[-1], path[-1])
        self._root |= dict.fromkeys(path, root)
        return root


def _chat(record: Record, key: str) -> int:
    if key == "parent_chat_id" and key not in record:
        return ROOT
    if key not in record:
        raise RowError("missing key", key)
    return whole(key, record[key])


def _row(record: Record, size: int) -> Row:
    missing = [key for key in KEYS if key not in record]
    if missing:
        raise RowError("missing key", missing[0])
    prompt, output = (whole(key, record[key]) for key in KEYS[2:])
    ids = block_ids(record)
    if "hash_ids" in record:
        check_count(prompt, len(ids), size)
    return Row(nanoseconds("timestamp", record["timestamp"], NS_PER_S), prompt, output, block_ids=ids)
