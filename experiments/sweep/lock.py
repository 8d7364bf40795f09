"""Who is at work in a sweep's folder: advisory locks of the operating system, which end with their process.

A sweep is the shard 1 of 1. Shards of the same number go side by side; everything else excludes each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from experiments.exits import UsageError
from experiments.store import LOCKS


@contextmanager
def at_work(folder: Path, shard: tuple[int, int] = (1, 1)) -> Iterator[None]:
    """Holds the folder, or a shard of it; UsageError, with who holds it, where another process does."""
    locks = folder / LOCKS
    locks.mkdir(exist_ok=True)
    mine = locks / _name(shard)
    with (locks / "door").open("a") as door:
        fcntl.flock(door, fcntl.LOCK_EX)  # held for an instant: one at a time looks around
        for other in sorted(locks.glob("*-of-*")):
            if other == mine or not other.name.endswith(f"-of-{shard[1]}"):
                _need_free(folder, other)
        handle = mine.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            _refuse(folder, mine)
        handle.seek(0)
        handle.truncate()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        handle.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}))
        handle.flush()
    try:
        yield
    finally:
        handle.close()  # and with it the lock


def _name(shard: tuple[int, int]) -> str:
    return f"{shard[0]}-of-{shard[1]}"


def _need_free(folder: Path, path: Path) -> None:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _refuse(folder, path)


def _refuse(folder: Path, path: Path) -> None:
    try:
        who = json.loads(path.read_text(encoding="utf-8"))
        told = f"process {who['pid']} on {who['host']} since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        told = "another process"
    shard = "" if path.name == _name((1, 1)) else f" (shard {path.name.replace('-of-', '/')})"
    raise UsageError(f"{folder}: {told} is at work in it{shard}: wait until it is done, or end it, then say --resume")
