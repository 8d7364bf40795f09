"""Looks of curves that are not allocators: Okabe-Ito colours in turn, and line styles and markers in turns of other
lengths, so that no two curves of a picture look alike, in grey print neither."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from experiments.figures.columns import by_size, written
from experiments.style import OTHER_LINES, Look, in_order, look_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
HATCHES = ("", "//", "\\\\", "..", "xx", "--", "++", "oo", "||")


def nth_look(place: int) -> Look:
    """Of the curve at that place."""
    return Look(
        COLOURS[place % len(COLOURS)],
        HATCHES[place % len(HATCHES)],
        OTHER_LINES[place % len(OTHER_LINES)],
        MARKERS[place % len(MARKERS)],
    )


def curve_names(table: pd.DataFrame, curve_by: Sequence[str]) -> pd.Series[str]:
    """The name of each row's curve: its values of `curve_by`, a missing one as `unset`."""
    parts = [table[column].map(written) for column in curve_by]
    names = parts[0] if parts else pd.Series("all", index=table.index)
    for part in parts[1:]:
        names = names + ", " + part
    return names.astype(str)


def looks_of(table: pd.DataFrame, curve_by: Sequence[str]) -> dict[str, Look]:
    """Name to look, in the order of the legend. Allocators keep their colours; a second column then shows in lines and
    markers."""
    if not curve_by:
        return {"all": nth_look(0)}
    keys = table[list(curve_by)].drop_duplicates()
    first = curve_by[0]
    is_allocator = first.rpartition(".")[2] == "allocator"
    if is_allocator:
        ranks = {name: rank for rank, name in enumerate(in_order(keys[first].map(written)))}
        keys = keys.assign(rank=keys[first].map(written).map(ranks)).sort_values(
            ["rank", *curve_by[1:]], kind="stable", na_position="first"
        )
    else:
        keys = keys.sort_values(list(curve_by), kind="stable", na_position="first", key=by_size)
    names = list(curve_names(keys, curve_by))
    if not is_allocator:
        return {name: nth_look(place) for place, name in enumerate(names)}
    if len(curve_by) == 1:
        return {name: look_of(name) for name in names}
    rest = list(curve_names(keys, curve_by[1:]))
    places = {name: place for place, name in enumerate(dict.fromkeys(rest))}
    own = zip(names, keys[first].map(written), rest, strict=True)
    return {name: _second(look_of(allocator), nth_look(places[other])) for name, allocator, other in own}


def _second(colour: Look, shape: Look) -> Look:
    return Look(colour.colour, shape.hatch, shape.line, shape.marker)
