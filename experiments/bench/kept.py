"""Results folders of measurements that are tables alone: CSV files, and the manifest last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import manifest, store
from experiments.csv_text import to_csv
from experiments.provenance import name_only


def keep_tables(
    folder: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    begun: manifest.Invocation,
    about: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Writes tables (file name -> rows) and the manifest with `about` in it. UsageError for a folder that holds
    something else."""
    kept = store.Store.create(folder, overwrite=overwrite)
    for name, rows in tables.items():
        kept.write_text(name, to_csv(rows))
    finished = manifest.now()
    entries = {
        **about,
        "experiment": folder.name,
        "verb": begun.verb,
        "status": "complete",
        "argv": [name_only(word) for word in begun.argv],
        "git": manifest.git_state(Path(__file__).parent),
        "environment": manifest.environment(),
        "started": begun.started.isoformat(timespec="milliseconds"),
        "finished": finished.isoformat(timespec="milliseconds"),
        "wall_s": (finished - begun.started).total_seconds(),
        "cells": [],
        "num_rows": {},
        "files": kept.hashes(derived=False),
    }
    kept.write_text(store.MANIFEST, store.strict(entries) + "\n")
