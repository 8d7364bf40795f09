"""Writing a trace in pagelab's format: CSV or JSON lines (also .gz) or Parquet, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from workloads.columns import Trace
from workloads.readers.pagelab import CSV_MARK, JSON_MARK, OPTIONAL, REQUIRED

Int64s = NDArray[np.int64]

DEFAULTS: Final = {"limit_tokens": -1, "priority": 0, "session": -1, "parent": -1, "delay_ns": -1}
SUFFIXES: Final = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write by suffix. The file appears under its name only when it is complete.

    Columns that hold nothing but their default are left out. Raises ValueError for another suffix.
    """
    target = Path(path)
    suffix = next((s for s in SUFFIXES if target.name.endswith(s)), None)
    if suffix is None:
        raise ValueError(f"{path}: a trace is saved as {', '.join(SUFFIXES)}; name the file so")
    writers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    data = writers[suffix.removesuffix(".gz")](trace)
    if suffix.endswith(".gz"):
        data = gzip.compress(data, compresslevel=6, mtime=0)  # no clock in the bytes
    write_whole(target, data)


def write_whole(target: Path, data: bytes) -> None:
    """The file appears under its name only when it is complete."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _columns(trace: Trace) -> dict[str, Int64s]:
    columns: dict[str, Int64s] = {key: getattr(trace, key) for key in REQUIRED}
    for key in OPTIONAL:
        values: Int64s = getattr(trace, key)
        if key not in DEFAULTS or (values != DEFAULTS[key]).any():
            columns[key] = values
    return columns


def _metadata(trace: Trace) -> dict[str, object]:
    meta: dict[str, object] = {"version": 1, "name": trace.name, "source": trace.source}
    if trace.block_size:
        meta |= {
            "block_size": trace.block_size,
            "block_scope": trace.block_scope,
            "block_partial": trace.block_partial,
        }
    return meta


def _csv(trace: Trace) -> bytes:
    columns = {key: map(str, values.tolist()) for key, values in _columns(trace).items()}
    if trace.block_size:
        columns["block_ids"] = map(" ".join, _id_texts(trace))
    lines = [
        CSV_MARK + json.dumps(_metadata(trace)),
        ",".join(columns),
        *map(",".join, zip(*columns.values(), strict=True)),
    ]
    return ("\n".join(lines) + "\n").encode()


def _jsonl(trace: Trace) -> bytes:
    columns: dict[str, list[object]] = {key: values.tolist() for key, values in _columns(trace).items()}
    if trace.block_size:
        columns["block_ids"] = _ids(trace)
    rows = (json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))
    return ("\n".join([json.dumps({JSON_MARK: _metadata(trace)}), *rows]) + "\n").encode()


def _parquet(trace: Trace) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {key: pa.array(values, pa.int64()) for key, values in _columns(trace).items()}
    if trace.block_size:
        columns["block_ids"] = pa.array(_ids(trace), pa.list_(pa.int64()))
    table = pa.table(columns, metadata={JSON_MARK: json.dumps(_metadata(trace))})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _ids(trace: Trace) -> list[object]:
    return [trace.block_ids_of(i).tolist() for i in range(len(trace))]


def _id_texts(trace: Trace) -> list[list[str]]:
    return [list(map(str, trace.block_ids_of(i).tolist())) for i in range(len(trace))]
