"""Columns on their way from a file to a trace: whether all rows are plain, and the trace they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.columns import Trace
from workloads.validation import MAX_TOKENS, MIN_VALUE

Int64s = NDArray[np.int64]


class Blocks(NamedTuple):
    """What the block ids of a file mean; see `Trace`."""

    size: int = 0
    scope: str = ""
    partial: str = ""


NO_BLOCKS: Final = Blocks()
MOVED_AT_ONCE: Final = 1 << 16
"""Rows whose ids are moved at once, which takes three words for each."""


class NotPlainError(Exception):
    """A file with a row that needs a closer look: to be read row by row."""


def _none() -> Int64s:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file in its order. `parent` counts rows of this table; columns left out take their default."""

    columns: Mapping[str, Int64s]
    """By name: at least arrival_ns, num_prompt_tokens, num_output_tokens and source_row."""
    blocks: Blocks = NO_BLOCKS
    block_offsets: Int64s = field(default_factory=_none)
    """[n + 1], or empty if no row has ids."""
    block_ids: Int64s = field(default_factory=_none)
    left_out: Mapping[str, int] = field(default_factory=dict)
    """By reason, how many rows of the file a recipe left out."""
    first_left_out: str = ""
    """Where and why the first of them was."""

    def __len__(self) -> int:
        return len(self.columns["arrival_ns"])


def all_plain(table: Table) -> bool:
    """Whether every row would be kept as it is by the checks that `Rows.add` makes row by row. O(rows + ids)."""
    columns = table.columns
    prompt, output = columns["num_prompt_tokens"], columns["num_output_tokens"]
    if any((columns[name] < least).any() for name, least in MIN_VALUE.items() if name in columns):
        return False
    if (prompt > MAX_TOKENS).any() or (output > MAX_TOKENS).any() or ((prompt == 0) & (output > 0)).any():
        return False
    if "limit_tokens" in columns and (columns["limit_tokens"] == 0).any():
        return False
    return _parents_are_plain(columns) and not (table.block_ids < 0).any()


def _parents_are_plain(columns: Mapping[str, Int64s]) -> bool:
    parent = columns.get("parent")
    if parent is None:
        return not ("delay_ns" in columns and (columns["delay_ns"] >= 0).any())
    if (parent >= np.arange(len(parent))).any():
        return False
    if "delay_ns" in columns and ((columns["delay_ns"] >= 0) & (parent < 0)).any():
        return False
    child = parent >= 0
    arrival = columns["arrival_ns"]
    return bool((arrival[parent[child]] <= arrival[child]).all())


def to_trace(table: Table, path: str, notes: list[str], *, name: str, source: dict[str, str], rebase: bool) -> Trace:
    """Sorted stably by arrival, re-based to 0 if asked; `notes` says what was done. Raises ValueError where the
    rows contradict each other. The table's arrays are read-only after it."""
    arrival = table.columns["arrival_ns"]
    columns = dict(table.columns)
    offsets, ids = table.block_offsets, table.block_ids
    out_of_order = int((arrival[1:] < arrival[:-1]).sum())
    if out_of_order:
        notes.append(f"{path}: {out_of_order} rows arrive before the row above them: sorted stably")
        order = np.argsort(arrival, kind="stable")
        columns = {key: values[order] for key, values in columns.items()}
        if "parent" in columns:
            place = np.full(len(order) + 1, -1)  # the last entry answers parent -1
            place[order] = np.arange(len(order))
            columns["parent"] = place[columns["parent"]]
        if len(offsets):
            offsets, ids = _moved(offsets, ids, order)
    if rebase and len(arrival):
        columns["arrival_ns"] = columns["arrival_ns"] - columns["arrival_ns"][0]
    blocks = {"block_offsets": offsets, "block_ids": ids} if len(offsets) else {}
    for values in (*columns.values(), *blocks.values()):
        values.setflags(write=False)  # the trace takes them as they are
    size, scope, partial = table.blocks
    return Trace.build(
        columns.pop("arrival_ns"),
        columns.pop("num_prompt_tokens"),
        columns.pop("num_output_tokens"),
        name=name,
        block_size=size,
        block_scope=scope,
        block_partial=partial,
        source=source,
        **columns,
        **blocks,
    )


def _moved(offsets: Int64s, ids: Int64s, order: Int64s) -> tuple[Int64s, Int64s]:
    moved = np.concatenate(([0], np.cumsum(np.diff(offsets)[order])))
    found = np.empty(len(ids), np.int64)
    for start in range(0, len(order), MOVED_AT_ONCE):
        rows = order[start : start + MOVED_AT_ONCE]
        ends = moved[start : start + len(rows) + 1]
        where = np.arange(ends[0], ends[-1]) + np.repeat(offsets[rows] - ends[:-1], np.diff(ends))
        found[ends[0] : ends[-1]] = ids[where]
    return moved, found
