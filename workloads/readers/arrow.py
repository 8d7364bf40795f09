"""Columns of pyarrow to NumPy: for plain values only, where no row needs words of its own.

What pyarrow reads more freely than the checks of single rows do (dates without a time, decimals that are too long)
makes these functions raise NotPlainError, and the rows are then read one by one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.stamps import MAX_NS
from workloads.tables import NotPlainError, Table

Int64s = NDArray[np.int64]
Columns = dict[str, Any]

PLAIN_DATE: Final = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?"
IDS: Final = r"^([0-9]{1,18}( [0-9]{1,18})*)?$"
PRINTABLE: Final = r"^([!-~]([ -~]*[!-~])?)?$"
"""A text that stripping leaves as it is."""


def whole_numbers(column: Any) -> Int64s:
    """int64 values; none may be missing."""
    if column.null_count:
        raise NotPlainError
    return _words(column, 1)[:, 0]


def _words(column: Any, width: int) -> Int64s:
    """[n, width] 64-bit words that the values are stored as: `to_numpy` would import pandas first."""
    parts = [
        np.frombuffer(chunk.buffers()[1], np.int64).reshape(-1, width)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, width), np.int64)


def scaled(column: Any, unit_ns: int) -> Int64s:
    """Plain decimal numbers of `unit_ns`, as text or as decimals, to nanoseconds, rounded half to even as single rows
    are."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_integer(column.type):
        numbers = whole_numbers(column)
        if (abs(numbers) > MAX_NS // unit_ns).any():
            raise NotPlainError
        return numbers * unit_ns
    if pa.types.is_string(column.type):
        _require(column, rf"^[0-9]{{1,{20 - len(str(unit_ns))}}}(\.[0-9]{{1,18}})?$")
        column = column.cast(pa.decimal128(38, 18))
    elif (_words(column, 2)[:, 1] < 0).any():
        raise NotPlainError  # also what would be rounded to 0
    digits = len(str(unit_ns)) - 1
    rounded = compute.round(column, ndigits=digits, round_mode="half_to_even").cast(pa.decimal128(38, digits))
    return _unscaled(rounded)


def _unscaled(column: Any) -> Int64s:
    """The integers that decimals are stored as, which is the decimal times ten to its scale."""
    words = _words(column, 2)
    if column.null_count or (words[:, 1] != words[:, 0] >> 63).any():
        raise NotPlainError
    return words[:, 0]


def date_times(column: Any) -> Int64s:
    """Nanoseconds since 1970 UTC; all stamps have a zone or none has."""
    import pyarrow as pa

    zoned = _all_match(column, PLAIN_DATE + r"(Z|[+-]\d\d:?\d\d)$")
    if not zoned:
        _require(column, PLAIN_DATE + "$")
    try:
        stamps = column.cast(pa.timestamp("ns", tz="UTC" if zoned else None))
    except pa.ArrowException:
        raise NotPlainError from None
    return whole_numbers(stamps.cast(pa.int64()))


def numbered(column: Any, *, as_written: bool = False) -> Int64s:
    """Texts as numbers in the order they are first seen; a missing one is -1. Not `as_written`, they are taken as if
    stripped and an empty one is -1 as well.

    Holds nothing per text in Python. O(distinct texts) memory.
    """
    import pyarrow as pa
    from pyarrow import compute

    chunks = compute.dictionary_encode(column if as_written else stripped(column)).chunks
    if not chunks:
        return np.zeros(0, np.int64)
    names = chunks[-1].dictionary  # the last one's has all
    least = 0 if as_written else 1
    is_name = _words(pa.chunked_array([compute.binary_length(names).cast(pa.int64())]), 1)[:, 0] >= least
    number = np.where(is_name, np.cumsum(is_name) - 1, -1)
    codes = pa.chunked_array([chunk.indices.cast(pa.int64()) for chunk in chunks])
    there = present(codes)
    found = np.full(len(codes), -1)
    found[there] = number[_words(codes.drop_null(), 1)[:, 0]]
    return found


def present(column: Any) -> NDArray[np.bool_]:
    """Where a value is not null."""
    import pyarrow as pa

    return _words(column.is_valid().cast(pa.int64()), 1)[:, 0] > 0


def stripped(column: Any) -> Any:
    """The texts, of which each is as it is without the blanks around it."""
    _require(column, PRINTABLE)
    return column


def filled(column: Any, values: Int64s) -> Int64s:
    """`values`, which are those of the column that are there, with -1 for the others."""
    if not column.null_count:
        return values
    all_rows = np.full(len(column), -1)
    all_rows[present(column)] = values
    return all_rows


def id_lists(column: Any) -> tuple[Int64s, Int64s]:
    """(offsets, ids) of lists of numbers, or of texts of numbers with one space between; a missing list is empty."""
    import pyarrow as pa
    from pyarrow import compute

    # Without Arrow scalars: making one imports pandas, a second and a half.
    if pa.types.is_string(column.type):
        _require(column, IDS)
        spaces, filled = compute.count_substring(column, " "), compute.match_substring_regex(column, "[0-9]")
        counts = compute.add(spaces.cast(pa.int64()), filled.cast(pa.int64()))
        flat = compute.list_flatten(compute.split_pattern(column.filter(filled), " ")).cast(pa.int64())
    else:
        none = pa.py_buffer(np.zeros(len(column), np.int64))
        zeros = pa.Array.from_buffers(pa.int64(), len(column), [None, none])
        counts = compute.coalesce(compute.list_value_length(column).cast(pa.int64()), pa.chunked_array([zeros]))
        flat = compute.list_flatten(column)
    return np.concatenate(([0], np.cumsum(_words(counts, 1)[:, 0]))), whole_numbers(flat)


def whole_texts(column: Any) -> Int64s:
    """Texts as whole numbers of at most 18 digits, -1 for an empty one."""
    import pyarrow as pa
    from pyarrow import compute

    _require(column, r"^[0-9]{0,18}$")
    digits = column.filter(compute.match_substring_regex(column, "[0-9]"))
    found = np.full(len(column), -1)
    found[matches(column, "[0-9]")] = _words(digits.cast(pa.int64()), 1)[:, 0]
    return found


def matches(column: Any, pattern: str) -> NDArray[np.bool_]:
    """Whether each text has what the pattern says."""
    import pyarrow as pa
    from pyarrow import compute

    return _words(compute.match_substring_regex(column, pattern).cast(pa.int64()), 1)[:, 0] > 0


def _all_match(column: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(column, pattern), min_count=0).as_py())


def _require(column: Any, pattern: str) -> None:
    if not _all_match(column, pattern):
        raise NotPlainError


def plain_table(first_line: int, arrival_ns: Int64s, prompt: Int64s, output: Int64s, **more: Int64s) -> Table:
    """The columns as a table, rows on consecutive lines unless `more` has a source_row."""
    columns = {"arrival_ns": arrival_ns, "num_prompt_tokens": prompt, "num_output_tokens": output}
    lines = {} if "source_row" in more else {"source_row": np.arange(first_line, first_line + len(prompt))}
    return Table({**columns, **lines, **more})
