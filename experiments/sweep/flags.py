"""The options that only `sweep` has."""

# No `from __future__ import annotations`: cyclopts would look the names of inherited options up here.
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from experiments.output_flags import OutputFlags
from experiments.whole import Whole

_SWEEP = Group("Sweep", sort_key=0)
Texts = tuple[str, ...]


def _option(text: str, *names: str) -> Any:
    return Parameter(group=_SWEEP, help=text, name=names or None, show_default=False, negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SweepFlags(OutputFlags):
    """What is varied, and how the cells are run."""

    axis: Annotated[
        Texts,
        _option(
            "KEY=VALUE,VALUE,...: a configuration key and its values; lin(1,4,7), log(1,256,9) and null (unset) are "
            "values too. May be repeated; [sweep.grid] of a file says the same."
        ),
    ] = ()
    zip: Annotated[Texts, _option("KEY,KEY: these axes go together, value by value.")] = ()
    exclude: Annotated[
        Texts, _option("Leaves out cells: 'kv.allocator != \"paged\" and kv.block_size > 16'. May be repeated.")
    ] = ()
    dry_run: Annotated[bool, _option("Say what would be run and for how long; write nothing.")] = False
    resume: Annotated[
        bool, _option("Go on: finished cells stay as they are. With -o alone, the sweep that is there.")
    ] = False
    fail_fast: Annotated[
        bool,
        Parameter(
            name="--fail-fast",
            negative="--keep-going",
            help="Stop at the first cell that fails; --keep-going [default] runs the others.",
            show_default=False,
            group=_SWEEP,
        ),
    ] = False
    shard: Annotated[
        str | None,
        _option("I/N: the I-th of N parts, into the same folder; --resume without it unites them."),
    ] = None
    shuffle: Annotated[bool, _option("Run the cells in a random order; the results do not depend on it.")] = False
    launcher: Annotated[str, _option("local, ray or slurm [local].")] = "local"
    address: Annotated[
        str | None,
        _option(
            "Ray: auto or HOST:PORT of a cluster [one on this machine]. Slurm: local runs its jobs on this machine."
        ),
    ] = None
    slurm_option: Annotated[Texts, _option("KEY=VALUE for submitit: slurm_partition=batch, timeout_min=60.")] = ()
    jobs: Annotated[
        Whole,
        _option("Cells at a time [local: the cores; ray: its CPUs; slurm: 2 jobs; gpu: 1].", "-j", "--jobs"),
    ] = 0
    report: Annotated[
        bool,
        Parameter(
            name="--report", negative="--no-report", help="Write report.html, too.", show_default=False, group=_SWEEP
        ),
    ] = False
