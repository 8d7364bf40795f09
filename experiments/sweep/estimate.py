"""How long a sweep will take: a few of its cells are replayed in small, and scaled."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from experiments.cells import run_task, task_of
from experiments.settings import Config
from experiments.sweep.cell import planned

if TYPE_CHECKING:
    from experiments.sweep.cell import SweepCell
    from experiments.sweep.planning import SweepPlan

PROBES: Final = 6
PROBE_REQUESTS: Final = 300
BUDGET_S: Final = 3.0
"""What the probes may take together."""
START_S: Final = 1.5
"""Of a worker, until its first cell."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a whole sweep."""

    cell_s: float
    """Of one core, for a cell, on average."""
    wall_s: float
    num_probes: int
    jobs: int

    def __str__(self) -> str:
        return (
            f"about {spoken(self.wall_s)} with {self.jobs} at a time: {self.cell_s:.2g} s a cell, from the first "
            f"requests of {self.num_probes}; queues that grow cost more"
        )


def spoken(seconds: float) -> str:
    """`40 s`, `12 min`, `3.2 h`."""
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(plan: SweepPlan, jobs: int) -> Estimate | None:
    """None where steps are measured, or no probe could be replayed: these are not guessed."""
    if plan.backends != {"sim"}:
        return None
    count = min(PROBES, len(plan.cells))
    chosen = [plan.cells[(2 * i + 1) * len(plan.cells) // (2 * count)] for i in range(count)]
    began, found = time.perf_counter(), list[float]()
    for cell in chosen:
        seconds = _probed(cell)
        found += [] if seconds is None else [seconds]
        if time.perf_counter() - began > BUDGET_S:
            break
    if not found:
        return None
    each = sum(found) / len(found)
    together = min(jobs, len(plan.cells))
    start = START_S if together > 1 else 0.0
    return Estimate(each, each * len(plan.cells) / together + start, len(found), jobs)


def _probed(cell: SweepCell) -> float | None:
    """Seconds of a core for the whole cell; None where its first requests cannot be replayed alone."""
    plan = planned(Config.model_validate(cell.config))
    task = task_of(plan, plan.cells[0])
    part = min(len(task.trace), PROBE_REQUESTS)
    small = replace(task, trace=task.trace.slice(0, part), tables=())
    cpu = time.process_time()
    outcome = run_task(small)
    return None if outcome.summary is None else (time.process_time() - cpu) * len(task.trace) / part
