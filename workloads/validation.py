"""The rules that every trace obeys, checked on whole columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from workloads.columns import Trace

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_TOKENS: Final = 2**31 - 1
"""Longest prompt or output a trace may claim; more is a unit mistake or a corrupt row."""
MIN_VALUE: Final[dict[str, int]] = {
    "arrival_ns": 0,
    "num_prompt_tokens": 0,
    "num_output_tokens": 0,
    "limit_tokens": -1,
    "session": -1,
    "parent": -1,
    "delay_ns": -1,
    "source_row": 1,
}
SCOPES: Final = ("chained", "content", "runs")
PARTIALS: Final = ("ceil", "floor")


def integers(column: str, values: ArrayLike) -> Int64s:
    """`values` as int64, refusing floats and anything else that would be rounded or wrapped."""
    try:
        array = np.asarray(values)
    except OverflowError as error:
        raise ValueError(f"{column}: a value does not fit in int64") from error
    if array.size == 0:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{column}: need integers, got dtype {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{column}: {int(array.max())} does not fit in int64")
    return array.astype(np.int64, copy=False)


def frozen_column(trace: Trace, column: str) -> NDArray[Any]:
    """One column read-only, of the right dtype and number of dimensions: a copy, unless the array is read-only already
    and owns its memory. Then nobody writes to it, and it may be a gigabyte of block ids."""
    values = getattr(trace, column)
    dtype = np.int8 if column == "status" else np.int64
    if not isinstance(values, np.ndarray) or values.dtype != dtype or values.ndim != 1:
        got = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"{column}: need a one-dimensional {np.dtype(dtype)} array, got {got}; see Trace.build")
    if values.flags.owndata and not values.flags.writeable:
        return values
    copy = values.copy()
    copy.setflags(write=False)
    return copy


def check_columns(trace: Trace) -> None:
    """Raise ValueError, naming column and row, unless shapes, ranges and relations hold. O(rows + ids)."""
    _check_shapes(trace)
    for column, least in MIN_VALUE.items():
        _refuse(getattr(trace, column) < least, column, f"is below {least}")
    for column in ("num_prompt_tokens", "num_output_tokens"):
        _refuse(getattr(trace, column) > MAX_TOKENS, column, f"is over {MAX_TOKENS} tokens")
    _refuse(trace.limit_tokens == 0, "limit_tokens", "is 0: a limit is at least 1, or -1 for none")
    _refuse(np.diff(trace.arrival_ns, prepend=0) < 0, "arrival_ns", "is earlier than the row before")
    failed = trace.num_output_tokens == 0
    _refuse((trace.status == 1) != failed, "status", "must be 1 exactly where there are no output tokens")
    _refuse((trace.status != 0) & (trace.status != 1), "status", "is neither 0 nor 1")
    _refuse((trace.num_prompt_tokens == 0) & ~failed, "num_prompt_tokens", "is 0 on a row with output tokens")
    _check_parents(trace)
    _check_blocks(trace)


def _check_shapes(trace: Trace) -> None:
    n = len(trace.arrival_ns)
    for column in (*MIN_VALUE, "priority", "status"):
        if len(getattr(trace, column)) != n:
            raise ValueError(f"{column}: need {n} rows as in arrival_ns, got {len(getattr(trace, column))}")
    offsets = trace.block_offsets
    if len(offsets) != n + 1:
        raise ValueError(f"block_offsets: need {n + 1} entries for {n} rows, got {len(offsets)}")
    if offsets[0] != 0 or offsets[-1] != len(trace.block_ids) or (np.diff(offsets) < 0).any():
        raise ValueError(f"block_offsets: must rise from 0 to the number of block_ids, {len(trace.block_ids)}")


def _check_parents(trace: Trace) -> None:
    rows = np.arange(len(trace))
    _refuse(trace.parent >= rows, "parent", "is not an earlier row")
    delayed = trace.delay_ns >= 0
    _refuse(delayed & (trace.parent < 0), "delay_ns", "is set on a row without a parent")
    waits_for_failed = delayed & (trace.status[trace.parent] == 1) if len(trace) else delayed
    _refuse(waits_for_failed, "delay_ns", "counts from a failed parent, which never ends")


def _check_blocks(trace: Trace) -> None:
    if trace.block_size == 0:
        if len(trace.block_ids) or trace.block_scope or trace.block_partial:
            raise ValueError("block_size: 0 means no block ids, no scope and no partial rule")
        return
    if trace.block_size < 0:
        raise ValueError(f"block_size: need at least 0, got {trace.block_size}")
    if trace.block_scope not in SCOPES or trace.block_partial not in PARTIALS:
        got = f"{trace.block_scope!r}, {trace.block_partial!r}"
        raise ValueError(f"block_scope and block_partial: need one of {SCOPES} and one of {PARTIALS}, got {got}")
    if len(trace.block_ids) and int(trace.block_ids.min()) < 0:
        raise ValueError(f"block_ids: need at least 0, got {int(trace.block_ids.min())}")
    if trace.block_scope == "runs":
        _check_runs(trace)
        return
    counts = np.diff(trace.block_offsets)
    up = trace.block_size - 1 if trace.block_partial == "ceil" else 0
    wrong = (counts > 0) & (counts != (trace.num_prompt_tokens + up) // trace.block_size)
    _refuse(wrong, "block_ids", f"has the wrong number of {trace.block_size}-token blocks for its prompt")


def _check_runs(trace: Trace) -> None:
    if (trace.block_size, trace.block_partial) != (1, "floor"):
        got = f"{trace.block_size} and {trace.block_partial!r}"
        raise ValueError(f"block_size and block_partial: runs count single tokens, 1 and 'floor', got {got}")
    counts = np.diff(trace.block_offsets)
    _refuse(counts % 2 == 1, "block_ids", "has runs of an odd number of integers: need text, tokens, text, tokens, ...")
    tokens = trace.block_ids[1::2]
    rows = np.repeat(np.arange(len(trace)), counts // 2)
    short = np.zeros(len(trace), np.bool_)
    short[rows[tokens < 1]] = True
    _refuse(short, "block_ids", "has a run of no tokens")
    covered = np.zeros(len(trace), np.int64)
    np.add.at(covered, rows, tokens)
    wrong = (counts > 0) & (covered != trace.num_prompt_tokens)
    _refuse(wrong, "block_ids", "has runs of more or fewer tokens than its prompt")


def _refuse(bad: Bools, column: str, what: str) -> None:
    if bad.any():
        raise ValueError(f"{column}: row {int(np.argmax(bad))} {what}")
