"""The tidy table: one row a contestant and shape, SI units in the names, ratios made once, at the end."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from experiments import csv_text
from experiments.bench.shapes import Shape
from experiments.bench.timing import Timing

Row = dict[str, Any]
Status = Literal["ok", "wrong", "failed", "unsupported"]

OURS: Final = "pagelab"
OURS_IN: Final = {"shared-prefix": "pagelab-shared"}
"""Cases that are about another kernel of ours than the plain paged one."""
SHAPE_COLUMNS: Final = ("case", "shape", "dtype", "block_size", "layout", "table")
"""What rows that are compared with each other have in common."""
COLUMNS: Final = (
    *("case", "shape", "kernel", "peer", "contiguous", "dtype", "batch", "context_tokens", "kv_tokens", "query_tokens"),
    *("num_heads", "num_kv_heads", "head_size", "block_size", "layout", "table", "moved_bytes", "num_flops"),
    *("median_s", "p20_s", "p80_s", "num_sets", "num_replays", "bytes_per_s", "flop_per_s", "relative_error"),
    *("time_over_ours", "status", "reason", "config", "swept", "seed", "device", "torch", "triton"),
)
MEANINGS: Final = {
    "batch": "S: sequences; of a copy, pairs of blocks",
    "context_tokens": "the longest sequence, its queries included",
    "kv_tokens": "tokens attended to, all sequences",
    "query_tokens": "T",
    "moved_bytes": "K and V of the attended tokens, shared ones once; a write or a copy: read and written",
    "num_flops": "4 x H x D for each pair of a query and a key it may see",
    "median_s": "device time of a call: median over replays of a graph of one call a set; p20_s, p80_s: percentiles",
    "bytes_per_s": "moved_bytes / median_s",
    "flop_per_s": "num_flops / median_s",
    "relative_error": "||out - float32|| / ||float32|| over sampled sequences; write, copy: share of wrong values",
    "time_over_ours": "median_s / median_s of our kernel for the case on the same shape: above 1, ours is faster",
    "status": "ok; wrong: relative_error above 5e-3 or not finite; failed: raised; unsupported: says it cannot",
    "swept": "whether the config was tried by --sweep instead of chosen by the heuristic",
}


def row_of(
    shape: Shape,
    peer: str,
    *,
    contiguous: bool,
    status: Status,
    timing: Timing | None = None,
    relative_error: float | None = None,
    reason: str = "",
    **more: Any,
) -> Row:
    """A row; without a timing the measured columns are None."""
    row: Row = dict.fromkeys(COLUMNS)
    row |= {
        "case": shape.case,
        "shape": shape.label,
        "kernel": shape.kernel,
        "peer": peer,
        "contiguous": contiguous,
        "dtype": shape.dtype,
        "batch": shape.num_seqs,
        "context_tokens": max(shape.seq_lens),
        "kv_tokens": shape.kv_tokens,
        "query_tokens": shape.query_tokens,
        "num_heads": shape.heads.num_heads,
        "num_kv_heads": shape.heads.num_kv_heads,
        "head_size": shape.heads.head_size,
        "block_size": shape.block_size,
        "layout": shape.layout,
        "table": shape.table,
        "moved_bytes": shape.moved_bytes,
        "num_flops": shape.num_flops,
        "relative_error": relative_error if relative_error is None or math.isfinite(relative_error) else None,
        "status": status,
        "reason": reason,
        "config": "",
        "swept": False,
    }
    if timing is not None:
        row |= _measured(shape, timing)
    unknown = more.keys() - set(COLUMNS)
    assert not unknown, f"no such columns: {unknown}"
    return row | more


def _measured(shape: Shape, timing: Timing) -> Row:
    return {
        "median_s": timing.median_s,
        "p20_s": timing.p20_s,
        "p80_s": timing.p80_s,
        "num_sets": timing.num_calls,
        "num_replays": timing.num_replays,
        "bytes_per_s": shape.moved_bytes / timing.median_s,
        "flop_per_s": shape.num_flops / timing.median_s if shape.num_flops else None,
    }


def shape_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of the rows that a row is compared with."""
    return tuple(row[name] for name in SHAPE_COLUMNS)


def is_ours(row: Mapping[str, Any]) -> bool:
    """Whether others of the case are compared with this row."""
    return bool(row["peer"] == OURS_IN.get(row["case"], OURS))


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """The rows with `time_over_ours`, against pagelab's row of the same shape; None where either is not ok."""
    ours = {shape_of(row): row for row in rows if is_ours(row) and not row["swept"] and row["status"] == "ok"}
    return [row | {"time_over_ours": _ratio(row, ours.get(shape_of(row)))} for row in rows]


def _ratio(row: Row, ours: Row | None) -> float | None:
    if ours is None or row["status"] != "ok" or not ours["median_s"] or not row["median_s"]:
        return None
    return float(row["median_s"] / ours["median_s"])


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every column, also empty ones; full precision."""
    return csv_text.to_csv(rows, COLUMNS)


def from_csv(text: str) -> list[Row]:
    """What `to_csv` wrote. ValueError for another table."""
    reader = csv.DictReader(io.StringIO(text))
    lacking = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if lacking:
        raise ValueError(f"not a table of kernel measurements: no column {lacking[0]!r}")
    try:
        rows = list(reader)
    except csv.Error as error:
        raise ValueError(f"not a table of kernel measurements: {error}") from error
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} of the measurements: expected {len(reader.fieldnames or ())} columns")
    return [{name: _typed(name, row[name]) for name in COLUMNS} for row in rows]


TEXTS: Final = {"case", "shape", "kernel", "peer", "dtype", "layout", "table", "status", "reason", "config"}
VERSIONS: Final = {"device", "torch", "triton"}
FLAGS: Final = {"contiguous", "swept"}


def _typed(name: str, text: str) -> Any:
    if name in TEXTS:
        return text
    if name in VERSIONS:
        return text or None
    if name in FLAGS:
        if text not in ("True", "False"):
            raise ValueError(f"{name}: expected True or False, got {text!r}")
        return text == "True"
    if not text:
        return None
    return float(text) if name.endswith(("_s", "_error", "_ours")) else int(text)
