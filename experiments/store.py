"""The results folder: files are whole or not there, the manifest comes last, nothing is replaced unasked."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.arriving import file_sha256
from experiments.cells import Outcome
from experiments.exits import UsageError

MANIFEST, CELLS, SUMMARY, REPORT, FIGURES = "manifest.json", "cells", "summary.csv", "report.html", "figures"
RESOLVED, INPUT, LENGTHS = "config.resolved.toml", "config.input.toml", "trace_lengths.csv"
TABLES = "tables"
STEPS, PROFILE, CACHING = "steps.csv", "profile.csv", "caching.csv"
SWEEP, PLAN, LEDGER, SHARDS = "sweep.toml", "plan.csv", "ledger.jsonl", "shards"
"""Of a sweep: its axes, its cells, what became of them, and that by shard."""
LOCKS, SLURM = ".locks", ".slurm"
"""Who is at work in a sweep, and what Slurm says: no results."""
OURS: tuple[str, ...] = (MANIFEST, CELLS, SUMMARY, REPORT, FIGURES, TABLES, RESOLVED, INPUT, LENGTHS)
OURS += (STEPS, PROFILE, CACHING, SWEEP, PLAN, LEDGER, SHARDS, SLURM)
DERIVED = (REPORT, FIGURES, TABLES)
"""Made from the rest, and made again by `pagelab report`: not part of the data's integrity."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def checked_name(name: str) -> str:
    """A name that is one folder deep; UsageError for anything that could lead elsewhere."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"experiment name {name!r}: use letters, digits, '.', '_', '+' and '-', starting with a letter or digit"
        )
    return name


def strict(value: Any) -> str:
    """Strict JSON on one line or more: no NaN, no infinities."""
    from sim.metrics import strict_json

    return json.dumps(strict_json(value), indent=2, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """NumPy scalars and paths."""
    if hasattr(value, "item"):
        from sim.metrics import strict_json

        return strict_json(value.item())
    return str(value)


def write_whole(path: Path, data: str | bytes) -> None:
    """The file appears under its name only when it is complete and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where folders can be synced."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_unfit(folder: Path, *, links: bool = True) -> None:
    """UsageError where there can be no folder of results: a file, a link to nowhere (or any, unless `links`), a name
    that the system does not take."""
    try:
        fit = folder.is_dir() if folder.exists() else not folder.is_symlink()
        fit &= links or not folder.is_symlink()
    except OSError as error:
        raise UsageError(f"{str(folder)[:80]}: cannot be a folder: {error.strerror}") from error
    if not fit:
        raise UsageError(f"{folder}: not a folder that results can be written into; choose another --output-dir")


def parquet(frame: Any) -> bytes:
    """The same bytes for the same frame: no index, no clock."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, engine="pyarrow", compression="zstd", index=False)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Store:
    """One results folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, *, overwrite: bool) -> Store:
        """A fresh folder; UsageError if there is something and it is not to be replaced."""
        for name in cls.replaceable(folder, overwrite=overwrite):
            remove(folder / name)
        try:
            (folder / CELLS).mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written: {error}") from error
        return cls(folder)

    @staticmethod
    def replaceable(folder: Path, *, overwrite: bool) -> list[str]:
        """What `create` would remove. UsageError where it would refuse, to be known before long work is done."""
        refuse_unfit(folder, links=False)
        found = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCKS) if folder.exists() else []
        if found and not overwrite:
            raise UsageError(f"{folder} has results already: say --overwrite, or choose another folder")
        foreign = [name for name in found if name not in OURS and not name.endswith((".tmp", ".part"))]
        if foreign or (found and not {MANIFEST, RESOLVED} & set(found)):
            raise UsageError(f"{folder}: --overwrite replaces results only, and {(foreign or found)[0]!r} is not one")
        return found

    def write_text(self, name: str, text: str) -> None:
        """A file at the top."""
        write_whole(self.folder / name, text)

    def write_cell(self, outcome: Outcome) -> None:
        """All of a cell or nothing of it."""
        self.put_cell(outcome.cell.name, files_of(outcome))

    def put_cell(self, name: str, files: Iterable[tuple[str, bytes]]) -> None:
        """A cell's folder appears under its name when every file of it is on disk; one of that name is replaced.
        OSError where the disk is full: then nothing of it is left."""
        final = self.folder / CELLS / name
        partial = final.with_name(f".{name}.part")
        remove(partial)
        partial.mkdir()
        try:
            for file, data in files:
                write_whole(partial / file, data)
            remove(final)
            partial.rename(final)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync_folder(final.parent)

    def files(self) -> list[Path]:
        """All of it but the manifest, by relative path."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        names = (path.relative_to(self.folder) for path in found)
        kept = (name for name in names if name.parts != (MANIFEST,) and name.parts[0] not in (LOCKS, SLURM))
        return sorted(name for name in kept if not name.name.endswith(".tmp"))

    def hashes(self, *, derived: bool) -> dict[str, str]:
        """sha256 of each file, of the data or of what was made from it."""
        wanted = [name for name in self.files() if (name.parts[0] in DERIVED) is derived]
        return {name.as_posix(): file_sha256(self.folder / name) for name in wanted}


def files_of(outcome: Outcome) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of a cell's files: the error of a run that broke, or its summary, checks and tables."""
    if outcome.summary is None:
        yield "error.txt", f"{outcome.error}\n\n{outcome.details}".encode()
        return
    yield "summary.json", (strict(outcome.summary) + "\n").encode()
    yield "validation.json", (strict(_validation(outcome)) + "\n").encode()
    for name, frame in outcome.tables.items():
        yield f"{name}.parquet", parquet(frame)


def _validation(outcome: Outcome) -> dict[str, Any]:
    return {"passed": not outcome.failed_checks, "num_checks": len(outcome.checks), "checks": outcome.checks}


def remove(path: Path) -> None:
    """A file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def summary_row(outcome: Outcome) -> dict[str, Any]:
    """The tidy row of `summary.csv` and of the JSON object's `runs`."""
    cell = outcome.cell
    assert outcome.summary is not None
    return {"cell": cell.name, "seed": cell.seed, **outcome.summary}


def row_counts(outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Rows of each table, by cell."""
    return {outcome.cell.name: outcome.num_rows for outcome in outcomes if outcome.num_rows}
