"""How far a sweep is: a bar with cells a second and the time left on a terminal, a line a cell elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from experiments.console import Talk, stderr_console
from experiments.sweep.job import JobResult

OnEnd = Callable[[JobResult], None]


@dataclass
class Pace:
    """Cells a second since the start, and what that leaves."""

    total: int
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def advance(self) -> None:
        """One more is done."""
        self.done += 1

    @property
    def per_s(self) -> float:
        """Cells a second; 0 before the first."""
        elapsed = self.clock() - self.began
        return self.done / elapsed if elapsed > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this pace; None before the first."""
        return (self.total - self.done) / self.per_s if self.per_s else None

    def __str__(self) -> str:
        left = self.left_s
        return f"{self.per_s:.2g} cells/s, {'?' if left is None else clock_of(left)} left"


def clock_of(seconds: float) -> str:
    """`0:45`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def watched(total: int, labels: Mapping[str, str], talk: Talk) -> Iterator[OnEnd]:
    """To be told of each end. Failures are said in any case."""
    pace = Pace(total)
    if talk.quiet or not talk.progress or not sys.stderr.isatty():
        yield lambda result: _line(result, labels, pace, talk)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, TimeElapsedColumn(), console=stderr_console(), transient=True) as progress:
        task = progress.add_task("cells", total=total, pace="")

        def on_end(result: JobResult) -> None:
            pace.advance()
            _warn(result, labels, pace, talk)
            progress.update(task, completed=pace.done, pace=str(pace))

        yield on_end


FIRST_S, EACH_S = 1.0, 5.0
"""What planning takes before it is said that it goes on, and from one line to the next."""


@contextmanager
def planning(talk: Talk, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """To be told of each point that is to be planned, and of how many. Nothing is said of the first second; then there
    is one line that changes on a terminal, and a line now and then elsewhere."""
    began = clock()
    due = began + FIRST_S
    live = sys.stderr.isatty() and talk.progress and not talk.quiet
    shown = False

    def on_point(done: int, total: int) -> None:
        nonlocal due, shown
        if clock() < due:
            return
        due = clock() + (FIRST_S / 10 if live else EACH_S)
        told = f"planning: {done:,} of {total:,} points, {clock() - began:.0f} s"
        if live:
            print(f"\r\033[K{told}", end="", file=sys.stderr, flush=True)
            shown = True
        else:
            talk.note(told)

    try:
        yield on_point
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _line(result: JobResult, labels: Mapping[str, str], pace: Pace, talk: Talk) -> None:
    pace.advance()
    _warn(result, labels, pace, talk)
    if not result.error:
        served = f"{result.num_completed:,} of {result.num_requests:,} done, {result.wall_s:.1f} s"
        talk.note(f"[{pace.done}/{pace.total}] {labels[result.name]}: {served}; {pace}")


def _warn(result: JobResult, labels: Mapping[str, str], pace: Pace, talk: Talk) -> None:
    head = f"[{pace.done}/{pace.total}] {labels[result.name]}"
    if result.error:
        talk.warn(f"{head}: failed: {result.error.splitlines()[0]}")
    for name in result.failed_checks:
        talk.warn(f"{head}: check does not hold: {name}")
