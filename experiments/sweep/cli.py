"""The verb `sweep` on the command line."""

from __future__ import annotations

from experiments.flags import Argv, Flags
from experiments.sweep.flags import SweepFlags


def sweep(*, flags: Flags = Flags(), out: SweepFlags = SweepFlags(), argv: Argv = ()) -> int:  # noqa: B008
    """Run every combination of some settings; whatever ends it, --resume goes on.

    pagelab sweep --axis kv.allocator=paged,orca-max --axis kv.block_size=8,16,32 --axis workload.request_rate=1,2,4

    --record requests,timeline keeps these tables of each cell, too [none]; steps, residency and sharing are as for run.
    """
    from experiments.sweep.verb import sweep_verb

    return sweep_verb(flags, out, argv)
