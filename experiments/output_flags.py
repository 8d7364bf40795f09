"""The options of where results go and how much is said, for every verb that runs cells."""

# No `from __future__ import annotations`: whoever inherits the options would look their names up at home.
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from experiments.whole import Whole

_OUT = Group("Output", sort_key=7)


def _option(text: str, *names: str) -> Any:
    return Parameter(group=_OUT, help=text, name=names or None, show_default=False)


def _switch(text: str, *names: str) -> Any:
    return Parameter(name=names or None, group=_OUT, help=text, negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where results go, and how much is said."""

    output_dir: Annotated[Path | None, _option("Folder of the results [results/VERB-TRACE].", "-o", "--output-dir")] = (
        None
    )
    experiment_name: Annotated[str | None, _option("A name inside that folder [none].", "-e", "--experiment-name")] = (
        None
    )
    overwrite: Annotated[bool, _switch("Replace results of the same name.")] = False
    json: Annotated[bool, _switch("One strict JSON object on stdout; writes files only with -o or -e.")] = False
    report: Annotated[
        bool,
        Parameter(
            name="--report",
            negative="--no-report",
            help="Write report.html [yes].",
            show_default=False,
            group=_OUT,
        ),
    ] = True
    progress: Annotated[
        bool,
        Parameter(
            name="--progress",
            negative="--no-progress",
            help="Show a progress bar on a terminal [yes].",
            show_default=False,
            group=_OUT,
        ),
    ] = True
    jobs: Annotated[Whole, _option("Processes; the numbers do not depend on it [1].", "-j", "--jobs")] = 1
    verbose: Annotated[bool, _switch("Say more.", "-v", "--verbose")] = False
    quiet: Annotated[bool, _switch("Say nothing but the result.", "-q", "--quiet")] = False
