"""Which runs of stored results are meant: by the beginning of their name, or by conditions on summary.csv."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import store
from experiments.exits import UsageError

if TYPE_CHECKING:
    import pandas as pd

MOST_NAMED: Final = 20
_CONDITION: Final = re.compile("[=<>]")
"""No name of a cell has one of these."""


def is_condition(text: str) -> bool:
    """`kv.block_size=16`, not `paged-bs16`."""
    return bool(_CONDITION.search(text))


def chosen(folder: Path, frame: pd.DataFrame, manifest: Mapping[str, Any], asked: Sequence[str]) -> pd.DataFrame:
    """The rows for which all that is asked holds; UsageError where there are none, with what there is, or where a
    column may be several. A run that stands for several points of a sweep is found by each of them."""
    from experiments.figures.columns import filtered
    from experiments.figures.merged import at_every_point
    from experiments.figures.stored import with_series

    conditions = [text for text in asked if is_condition(text)]
    places = [place_of(folder, row) for row in frame.to_dict("records")]
    kept = frame.assign(place=[place.name for place in places])
    for text in asked:
        if not is_condition(text):
            kept = kept[kept["place"].str.startswith(text)]
            if kept.empty:
                raise UsageError(f"{folder}: no run begins with {text!r}; there are {named(frame, manifest)}")
    try:
        met = filtered(at_every_point(with_series(kept.copy()), manifest), conditions)
    except ValueError as error:
        raise UsageError(f"{folder}: --cell: {error}") from error
    return kept[kept["place"].isin(met["place"])].drop(columns="place")


def place_of(folder: Path, row: Mapping[Any, Any]) -> Path:
    """The cell's folder; repeats of a sweep's cell have one each. UsageError where it is not there."""
    repeat = row.get("repeat")
    names = [str(row["cell"])] + ([f"{row['cell']}-r{repeat:g}"] if repeat is not None and repeat == repeat else [])
    for name in names:
        if (folder / store.CELLS / name).is_dir():
            return folder / store.CELLS / name
    raise UsageError(f"{folder / store.CELLS / names[-1]}: not there, although {store.SUMMARY} has it")


def named(frame: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    """Every run with what tells it from the others, one a line."""
    from experiments.figures.columns import REPEATS, configuration_of, written

    axes = manifest.get("axes")
    keys = [name for name in (*configuration_of(frame, axes or ()), *REPEATS) if name in frame]
    keys = [name for name in keys if frame[name].map(written).nunique() > 1]
    lines = [
        f"  {row['cell']}  {' '.join(f'{name}={written(row[name])}' for name in keys)}".rstrip()
        for row in frame.head(MOST_NAMED).to_dict("records")
    ]
    more = [f"  and {len(frame) - MOST_NAMED} more"] * (len(frame) > MOST_NAMED)
    return "\n".join(["", *lines, *more])
