"""The points of a sweep that are the run of another: a row each, so that figures and tables show a value at every one.

summary.csv has a run once, under the first of its points; the manifest says which others it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.figures.columns import written
from experiments.figures.repeats import COPY


def at_every_point(frame: pd.DataFrame, manifest: Mapping[str, Any]) -> pd.DataFrame:
    """With a row for each repeat of each merged point, in the sweep's order; as it was where none was merged."""
    axes, merged = manifest.get("axes"), manifest.get("merged")
    if not isinstance(axes, dict) or not isinstance(merged, list) or not set(axes) <= set(frame):
        return frame
    names, copies = list(axes), []
    words = _words(frame, names)
    for entry in merged:
        into, point = entry.get("into", {}), entry.get("point", {})
        rows = frame[words == tuple(written(into.get(name)) for name in names)]
        copies.append(rows.assign(**{name: point.get(name) for name in names}))
    copies = [rows for rows in copies if len(rows)]
    if not copies:
        return frame
    parts = [frame.assign(**{COPY: False}), *(rows.assign(**{COPY: True}) for rows in copies)]
    whole = pd.concat([part.astype(dict.fromkeys(names, object)) for part in parts], ignore_index=True)
    for name in names:  # numbers again, where all of them are
        whole[name] = pd.Series([None if pd.isna(value) else value for value in whole[name]])
    return _in_order(whole, axes)


def _words(frame: pd.DataFrame, names: Sequence[str]) -> pd.Series[Any]:
    parts = [frame[name].map(written) for name in names]
    return pd.Series(list(zip(*parts, strict=True)), index=frame.index, dtype=object)


def _in_order(frame: pd.DataFrame, axes: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """By the places of its values on the axes, the last axis fastest, as points are made."""
    ranks = pd.DataFrame(index=frame.index)
    for name, values in axes.items():
        places = {word: place for place, word in reversed(list(enumerate(map(written, values))))}
        ranks[name] = frame[name].map(written).map(places).fillna(len(values))
    ordered: pd.DataFrame = frame.loc[ranks.sort_values(list(axes), kind="stable").index]
    return ordered.reset_index(drop=True)
