"""pagelab's own format as CSV, JSON lines or Parquet: the columns of `Trace` by name, times in integer
nanoseconds.

A first line says what the row columns cannot: `# pagelab-trace {...}` in CSV, `{"pagelab_trace": {...}}` in
JSON lines, the key `pagelab_trace` of the schema in Parquet. It holds name, source, block_size, block_scope,
block_partial and is optional for traces without block ids. Only arrival_ns, num_prompt_tokens,
num_output_tokens are required.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from workloads.content import Content
from workloads.readers import arrow, arrow_files
from workloads.readers.reader import Options, Record, csv_rows, first_record, json_record, wrong_width
from workloads.rows import Row, Rows, TraceError
from workloads.stamps import RowError, whole
from workloads.tables import Blocks, NotPlainError, Table
from workloads.validation import MIN_VALUE

REQUIRED: Final = ("arrival_ns", "num_prompt_tokens", "num_output_tokens")
OPTIONAL: Final = ("limit_tokens", "priority", "session", "parent", "delay_ns", "source_row")
EXPECTS = "CSV, JSON lines or Parquet with " + ",".join(REQUIRED)
REBASE = False
TAKES: tuple[str, ...] = ("block_size",)
CSV_MARK: Final = "# pagelab-trace "
JSON_MARK: Final = "pagelab_trace"


def claims(content: Content) -> bool:
    """By the first line's mark, by the required columns, or by being Parquet."""
    if content.parquet or content.first_line().startswith(CSV_MARK):
        return True
    record = first_record(content)
    return JSON_MARK in record or set(REQUIRED) <= record.keys() or set(REQUIRED) <= set(content.header())


def read(content: Content, rows: Rows, options: Options) -> Blocks:
    """Rows through one checked path, whatever the container."""
    meta, records = _parquet(content) if content.parquet else _text(content)
    for line, record in records:
        with rows.row(line):
            if isinstance(record, RowError):
                raise record
            rows.add(_row(record), line)
    return _blocks(content, meta, options.block_size, any_ids=any(row.block_ids for row in rows.kept))


def read_plain(content: Content, rows: Rows, options: Options) -> Table:
    """By pyarrow, from any container; no value may be missing."""
    columns, first_line = _columns(content)
    if not set(REQUIRED) <= columns.keys():
        raise NotPlainError
    arrival_ns, prompt, output = (arrow.whole_numbers(columns[name]) for name in REQUIRED)
    more = {name: arrow.whole_numbers(columns[name]) for name in OPTIONAL if name in columns}
    table = arrow.plain_table(first_line, arrival_ns, prompt, output, **more)
    if "block_ids" in columns:
        offsets, ids = arrow.id_lists(columns["block_ids"])
        table = replace(table, block_offsets=offsets, block_ids=ids)
    any_ids = len(table.block_ids) > 0
    return replace(table, blocks=_blocks(content, metadata(content), options.block_size, any_ids=any_ids))


def _columns(content: Content) -> tuple[arrow.Columns, int]:
    """The columns that are there, and the line of the first row."""
    if content.parquet:
        return _parquet_columns(content), 1
    head = next(content.pieces(), b"").decode()
    is_json = head.startswith("{")
    marked = JSON_MARK in first_record(content) if is_json else head.startswith(CSV_MARK)
    skip_lines = int(marked)
    if is_json:
        kinds = {**dict.fromkeys((*REQUIRED, *OPTIONAL), "whole"), "block_ids": "ids"}
        return arrow_files.json_columns(content, kinds, REQUIRED, skip_lines), skip_lines + 1
    header = (head + "\n").split("\n")[skip_lines].strip().split(",")
    numbers = [name for name in (*REQUIRED, *OPTIONAL) if name in header]
    texts = [name for name in ("block_ids",) if name in header]
    return arrow_files.csv_columns(content, numbers, texts, skip_lines), skip_lines + 2


def _parquet_columns(content: Content) -> arrow.Columns:
    import pyarrow as pa

    table = _parquet_table(content)
    kinds = {name: pa.int64() for name in (*REQUIRED, *OPTIONAL)} | {"block_ids": pa.list_(pa.int64())}
    found = {name: table[name] for name in kinds if name in table.column_names}
    if not all(column.type.equals(kinds[name]) and not column.null_count for name, column in found.items()):
        raise NotPlainError
    return found


def metadata(content: Content) -> Record:
    """The first line's or schema's object, {} without one. Raises TraceError if it is broken."""
    if content.parquet:
        found = _parquet_file(content).schema_arrow.metadata or {}
        return _object(content, found.get(JSON_MARK.encode(), b"{}").decode())
    first = content.first_line()
    if first.startswith(CSV_MARK):
        return _object(content, first.removeprefix(CSV_MARK))
    marked = first_record(content).get(JSON_MARK, {})
    return _object(content, json.dumps(marked))


def _object(content: Content, text: str) -> Record:
    try:
        meta = json.loads(text)
    except ValueError:
        meta = None
    if not isinstance(meta, dict):
        raise TraceError(f"{content.path}:1: the pagelab-trace line holds no JSON object; save the trace again")
    return meta


def _text(content: Content) -> tuple[Record, Iterator[tuple[int, Record | RowError]]]:
    meta = metadata(content)
    if content.first_line().startswith("{"):
        return meta, _json_records(content)
    marked = content.first_line().startswith(CSV_MARK)
    return meta, _csv_records(content, 1 if marked else 0)


def _json_records(content: Content) -> Iterator[tuple[int, Record | RowError]]:
    for number, (line, text) in enumerate(content.lines()):
        try:
            record = json_record(text)
        except RowError as bad:
            yield line, bad
            continue
        if number > 0 or JSON_MARK not in record:
            yield line, record


def _csv_records(content: Content, skip_lines: int) -> Iterator[tuple[int, Record | RowError]]:
    for line, fields, at in csv_rows(content, skip_lines):
        missing = [name for name in REQUIRED if name not in at]
        if missing:
            raise TraceError(f"{content.path}:{skip_lines + 1}: no column {missing[0]!r}; pagelab needs {EXPECTS}")
        yield (
            line,
            wrong_width(at) if fields is None else {k: fields[i] for k, i in at.items() if fields[i] != ""},
        )


def _parquet(content: Content) -> tuple[Record, Iterator[tuple[int, Record | RowError]]]:
    records = _parquet_table(content).to_pylist()
    numbered = ((i, {k: v for k, v in row.items() if v is not None}) for i, row in enumerate(records, start=1))
    return metadata(content), numbered


def _parquet_table(content: Content) -> Any:
    import pyarrow as pa

    file = _parquet_file(content)
    missing = [name for name in REQUIRED if name not in file.schema_arrow.names]
    if missing:
        raise TraceError(f"{content.path}: no column {missing[0]!r}; pagelab needs {EXPECTS}")
    try:
        return file.read([name for name in (*REQUIRED, *OPTIONAL, "block_ids") if name in file.schema_arrow.names])
    except (pa.ArrowException, OSError) as error:
        raise _damaged(content, error) from None


def _parquet_file(content: Content) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(pa.BufferReader(content.parquet))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(content, error) from None


def _damaged(content: Content, error: Exception) -> TraceError:
    return TraceError(f"{content.path}: a damaged Parquet file ({error}); save or fetch it again")


def _row(record: Record) -> Row:
    values = {key: whole(key, _required(record, key)) for key in REQUIRED}
    values.update({key: whole(key, record[key]) for key in OPTIONAL if key in record})
    for key, value in values.items():
        least = MIN_VALUE.get(key, value)
        if value < least and key not in REQUIRED[1:]:  # token counts have words of their own
            raise RowError(f"{key} out of range", f"{value}, need at least {least}")
    return Row(**values, block_ids=_block_ids(record.get("block_ids", [])))


def _required(record: Record, key: str) -> object:
    if key not in record:
        raise RowError("missing value", key)
    return record[key]


def _block_ids(value: object) -> list[int]:
    ids = value.split() if isinstance(value, str) else value
    if not isinstance(ids, list):
        raise RowError("not block ids", f"block_ids is {value!r}")
    return [whole("block_ids", block) for block in ids]


def _blocks(content: Content, meta: Record, block_size: int | None, *, any_ids: bool) -> Blocks:
    try:
        blocks = Blocks(
            whole("block_size", meta.get("block_size", 0)),
            str(meta.get("block_scope", "")),
            str(meta.get("block_partial", "")),
        )
    except RowError as bad:
        raise TraceError(f"{content.path}:1: {bad}; save the trace again") from None
    if blocks.size == 0 and any_ids:
        raise TraceError(
            f"{content.path}:1: block_ids without block_size, block_scope and block_partial; "
            f"state them in a first line {CSV_MARK}{{...}}"
        )
    if block_size not in (None, blocks.size):
        raise TraceError(f"{content.path}:1: the file says blocks of {blocks.size} tokens, {block_size} asked for")
    return blocks
