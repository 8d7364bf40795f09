"""Files to columns by pyarrow, some lines at a time: for plain files only, where no row needs words of its own.

What pyarrow reads more freely than the checks of single rows do (hexadecimal and huge numbers, two objects on a line)
makes these functions raise NotPlainError, and the rows are then read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np

from workloads.content import Content
from workloads.readers.arrow import Columns
from workloads.tables import NotPlainError

POWER: Final = re.compile(rb"""[:,[\s]"?[-+]?[0-9.]+[eE][-+]?[0-9]+["\s,\]}]""")
"""A number with an exponent, in quotes or not: those of decimals come out wrong without a word."""
LOOSE: Final = (b"null", b"NaN", b"Inf", b"[[")
"""What pyarrow takes where a single row would be refused: it may be in a key that is not looked at."""


def csv_columns(content: Content, whole: Sequence[str], as_text: Sequence[str] = (), skip_lines: int = 0) -> Columns:
    """The columns named, `whole` ones as int64."""
    import pyarrow as pa
    from pyarrow import csv

    pieces = _without(content.pieces(), skip_lines)
    header, _, rest = next(pieces, b"").partition(b"\n")
    names = header.decode().rstrip("\r").split(",")
    if b'"' in header or len(set(names)) < len(names):
        raise NotPlainError
    types = {name: pa.int64() for name in whole} | {name: pa.string() for name in as_text}
    convert = csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=[], strings_can_be_null=False
    )
    read = partial(
        csv.read_csv,
        read_options=csv.ReadOptions(column_names=names),
        parse_options=csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        convert_options=convert,
    )
    tables = []
    for piece in chain([rest] if rest else [], pieces):
        table = None if b'"' in piece or b"0x" in piece or b"0X" in piece else _parsed(read, piece)
        if table is None:
            raise NotPlainError
        tables.append(table)
    if not tables:
        raise NotPlainError
    joined = pa.concat_tables(tables)
    return {name: joined[name] for name in types}


def _without(pieces: Iterator[bytes], num_lines: int) -> Iterator[bytes]:
    for piece in pieces:
        while num_lines and piece:
            piece, num_lines = piece.partition(b"\n")[2], num_lines - 1
        if piece:
            yield piece


def json_pieces(
    content: Content, kinds: Mapping[str, str], needed: Sequence[str], skip_lines: int = 0, *, others: bool = False
) -> Iterator[Any]:
    """Tables of the keys of JSON lines, some rows at a time, null where a row has no such key. Kinds are 'whole',
    'decimal', 'ids' and 'text'.

    Plain is a line that is one flat object, has all keys `needed`, and none that is not in `kinds` but for `others`,
    which are not looked at.
    """
    decimals = False
    for piece in _without(content.pieces(), skip_lines):
        if not _one_object_a_line(piece) or any(word in piece for word in LOOSE) or _has_power(piece):
            raise NotPlainError
        # Whole numbers first: of decimals, huge ones come out wrong without a word.
        table = None if decimals else _read_json(piece, _without_decimals(kinds), others=others)
        if table is None and "decimal" in kinds.values() and not _has_long_number(piece):
            table, decimals = _read_json(piece, kinds, others=others), True
        if table is None or len(table) != piece.count(b"{") or any(table[key].null_count for key in needed):
            raise NotPlainError
        yield table


def json_columns(content: Content, kinds: Mapping[str, str], needed: Sequence[str], skip_lines: int = 0) -> Columns:
    """As `json_pieces`, all rows, without the keys that no row has."""
    import pyarrow as pa

    tables = list(json_pieces(content, kinds, needed, skip_lines))
    if not tables:
        raise NotPlainError
    table = pa.concat_tables(tables)
    return {key: table[key] for key in kinds if table[key].null_count < len(table)}


def _without_decimals(kinds: Mapping[str, str]) -> dict[str, str]:
    return {key: "whole" if kind == "decimal" else kind for key, kind in kinds.items()}


def _read_json(piece: bytes, kinds: Mapping[str, str], *, others: bool) -> Any:
    import pyarrow as pa
    from pyarrow import json

    types = {
        "whole": pa.int64(),
        "decimal": pa.decimal128(38, 18),
        "ids": pa.list_(pa.int64()),
        "text": pa.string(),
    }
    parse = json.ParseOptions(
        explicit_schema=pa.schema([(key, types[kind]) for key, kind in kinds.items()]),
        unexpected_field_behavior="ignore" if others else "error",
    )
    read = partial(json.read_json, read_options=json.ReadOptions(block_size=len(piece) + 1), parse_options=parse)
    return _parsed(read, piece)


def _parsed(read: Callable[[Any], Any], piece: bytes) -> Any:
    import pyarrow as pa

    try:
        return read(pa.py_buffer(piece))
    except (pa.ArrowException, ValueError, KeyError):
        return None


def _one_object_a_line(piece: bytes) -> bool:
    num_lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    starts = piece.startswith(b"{") + piece.count(b"\n{")
    ends = piece.endswith(b"}") + piece.count(b"}\n")
    return starts == ends == num_lines == piece.count(b"{") == piece.count(b"}")


def _has_power(piece: bytes) -> bool:
    codes = np.frombuffer(piece, np.uint8)
    after_digit = codes[1:][(codes[:-1] >= ord("0")) & (codes[:-1] <= ord("9"))]
    return bool((after_digit | 32 == ord("e")).any()) and POWER.search(piece) is not None  # in lower case


def _has_long_number(piece: bytes) -> bool:
    """Whether there are 19 digits in a row."""
    codes = np.frombuffer(piece, np.uint8)
    run = (codes >= ord("0")) & (codes <= ord("9"))
    for width in (1, 2, 4, 8, 3):  # then a mark stands for 19 digits from there on
        run = run[:-width] & run[width:]
    return bool(run.any())
