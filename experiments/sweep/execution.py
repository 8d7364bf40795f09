"""Runs the cells that are left, keeps each as it comes, and ends in an order that can be gone on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from experiments.sweep.job import Job, JobResult
from experiments.sweep.launchers import Launcher

Entry = dict[str, Any]
"""Of a finished cell, as the ledger tells it."""


class Keeper(Protocol):
    """Where results go."""

    def started(self, job: Job) -> None:
        """It has been handed out."""
        ...

    def keep(self, result: JobResult) -> Entry:
        """It is kept when this returns. OSError where that cannot be done."""
        ...


@dataclass(slots=True)
class Ended:
    """How it ended."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """Of the cells that ended in this run, by name: done or failed."""
    interrupted: bool = False
    stopped_by: str = ""
    """The cell whose failure stopped the run; none with --keep-going."""
    full_disk: OSError | None = None
    """Why results could not be kept any more."""
    device_missing: str = ""
    """Why no cell of this kind can run here."""


def execute(
    jobs: Sequence[Job],
    launcher: Launcher,
    keeper: Keeper,
    *,
    fail_fast: bool = False,
    on_end: Callable[[JobResult], None] = lambda _: None,
) -> Ended:
    """All jobs, unless something stops it; what was kept by then is in the answer."""
    ended = Ended()
    try:
        with closing(launcher.results(jobs, keeper.started)) as results:
            for result in results:
                ended.entries[result.name] = keeper.keep(result)
                on_end(result)
                if result.device_missing:
                    ended.device_missing = result.error
                    break
                if result.error and fail_fast:
                    ended.stopped_by = result.name
                    break
    except KeyboardInterrupt:
        ended.interrupted = True
    except OSError as error:
        ended.full_disk = error
    return ended
