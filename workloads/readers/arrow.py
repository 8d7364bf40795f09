"""All rows of a file at once, by pyarrow: for plain files only, where no row needs words of its own.

What pyarrow reads more freely than the checks of single rows do (hexadecimal and huge numbers, dates without a time,
two objects on a line) makes these functions answer None, and the rows are then read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.stamps import MAX_NS
from workloads.tables import Table

Int64s = NDArray[np.int64]
Columns = dict[str, Any]

PLAIN_NUMBER: Final = r"^[0-9]{1,9}(\.[0-9]{1,18})?$"
PLAIN_DATE: Final = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?"
IDS: Final = r"^([0-9]{1,18}( [0-9]{1,18})*)?$"
PIECE: Final = 1 << 23
"""Characters of text that are parsed at once."""


def csv_columns(text: str, whole: Sequence[str], as_text: Sequence[str] = ()) -> Columns | None:
    """The columns named, `whole` ones as int64; None if a row is not plain."""
    import pyarrow as pa
    from pyarrow import csv

    header, _, rows = text.partition("\n")
    names = header.rstrip("\r").split(",")
    if '"' in text or "0x" in text or "0X" in text or len(set(names)) < len(names):
        return None
    types = {name: pa.int64() for name in whole} | {name: pa.string() for name in as_text}
    convert = csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=[], strings_can_be_null=False
    )
    table = _read(
        rows,
        lambda piece: csv.read_csv(
            piece,
            read_options=csv.ReadOptions(column_names=names),
            parse_options=csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=convert,
        ),
    )
    return None if table is None else {name: table[name] for name in types}


def json_columns(text: str, kinds: Mapping[str, str], needed: Sequence[str]) -> Columns | None:
    """Keys of JSON lines: kind 'whole', 'decimal' or 'ids'. None unless every line is one flat object whose keys are
    among `kinds` and hold all that are `needed`."""
    if not _one_object_a_line(text) or "null" in text:
        return None
    # Whole numbers first: of decimals, huge ones and powers of ten come out wrong without a word.
    table = _read_json(text, {key: "whole" if kind == "decimal" else kind for key, kind in kinds.items()})
    if table is None and "decimal" in kinds.values() and not _has_unusual_number(text):
        table = _read_json(text, kinds)
    if table is None or len(table) != text.count("{") or any(table[key].null_count for key in needed):
        return None
    return {key: table[key] for key in kinds if table[key].null_count < len(table)}


def _read_json(text: str, kinds: Mapping[str, str]) -> Any:
    import pyarrow as pa
    from pyarrow import json

    types = {"whole": pa.int64(), "decimal": pa.decimal128(38, 18), "ids": pa.list_(pa.int64())}
    parse = json.ParseOptions(
        explicit_schema=pa.schema([(key, types[kind]) for key, kind in kinds.items()]),
        unexpected_field_behavior="error",
    )
    return _read(text, lambda piece: json.read_json(piece, json.ReadOptions(block_size=len(piece) + 1), parse))


def _read(text: str, read: Callable[[Any], Any]) -> Any:
    """One table of all pieces of whole lines, or None: no second copy of a large text."""
    import pyarrow as pa

    tables, start = [], 0
    while start < len(text):
        stop = text.find("\n", start + PIECE) + 1 or len(text)
        try:
            tables.append(read(pa.py_buffer(text[start:stop].encode())))
        except (pa.ArrowException, ValueError, KeyError):
            return None
        start = stop
    return pa.concat_tables(tables) if tables else None


def _one_object_a_line(text: str) -> bool:
    num_lines = text.count("\n") + (not text.endswith("\n"))
    starts = text.startswith("{") + text.count("\n{")
    ends = text.endswith("}") + text.count("}\n")
    return starts == ends == num_lines == text.count("{") == text.count("}")


def _has_unusual_number(text: str) -> bool:
    """Whether a digit is followed by an e, or 19 digits by each other."""
    for start in range(0, len(text), PIECE):
        codes = np.frombuffer(text[start : start + PIECE + 18].encode(), np.uint8)
        run = (codes >= ord("0")) & (codes <= ord("9"))
        after = codes[1:] | 32  # in lower case
        if (run[:-1] & (after == ord("e"))).any():
            return True
        for width in (1, 2, 4, 8, 3):  # then a mark stands for 19 digits from there on
            run = run[:-width] & run[width:]
        if run.any():
            return True
    return False


def whole_numbers(column: Any) -> Int64s | None:
    """int64 values; None if one is missing."""
    return None if column.null_count else _words(column, 1)[:, 0]


def _words(column: Any, width: int) -> Int64s:
    """[n, width] 64-bit words that the values are stored as: `to_numpy` would import pandas first."""
    parts = [
        np.frombuffer(chunk.buffers()[1], np.int64).reshape(-1, width)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, width), np.int64)


def scaled(column: Any, unit_ns: int) -> Int64s | None:
    """Decimal numbers of `unit_ns`, as text or as decimals, to nanoseconds, rounded half to even as single rows are;
    None for what is no plain number."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_integer(column.type):
        numbers = whole_numbers(column)
        in_range = numbers is not None and (abs(numbers) <= MAX_NS // unit_ns).all()
        return numbers * unit_ns if numbers is not None and in_range else None
    if pa.types.is_string(column.type):
        if not _all_match(column, PLAIN_NUMBER):
            return None
        column = column.cast(pa.decimal128(38, 18))
    digits = len(str(unit_ns)) - 1
    rounded = compute.round(column, ndigits=digits, round_mode="half_to_even").cast(pa.decimal128(38, digits))
    return _unscaled(rounded)


def _unscaled(column: Any) -> Int64s | None:
    """The integers that decimals are stored as, which is the decimal times ten to its scale."""
    words = _words(column, 2)
    fits_63_bits = (words[:, 1] == words[:, 0] >> 63).all()
    return words[:, 0] if fits_63_bits and not column.null_count else None


def date_times(column: Any) -> Int64s | None:
    """Nanoseconds since 1970 UTC; None if a stamp is not plain, or if some have a zone and some do not."""
    import pyarrow as pa

    zoned = _all_match(column, PLAIN_DATE + r"(Z|[+-]\d\d:?\d\d)$")
    if not zoned and not _all_match(column, PLAIN_DATE + "$"):
        return None
    try:
        stamps = column.cast(pa.timestamp("ns", tz="UTC" if zoned else None))
    except pa.ArrowException:
        return None
    return whole_numbers(stamps.cast(pa.int64()))


def numbered(column: Any) -> Int64s:
    """Texts as numbers in the order they are first seen; an empty text is -1."""
    import pyarrow as pa
    from pyarrow import compute

    texts = column.combine_chunks()
    names = compute.unique(texts)
    number = np.full(len(names) + 1, -1)
    seen = [i for i, name in enumerate(names.to_pylist()) if name]
    number[seen] = np.arange(len(seen))
    codes = pa.chunked_array([compute.index_in(texts, value_set=names).cast(pa.int64())])
    return np.asarray(number[_words(codes, 1)[:, 0]], np.int64)


def id_lists(column: Any) -> tuple[Int64s, Int64s] | None:
    """(offsets, ids) of lists of numbers, or of texts of numbers with one space between; a missing list is empty."""
    import pyarrow as pa
    from pyarrow import compute

    # Without Arrow scalars: making one imports pandas, a second and a half.
    if pa.types.is_string(column.type):
        if not _all_match(column, IDS):
            return None
        spaces, filled = compute.count_substring(column, " "), compute.match_substring_regex(column, "[0-9]")
        counts = compute.add(spaces.cast(pa.int64()), filled.cast(pa.int64()))
        flat = compute.list_flatten(compute.split_pattern(column.filter(filled), " ")).cast(pa.int64())
    else:
        none = pa.py_buffer(np.zeros(len(column), np.int64))
        zeros = pa.Array.from_buffers(pa.int64(), len(column), [None, none])
        counts = compute.coalesce(compute.list_value_length(column).cast(pa.int64()), pa.chunked_array([zeros]))
        flat = compute.list_flatten(column)
    ids = whole_numbers(flat)
    return None if ids is None else (np.concatenate(([0], np.cumsum(_words(counts, 1)[:, 0]))), ids)


def _all_match(column: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(column, pattern), min_count=0).as_py())


def plain_table(
    first_line: int, arrival_ns: Int64s | None, prompt: Any, output: Any, **more: Int64s | None
) -> Table | None:
    """The columns as a table, rows on consecutive lines unless `more` has a source_row; None if a column is."""
    columns = {
        "arrival_ns": arrival_ns,
        "num_prompt_tokens": whole_numbers(prompt),
        "num_output_tokens": whole_numbers(output),
        "source_row": np.arange(first_line, first_line + len(prompt)),
        **more,
    }
    there = {name: values for name, values in columns.items() if values is not None}
    return Table(there) if len(there) == len(columns) else None
