"""Tables as CSV text: the same bytes on every system, full precision, missing values empty. Standard library alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """The columns named, also those that no row has; by default all, in order of first appearance."""
    names = list(dict.fromkeys(key for row in rows for key in row)) if columns is None else columns
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (row.get(name) for name in names)
        writer.writerow(["" if v is None or v != v else repr(v) if isinstance(v, float) else v for v in values])
    return text.getvalue()
