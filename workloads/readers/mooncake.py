"""Mooncake JSON lines: timestamp (ms), input_length, output_length, hash_ids of 512-token chained blocks.

An id stands for its block and all before it, and the last block may be partly filled (ceil). The file does
not carry the block size, so the number of ids and what each id covers are checked against it. Aliases
created_time, input_tokens, output_tokens and the session_id and delay (ms) of AIPerf and Dynamo are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from workloads.content import Content
from workloads.readers import mooncake_columns
from workloads.readers.id_lists import all_chained
from workloads.readers.reader import Options, Record, first_record, json_record
from workloads.rows import Row, Rows
from workloads.stamps import NS_PER_MS, RowError, nanoseconds, whole
from workloads.tables import Blocks, Table

EXPECTS = "JSON lines with timestamp (ms), input_length, output_length, hash_ids (512-token blocks)"
REBASE = True
TAKES: tuple[str, ...] = ("block_size",)
BLOCK_SIZE: Final = 512
STAMPS: Final = ("timestamp", "created_time")
PROMPTS: Final = ("input_length", "input_tokens")
OUTPUTS: Final = ("output_length", "output_tokens")


def claims(content: Content) -> bool:
    """By the first row's keys. With chat_id they mean Bailian: seconds and 16-token content hashes."""
    keys = first_record(content).keys()
    return bool(keys & set(PROMPTS)) and bool(keys & {*STAMPS, "delay"}) and "chat_id" not in keys


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Turns of a session follow each other in file order, by timestamp or by a delay from the parent."""
    return read_rows(content, rows, options.block_size or BLOCK_SIZE, NS_PER_MS)


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow."""
    return read_table(content, rows, options.block_size or BLOCK_SIZE, NS_PER_MS)


def read_rows(content: Content, rows: Rows, size: int, unit_ns: int) -> Blocks:
    """Rows with ids of `size` tokens and times in units of `unit_ns`."""
    sessions, covers = _Sessions(), _Covers(size)
    for line, text in content.lines():
        with rows.row(line):
            record = json_record(text)
            row = _row(record, rows, sessions, unit_ns)._replace(block_ids=block_ids(record))
            covers.check(row, "hash_ids" in record)
            rows.add(row, line)
            covers.keep(row)
            sessions.keep(record, row, len(rows.place))
    if not any(row.block_ids for row in rows.kept):
        return Blocks()
    return _blocks(content, rows, size, chained=_is_chained(rows.kept))


def read_table(content: Content, rows: Rows, size: int, unit_ns: int) -> Table:
    """As `read_rows`, at once."""
    stamp, prompt, output = (_named(content, either) for either in (STAMPS, PROMPTS, OUTPUTS))
    table = mooncake_columns.read(content, stamp, prompt, output, size, unit_ns)
    if not len(table.block_ids):
        return table
    chained = all_chained(table.block_offsets, table.block_ids)
    return replace(table, blocks=_blocks(content, rows, size, chained=chained))


def _named(content: Content, names: tuple[str, ...]) -> str:
    """The one of them that the first row has."""
    keys = first_record(content).keys()
    return next((name for name in names if name in keys), names[0])


def _blocks(content: Content, rows: Rows, size: int, *, chained: bool) -> Blocks:
    if not chained:
        rows.notes.append(f"{content.path}: ids are not prefix-chained: taken as content ids, keys only with a prefix")
    return Blocks(size, "chained" if chained else "content", "ceil")


@dataclass(slots=True)
class _Sessions:
    """Numbers of the sessions in first-seen order, and each one's last turn that can be waited for."""

    number: dict[object, int] = field(default_factory=dict)
    last: dict[object, int] = field(default_factory=dict)

    def keep(self, record: Record, row: Row, index: int) -> None:
        key = record.get("session_id")
        if key is not None:
            self.number.setdefault(key, len(self.number))
            if row.num_output_tokens:
                self.last[key] = index


@dataclass(slots=True)
class _Covers:
    """Tokens that each id stood for so far: an id partial here and full there would be two contents."""

    size: int
    tokens: dict[int, int] = field(default_factory=dict)

    def check(self, row: Row, has_ids: bool) -> None:
        if has_ids:
            check_count(row.num_prompt_tokens, len(row.block_ids), self.size)
        for block, now in zip(row.block_ids, self._covered(row), strict=True):
            before = self.tokens.get(block, now)
            if before != now:
                found = f"id {block} was {self._filled(before)} and is now {self._filled(now)}"
                raise RowError("partial and full block under one id", found)

    def keep(self, row: Row) -> None:
        self.tokens.update(zip(row.block_ids, self._covered(row), strict=True))

    def _covered(self, row: Row) -> list[int]:
        if not row.block_ids:
            return []
        full = len(row.block_ids) - 1
        return [self.size] * full + [row.num_prompt_tokens - full * self.size]

    def _filled(self, tokens: int) -> str:
        return f"full ({tokens})" if tokens == self.size else f"partial ({tokens} tokens)"


def check_count(prompt: int, num_ids: int, size: int) -> None:
    """Raise RowError unless there is an id for every `size` tokens, the last one for the rest."""
    need = -(-prompt // size)
    found = f"{prompt} tokens need {need} ids of {size} tokens, {num_ids} given"
    if num_ids > need:
        raise RowError("too many block ids", found)
    if num_ids < need:
        raise RowError("too few block ids", f"{found}: {num_ids} blocks of {size} cannot hold {prompt} tokens")


def _row(record: Record, rows: Rows, sessions: _Sessions, unit_ns: int) -> Row:
    prompt, output = whole(*_one(record, PROMPTS)), whole(*_one(record, OUTPUTS))
    key = record.get("session_id")
    if isinstance(key, (list, dict)):
        raise RowError("not a session id", f"session_id is {key!r}")
    parent = -1 if key is None else sessions.last.get(key, -1)
    session = -1 if key is None else sessions.number.get(key, len(sessions.number))
    arrival_ns, delay_ns = _when(record, rows, parent, unit_ns)
    return Row(arrival_ns, prompt, output, session=session, parent=parent, delay_ns=delay_ns)


def _when(record: Record, rows: Rows, parent: int, unit_ns: int) -> tuple[int, int]:
    stamped = any(key in record for key in STAMPS)
    if stamped and "delay" in record:
        raise RowError("both timestamp and delay", "a turn has one of them")
    if stamped:
        return nanoseconds(*_one(record, STAMPS), unit_ns), -1
    if "delay" not in record:
        raise RowError("neither timestamp nor delay", f"keys {', '.join(record)}")
    if parent < 0:
        raise RowError("delay without a parent", "no earlier turn of its session has an end to count from")
    return rows.kept[rows.place[parent]].arrival_ns, nanoseconds("delay", record["delay"], unit_ns)


def _one(record: Record, names: tuple[str, ...]) -> tuple[str, object]:
    found = [name for name in names if name in record]
    if len(found) != 1:
        raise RowError("missing key" if not found else "two keys for one value", " or ".join(names))
    return found[0], record[found[0]]


def block_ids(record: Record) -> list[int]:
    """The row's ids, none without the key."""
    ids = record.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(block) is int for block in ids):
        raise RowError("not block ids", "hash_ids is no list of whole numbers")
    return ids


def _is_chained(kept: list[Row]) -> bool:
    """Whether every id always follows the same id."""
    before: dict[int, int] = {}
    for row in kept:
        previous = -1
        for block in row.block_ids:
            if before.setdefault(block, previous) != previous:
                return False
            previous = block
    return True
