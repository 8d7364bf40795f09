"""Which cells of two results are the same configuration: what varies within either of allocator, block size, kernel and
the axes of sweeps. What is constant within both and not the same is what is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from experiments.config import flatten
from experiments.figures.columns import FIXED, written
from experiments.figures.tables import lost_cells

if TYPE_CHECKING:
    from experiments.figures.stored import Stored

Key = tuple[str, ...]
MOST_TOLD: Final = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """The rows of one configuration in both results."""

    key: Key
    first: pd.DataFrame
    second: pd.DataFrame
    paired: bool
    """Whether both sides have the same seeds, row by row; else they are two samples."""


@dataclass(frozen=True, slots=True)
class Matching:
    """What is in both, and what is not."""

    columns: tuple[str, ...]
    """What the keys are of."""
    pairs: tuple[Pair, ...]
    unmatched: tuple[str, ...]
    """Configurations and seeds that only one side has, in words."""
    lost: tuple[str, ...]
    """Cells that failed, on either side."""
    differences: tuple[str, ...]
    """What else is not the same: keys of the configuration, trace, device."""


def match(first: Stored, second: Stored) -> Matching:
    """Configurations in the order of the first; ValueError if none is in both."""
    axes = [axis for axis in dict.fromkeys([*first.axes, *second.axes]) if axis.rpartition(".")[2] not in FIXED]
    fixed = [name for name in FIXED if name in first.summary or name in second.summary]
    names = [_axis_instead(name, first, second) or name for name in fixed]
    words = [_words(side, [*names, *axes]) for side in (first, second)]
    compared = _compared(words[0], words[1])
    columns = [name for name in (*names, *axes) if name not in compared]
    sides = [_by_key(side.summary, words[place][columns]) for place, side in enumerate((first, second))]
    both = [key for key in sides[0] if key in sides[1]]
    if not both:
        raise ValueError(_why_none(columns, words, (first, second)))
    unmatched = [*_only(sides[0], sides[1], first), *_only(sides[1], sides[0], second)]
    pairs = []
    for key in both:
        pair, left = _pair(key, sides[0][key], sides[1][key], (first, second))
        pairs.append(pair)
        unmatched += left
    lost = [f"{side.folder}: {line}" for side in (first, second) for line in lost_cells(side)]
    differences = [f"{name}: {mine} against {theirs}" for name, (mine, theirs) in compared.items()]
    differences += _differences(first, second, [*columns, *compared])
    return Matching(tuple(columns), tuple(pairs), tuple(unmatched), tuple(lost), tuple(differences))


def _axis_instead(name: str, first: Stored, second: Stored) -> str:
    """The axis of both sweeps that is called so, where what came of it has nothing in common: the block size that
    `virtual` makes of its pages is not the one that was asked for."""
    axis = next((axis for axis in first.axes if axis.rpartition(".")[2] == name and axis in second.axes), "")
    sides = [side.summary for side in (first, second)]
    if not axis or not all({name, axis} <= set(side) for side in sides):
        return ""
    plain, asked = ([set(side[column].map(written)) for side in sides] for column in (name, axis))
    return axis if not plain[0] & plain[1] and asked[0] & asked[1] else ""


def _words(side: Stored, columns: Sequence[str]) -> pd.DataFrame:
    """The values in words, row by row. A column that a side has not is what its configuration says."""
    frame, config = side.summary, _flat(side)
    return pd.DataFrame(
        {name: frame[name].map(written) if name in frame else written(config.get(name)) for name in columns},
        index=frame.index,
        dtype=object,
    )


def _compared(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Columns with one value on each side, and not the same one: both values."""
    values = {str(name): (list(first[name].unique()), list(second[name].unique())) for name in first}
    return {
        name: (mine[0], theirs[0])
        for name, (mine, theirs) in values.items()
        if len(mine) == len(theirs) == 1 and mine != theirs
    }


def _why_none(columns: Sequence[str], words: Sequence[pd.DataFrame], sides: tuple[Stored, Stored]) -> str:
    """The columns whose values have nothing in common: which cell of the one belongs to which of the other nobody
    knows."""
    if any(part.empty for part in words):
        return f"{sides[0 if words[0].empty else 1].folder} has no finished cell"
    apart = [name for name in columns if not set(words[0][name]) & set(words[1][name])]
    told = [f"{name} is {_some(words[0][name])} against {_some(words[1][name])}" for name in apart]
    why = "; ".join(told) if told else f"no combination of {', '.join(columns)} is in both"
    return (
        f"no configuration is in both, and what varies within a result is what cells are matched by: {why}. "
        "Compare results in which that is the same, or has one value on each side"
    )


def _some(column: pd.Series[Any]) -> str:
    values = list(dict.fromkeys(column))
    return ", ".join(values[:MOST_TOLD]) + (f" and {len(values) - MOST_TOLD} more" if len(values) > MOST_TOLD else "")


def _by_key(frame: pd.DataFrame, words: pd.DataFrame) -> dict[Key, pd.DataFrame]:
    rows: list[Key] = list(zip(*(words[name] for name in words), strict=True)) or [()] * len(frame)
    keys = pd.Series(rows, index=frame.index, dtype=object)
    return {key: frame[keys == key] for key in dict.fromkeys(keys)}


def _flat(side: Stored) -> Mapping[str, Any]:
    config = side.manifest.get("config")
    return flatten(config) if isinstance(config, dict) else {}


def _only(mine: Mapping[Key, pd.DataFrame], theirs: Mapping[Key, pd.DataFrame], side: Stored) -> list[str]:
    return [f"only in {side.folder}: {' '.join(key)}" for key in mine if key not in theirs]


def _pair(key: Key, first: pd.DataFrame, second: pd.DataFrame, sides: tuple[Stored, Stored]) -> tuple[Pair, list[str]]:
    """By seed where the sides have any in common, and then over those alone."""
    seeds = [list(rows["seed"]) for rows in (first, second)]
    common = [seed for seed in seeds[0] if seed in seeds[1]]
    unique = all(len(set(one)) == len(one) for one in seeds)
    if not common or not unique:
        return Pair(key, first, second, paired=False), []
    left = [
        f"only in {side.folder}: {' '.join(key)} seed {seed}"
        for side, mine in zip(sides, seeds, strict=True)
        for seed in mine
        if seed not in common
    ]
    rows = [side.set_index("seed").loc[common].reset_index() for side in (first, second)]
    return Pair(key, rows[0], rows[1], paired=True), left


def _differences(first: Stored, second: Stored, columns: Sequence[str]) -> list[str]:
    """Keys that differ, those that are matched apart."""
    mine, theirs = _flat(first), _flat(second)
    leaves = {column.rpartition(".")[2] for column in columns}
    keys = [key for key in dict.fromkeys([*mine, *theirs]) if key.rpartition(".")[2] not in leaves]
    pairs = [(key, mine.get(key), theirs.get(key)) for key in keys]
    traces = [side.manifest.get("trace") or {} for side in (first, second)]
    digests = [str(trace.get("sha256"))[:12] for trace in traces]
    devices = [side.manifest.get("device", "unknown") for side in (first, second)]
    pairs += [("trace sha256", digests[0], digests[1]), ("device", devices[0], devices[1])]
    return [f"{key}: {_word(a)} against {_word(b)}" for key, a, b in pairs if a != b]


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)
