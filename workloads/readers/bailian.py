"""Qwen-Bailian JSON lines: timestamp (s), input_length, output_length, chat_id, parent_chat_id, hash_ids.

An id is a hash of its own 16 tokens (content, not chained), ceil(input / 16) of them, so it is a key only together
with the ids before it. A follow-up's input is the whole request, history included. A session is a root and all that
follow it. `type` and `turn` are not used.
"""

from __future__ import annotations

from typing import Final

from workloads.content import Content
from workloads.readers.mooncake import block_ids, check_count
from workloads.readers.reader import Options, Record, first_record, json_record
from workloads.rows import Row, Rows
from workloads.stamps import NS_PER_S, RowError, nanoseconds, whole
from workloads.tables import Blocks, Table

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
        rows.notes.append(f"{content.path}: {orphans} rows name a parent that is not in the file: now roots")
    return Blocks(size, "content", "ceil") if any(row.block_ids for row in rows.kept) else Blocks()


def read_plain(content: Content, rows: Rows, options: Options) -> Table | None:
    """Rows depend on each other: one by one."""
    return None


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
