"""Names of columns as people give them: whole, or the last part of a dotted key where that is one key only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from engine.core.suggestion import unknown_name
from experiments.figures.filters import Condition
from experiments.figures.repeats import UNSET
from experiments.quantities import byte_count

FIXED = ("allocator", "block_size", "kernel")
"""What a cell is besides the axes; `allocator` and `block_size` are columns of every result."""
REPEATS = ("seed", "repeat")


def resolved(name: str, frame: pd.DataFrame) -> str:
    """The column that is meant: itself, `kv.block_size` for `block_size` if no other key ends so, or `block_size` for
    `kv.block_size`. ValueError with suggestions for anything else."""
    columns = [str(column) for column in frame.columns]
    if name in columns:
        return name
    leaves = [column for column in columns if column.rpartition(".")[2] == name and "." in column]
    if len(leaves) == 1:
        return leaves[0]
    if leaves:
        raise ValueError(f"column {name!r} may be {' or '.join(leaves)}: say which")
    leaf = name.rpartition(".")[2]
    if "." in name and leaf in columns:
        return leaf
    raise unknown_name("column", name, {*columns, *(column.rpartition(".")[2] for column in columns)})


def all_resolved(names: Iterable[str], frame: pd.DataFrame) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(resolved(name, frame) for name in names))


def filtered(frame: pd.DataFrame, conditions: Iterable[str]) -> pd.DataFrame:
    """The rows that meet every condition; ValueError with the values that there are if none does."""
    for text in conditions:
        condition = Condition.parse(text)
        column = resolved(condition.column, frame)
        kept = frame[condition.holds(frame[column])]
        if kept.empty:
            there = ", ".join(dict.fromkeys(written(value) for value in frame[column]))
            raise ValueError(f"no row has {text}; {column} is {there or 'nowhere'}")
        frame = kept
    return frame


def configuration_of(frame: pd.DataFrame, axes: Iterable[str]) -> list[str]:
    """The columns that tell cells apart, repeats aside: the axes of a sweep, and allocator, block size and kernel
    where no axis is called so."""
    given = [axis for axis in axes if axis in frame]
    leaves = {axis.rpartition(".")[2] for axis in given}
    return given + [name for name in FIXED if name in frame and name not in leaves]


def mixed(frame: pd.DataFrame, keys: Iterable[str], axes: Iterable[str]) -> list[str]:
    """Columns of the configuration that differ within a group of equal `keys`: a mean over such a group would be over
    conditions, not over repeats."""
    used = {key.rpartition(".")[2] for key in keys}
    others = [name for name in configuration_of(frame, axes) if name.rpartition(".")[2] not in used]
    groups = frame.groupby(list(keys), dropna=False, sort=False)
    return [name for name in others if (groups[name].nunique(dropna=False) > 1).any()]


def written(value: object) -> str:
    """A key as people read it; integers keep every digit, also those that a missing value beside them made floats."""
    if pd.isna(value):  # type: ignore[call-overload]
        return UNSET
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_allocator(column: str) -> bool:
    """Whether its values are names of allocators."""
    return column.rpartition(".")[2] == "allocator"


def is_number(column: pd.Series[Any]) -> bool:
    """Whether its values have distances; truth values have none."""
    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def by_size(column: pd.Series[Any]) -> pd.Series[Any]:
    """What `sort_values` sorts by: sizes in words (64KiB, 2MiB) by their bytes, all else by itself."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    try:
        return column.map(byte_count, na_action="ignore").astype(float)
    except ValueError:
        return column
