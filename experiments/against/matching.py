"""Which cells of two results are the same configuration: allocator, block size, kernel, the axes of either sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.config import flatten
from experiments.figures.columns import FIXED, written
from experiments.figures.tables import lost_cells

if TYPE_CHECKING:
    from experiments.figures.stored import Stored

Key = tuple[str, ...]


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
    names = [name for name in FIXED if name in first.summary or name in second.summary]
    columns = [*names, *axes]
    sides = [_by_key(side, columns) for side in (first, second)]
    both = [key for key in sides[0] if key in sides[1]]
    if not both:
        there = [", ".join(sorted(map(" ".join, side))[:4]) or "nothing" for side in sides]
        raise ValueError(f"no configuration ({', '.join(columns)}) is in both: {there[0]} against {there[1]}")
    unmatched = [*_only(sides[0], sides[1], first), *_only(sides[1], sides[0], second)]
    pairs = []
    for key in both:
        pair, left = _pair(key, sides[0][key], sides[1][key], (first, second))
        pairs.append(pair)
        unmatched += left
    lost = [f"{side.folder}: {line}" for side in (first, second) for line in lost_cells(side)]
    return Matching(
        tuple(columns), tuple(pairs), tuple(unmatched), tuple(lost), tuple(_differences(first, second, columns))
    )


def _by_key(side: Stored, columns: Sequence[str]) -> dict[Key, pd.DataFrame]:
    """A column that a side has not is what its configuration says."""
    frame, config = side.summary, _flat(side)
    words = [
        frame[name].map(written) if name in frame else pd.Series(written(config.get(name)), index=frame.index)
        for name in columns
    ]
    keys = pd.Series(list(zip(*words, strict=True)), index=frame.index, dtype=object)
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
