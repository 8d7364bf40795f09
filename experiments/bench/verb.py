"""`pagelab bench kernel`: measures, prints, and keeps rows, manifest and figures like every other result."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import manifest, store
from experiments.bench import kernel_main
from experiments.bench.drawn import write_page
from experiments.bench.rows import MEANINGS, Row, to_csv
from experiments.bench.session import SCHEMA_VERSION, Measured, Wanted, measure
from experiments.bench.stored import read, together
from experiments.console import say_json
from experiments.exits import UsageError
from experiments.provenance import name_only

KERNELS = "kernels"
"""Name of the parquet table of each case."""


def kernel_verb(
    wanted: Wanted,
    argv: Sequence[str],
    output_dir: Path | None,
    measured_in: Sequence[Path],
    *,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Exit code: 0; 3 broken off or nothing measured; 4 a kernel of ours is wrong. UsageError, DeviceMissing."""
    begun = manifest.Invocation("bench kernel", argv, manifest.now())
    kept = None
    if measured_in and replace(wanted, fa3_library=None) != Wanted():
        raise UsageError(
            "--from measures nothing: it goes with neither --case, --dtype, --block-size, --peer, --backend, --quick, "
            "--sweep nor --seed"
        )
    if output_dir is not None:
        store.Store.replaceable(output_dir, overwrite=overwrite)  # a refusal after the measurements would lose them
    done = together([read(folder) for folder in measured_in]) if measured_in else _measured(wanted)
    if output_dir is not None:
        kept = store.Store.create(output_dir, overwrite=overwrite)
        _keep(kept, done, begun)
    if as_json:
        say_json({**done.to_dict(), "results": str(output_dir) if kept else None})
    else:
        print("\n".join(kernel_main.report(done)))
        if kept:
            print(f"results: {output_dir}")
    return kernel_main.exit_code(done)


def _measured(wanted: Wanted) -> Measured:
    try:
        return measure(wanted, kernel_main.say)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _keep(kept: store.Store, done: Measured, begun: manifest.Invocation) -> None:
    """Rows as CSV and, a case, as parquet; figures; the manifest last."""
    rows = done.table()
    kept.write_text(store.SUMMARY, to_csv(rows))
    counts = {case: _write_case(kept, case, rows) for case in dict.fromkeys(row["case"] for row in rows)}
    entries = _manifest(done, begun, kept, counts)
    remake(kept.folder, rows, entries)
    entries["derived_files"] = kept.hashes(derived=True)
    kept.write_text(store.MANIFEST, store.strict(entries) + "\n")


def remake(folder: Path, rows: Sequence[Row], entries: dict[str, Any]) -> list[str]:
    """Figures and page from stored rows; the names of figures that failed, which are also said."""
    failed = [f"{one.figure.name}: {one.error}" for one in write_page(rows, entries, folder) if one.error]
    for text in failed:
        print(f"figure {text}; everything else is kept", file=sys.stderr)
    return failed


def _write_case(kept: store.Store, case: str, rows: Sequence[Row]) -> dict[str, int]:
    import pandas as pd

    frame = pd.DataFrame([row for row in rows if row["case"] == case])
    folder = kept.folder / store.CELLS / case
    folder.mkdir()
    store.write_whole(folder / f"{KERNELS}.parquet", store.parquet(frame))
    return {KERNELS: len(frame)}


def _manifest(done: Measured, begun: manifest.Invocation, kept: store.Store, counts: dict[str, Any]) -> dict[str, Any]:
    finished = manifest.now()
    about = {key: value for key, value in done.to_dict().items() if key != "rows"}
    return {
        **about,
        "schema_version": SCHEMA_VERSION,
        "experiment": kept.folder.name,
        "verb": begun.verb,
        "status": "partial" if done.broken else "complete",
        "argv": [name_only(word) for word in begun.argv],
        "seeds": [done.wanted.seed],
        "device": done.machine["device"],
        "git": manifest.git_state(Path(__file__).parent),
        "environment": manifest.environment(),
        "columns": MEANINGS,
        "started": begun.started.isoformat(timespec="milliseconds"),
        "finished": finished.isoformat(timespec="milliseconds"),
        "wall_s": (finished - begun.started).total_seconds(),
        "cells": [],
        "num_rows": counts,
        "files": kept.hashes(derived=False),
    }
