"""The verb `export`: stored results in another program's format, as one file."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.core.suggestion import unknown_name
from experiments import exits
from experiments.console import say, say_json
from experiments.exits import UsageError
from experiments.export.runs import StoredRun, runs_of, the_only
from experiments.store import write_whole

if TYPE_CHECKING:
    import pandas as pd

Runs = list[StoredRun]


def _perfetto(runs: Runs, at_s: float | None, output: Path) -> bytes:
    from experiments.export.perfetto import trace_of

    return json.dumps(trace_of(runs), allow_nan=False, separators=(",", ":"), default=float).encode()


def _torch_snapshot(runs: Runs, at_s: float | None, output: Path) -> bytes:
    from experiments.export.torch_snapshot import pickled, snapshot_of

    return pickled(snapshot_of(the_only(runs), at_s))


def _prometheus(runs: Runs, at_s: float | None, output: Path) -> bytes:
    from experiments.export.prometheus import text_of

    return text_of(runs).encode()


def _vllm_sweep(runs: Runs, at_s: float | None, output: Path) -> bytes:
    from experiments.export.vllm_sweep import csv_of, json_of

    return (json_of(runs) if output.name.removesuffix(".gz").endswith(".json") else csv_of(runs)).encode()


def _csv(runs: Runs, at_s: float | None, output: Path) -> bytes:
    import pandas as pd

    frames: list[pd.DataFrame] = []
    for run in runs:
        frame = run.requests.copy()
        for place, name in enumerate(("cell", "allocator", "block_size", "seed")):
            frame.insert(place, name, run.folder.name if name == "cell" else run.row[name])
        frames.append(frame)
    return pd.concat(frames, ignore_index=True).to_csv(index=False, lineterminator="\n").encode()


TARGETS: Final[dict[str, Callable[[Runs, float | None, Path], bytes]]] = {
    "perfetto": _perfetto,
    "torch-snapshot": _torch_snapshot,
    "prometheus": _prometheus,
    "vllm-sweep": _vllm_sweep,
    "csv": _csv,
}


def export_verb(folder: Path, to: str, output: Path, cells: Sequence[str], at_s: float | None, *, as_json: bool) -> int:
    """Writes the file, compressed where its name ends in .gz."""
    if to not in TARGETS:
        raise UsageError(str(unknown_name("target", to, TARGETS)))
    if at_s is not None and to != "torch-snapshot":
        raise UsageError(f"--at is for torch-snapshot; {to} has the whole run")
    if at_s is not None and not (math.isfinite(at_s) and at_s >= 0):
        raise UsageError(f"--at is a second of the run, at least 0, got {at_s:g}")
    if to == "torch-snapshot" and output.name.endswith(".gz"):
        raise UsageError(f"{output}: memory_viz reads a snapshot as it is, not compressed")
    runs = runs_of(folder, cells)
    data = TARGETS[to](runs, at_s, output)
    data = gzip.compress(data, mtime=0) if output.name.endswith(".gz") else data
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, data)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error
    if as_json:
        say_json({"file": str(output), "format": to, "num_runs": len(runs), "num_bytes": len(data)})
    else:
        say(f"{to}: {output}, {len(data):,} bytes, {'1 run' if len(runs) == 1 else f'{len(runs)} runs'}")
    return exits.OK
