"""How a run is called beside others: by its allocator, and by its attention kernel where that is not the paged one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

AttentionKernel = Literal["paged", "contiguous"]
"""Of a real run: with a block table, or reading on from a sequence's first block."""
TWIN: Final = " (contiguous kernel)"


def series_of(allocator: str, kernel: object = "paged") -> str:
    """`orca-max`, or `orca-max (contiguous kernel)`."""
    return allocator + TWIN if kernel == "contiguous" and not allocator.endswith(TWIN) else allocator


def series_of_row(row: Mapping[str, Any]) -> str:
    """Of a row of `summary.csv`; simulated runs have no kernel."""
    return series_of(str(row["allocator"]), row.get("kernel"))


def allocator_of(series: str) -> str:
    """The allocator of a series."""
    return series.removesuffix(TWIN)
