"""Few rows in which every two values of two factors meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Greedy: a new row takes the pair that was missing first, then the value of each other factor that adds most."""
    names = list(factors)
    pairs = itertools.combinations(names, 2)
    missing = {((a, x), (b, y)): None for a, b in pairs for x in factors[a] for y in factors[b]}
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in names:
            if name not in row:
                row[name] = max(factors[name], key=lambda value: len(_new(missing, row, name, value)))
        row = {name: row[name] for name in names}
        for pair in itertools.combinations(row.items(), 2):
            missing.pop(pair, None)
        rows.append(row)
    return rows


def _new(missing: Mapping[Any, None], row: Mapping[str, Any], name: str, value: Any) -> list[Any]:
    """Missing pairs that `name` = `value` would bring to a row."""
    met = [((other, had), (name, value)) for other, had in row.items()]
    return [pair for one, two in met for pair in ((one, two), (two, one)) if pair in missing]
