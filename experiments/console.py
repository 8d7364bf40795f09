"""What goes where: results to stdout, everything else to stderr; a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.store import strict

if TYPE_CHECKING:
    from rich.console import Console

PS = 10**12
OnTurn = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Talk:
    """How much is said. Streams are looked up when used, so that they can be redirected."""

    quiet: bool = False
    verbose: bool = False
    progress: bool = True

    def note(self, text: str) -> None:
        """A remark on stderr, unless quiet."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        """A remark for those who asked for more."""
        if self.verbose:
            self.note(text)

    def warn(self, text: str) -> None:
        """Said even when quiet."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, label: str, span_ps: int) -> Iterator[OnTurn | None]:
        """A progress bar over simulated time; None where there is no terminal or nobody wants one."""
        if self.quiet or not self.progress or not sys.stderr.isatty():
            yield None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[clock]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=stderr_console(), transient=True) as progress:
            task = progress.add_task(label, total=max(span_ps, 1), clock="")

            def on_turn(now: int) -> None:
                progress.update(task, completed=now, clock=f"{now / PS:,.0f} s simulated")

            yield on_turn


def stderr_console() -> Console:
    """Honours NO_COLOR and the absence of a terminal."""
    from rich.console import Console

    return Console(stderr=True)


UNWATCHED_WIDTH = 160


def stdout_width() -> int:
    """Columns of the terminal; where nobody watches, as many as a table wants."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else UNWATCHED_WIDTH


def show(renderable: Any, title: str) -> None:
    """A table on stdout, never cut: what does not fit is left to the terminal to wrap."""
    from rich.console import Console

    console = Console()
    needed = console.measure(renderable, options=console.options.update(width=400)).maximum
    wide = Console(width=max(stdout_width(), needed))
    wide.print(title, style="bold", highlight=False, markup=False)
    wide.print(renderable)


def in_colour() -> bool:
    """Whether stdout takes colours: a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    """A line on stdout."""
    print(text, flush=True)


def say_json(value: Any) -> None:
    """The one object of `--json`."""
    print(strict(value), flush=True)
