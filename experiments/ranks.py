"""Engines of several ranks, as verbs see them: devices that are missing, and runs that a rank has broken off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from experiments.exits import DeviceMissing, RunBroken


def need_devices(backend: str, size: int) -> None:
    """DeviceMissing unless each of `size` ranks can have a GPU."""
    if backend != "gpu" or size < 2:
        return
    from engine.worker.rank_group import devices_missing

    if missing := devices_missing(size):
        raise DeviceMissing(f"--tensor-parallel-size {size}: {missing}; --backend cpu runs them as processes")


@contextmanager
def broken_by_a_rank() -> Iterator[None]:
    """RunBroken (exit code 3), with the rank's name, where one dies meanwhile."""
    from engine.worker.peers import RankDied

    try:
        yield
    except RankDied as died:
        raise RunBroken(str(died)) from died
