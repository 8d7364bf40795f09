"""The ledger of a sweep: append-only lines, one a state of a cell. A torn line loses itself and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from experiments import store

State = Literal["sweep", "running", "done", "failed"]
"""`sweep` is the first line: what was asked for. The others are of a cell."""

_ENDED: Final = {"cell": str, "key": str}
NEEDED: Final[Mapping[str, Mapping[str, type]]] = {
    "sweep": {"asked": dict},
    "done": {**_ENDED, "files": dict},
    "failed": _ENDED,
}
"""What a line must have to be one, by state."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One file, written by one process."""

    path: Path

    def append(self, state: State, entry: Mapping[str, Any], *, sync: bool = True) -> None:
        """A line in one write, on disk when this returns if `sync`. OSError where the disk is full: then the torn line
        is taken back, where that can be done."""
        line = json.dumps({"state": state, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry})
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            end = os.lseek(handle, 0, os.SEEK_END)
            torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
            data = ("\n" * torn + line + "\n").encode()
            if os.write(handle, data) != len(data):
                os.ftruncate(handle, end)
                raise OSError(28, "no space left for a line of the ledger", str(self.path))
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)


@dataclass(slots=True)
class History:
    """What all ledgers of a folder say."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    """First lines."""
    ended: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By cell key, what is told of its ends, in order: done, or failed."""
    damaged: list[str] = field(default_factory=list)
    """Lines that could not be read, by place."""


def ledgers_of(folder: Path) -> list[Path]:
    """The folder's own, then those of its shards."""
    own = folder / store.LEDGER
    return [*([own] if own.is_file() else []), *sorted((folder / store.SHARDS).glob("*.jsonl"))]


def read_history(paths: Iterable[Path]) -> History:
    """Of all ledgers, each line by itself."""
    history = History()
    for path in paths:
        for number, entry in _lines(path):
            if entry is None:
                history.damaged.append(f"{path.name}:{number}")
            elif entry["state"] == "sweep":
                history.asked.append(entry)
            elif entry["state"] in ("done", "failed"):
                history.ended.setdefault(str(entry.get("key")), []).append(entry)
    return history


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        yield number, entry if isinstance(entry, dict) and _is_told(entry) else None


def _is_told(entry: Mapping[str, Any]) -> bool:
    """Whether a line says what lines of its state say; a state of a later version is passed over."""
    needed = NEEDED.get(str(entry.get("state")), {})
    return isinstance(entry.get("state"), str) and all(isinstance(entry.get(key), kind) for key, kind in needed.items())
