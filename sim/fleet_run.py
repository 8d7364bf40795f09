"""A run of several replicas: built, replayed on one clock or in shares, and read off by the definitions of one run.

What the replicas left behind is added up to a run whose pool is all of theirs, so that every table and metric of the
fleet comes from where a single run's comes from; a replica's own columns are those of a fleet of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from engine.core.limits import PrefixCounters
from engine.core.registry import make_allocator
from engine.core.request_level import make_scheduler
from sim import integrals as at
from sim.extra_metrics import imbalance
from sim.frame import Frame, Window
from sim.int_log import IntLog, Packed
from sim.integrals import Integrals
from sim.reconcile import Check
from sim.row_store import RowStore
from sim.sessions import Loop
from sim.simulate import Run, RunSpec

if TYPE_CHECKING:
    import pandas as pd

    from engine.core.allocator import KVAllocator
    from engine.core.executor import Executor
    from sim.recorder import Recorder

MakeExecutor = Callable[["KVAllocator"], "Executor"]


@dataclass(slots=True)
class Part:
    """What one replica left behind. It can be sent from process to process."""

    rows: RowStore
    integrals: Integrals
    wait_starts: IntLog
    wait_ends: IntLog
    preempted_at: IntLog
    blocked: list[tuple[int, int]]
    num_copied_blocks: int
    prefix: PrefixCounters
    checks: list[Check]
    makespan: int
    """Picosecond up to which the integrals go."""
    idle: list[int]
    """State of the pool at the end, should it idle on."""

    @classmethod
    def of(cls, run: Run) -> Part:
        """Of a finished run."""
        recorder = run.recorder
        recorder.integrals.segments()
        return cls(
            recorder.rows,
            recorder.integrals,
            recorder.wait_starts,
            recorder.wait_ends,
            recorder.away.starts,
            recorder.blocked,
            recorder.num_copied_blocks,
            run.scheduler.prefix,
            run.checks,
            run.makespan,
            recorder.pool.read_idle(),
        )

    def idle_until(self, time: int) -> None:
        """The others still run."""
        if time > self.makespan:
            self.integrals.add_idle(self.makespan, time, self.idle)
            self.makespan = time


class _Sum:
    """Integrals of several pools: states, steps and tokens add up, time passes once."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.edges = parts[0].integrals.edges
        self._rows = [[sum(column) for column in zip(*rows, strict=True)] for rows in _by_segment(parts)]
        for row, (first, *_) in zip(self._rows, _by_segment(parts), strict=True):
            row[at.TIME] = first[at.TIME]

    def segments(self) -> list[list[int]]:
        """As `Integrals.segments`."""
        return [list(row) for row in self._rows]


def _by_segment(parts: Sequence[Part]) -> list[tuple[list[int], ...]]:
    return list(zip(*(part.integrals.segments() for part in parts), strict=True))


class _Merged:
    """What tables and checks ask a recorder, of several."""

    residency = None
    steps = None
    snapshots = ()
    num_swapped_out = 0
    num_swapped_in = 0

    def __init__(self, parts: Sequence[Part], away: RowStore, late: IntLog) -> None:
        self.rows = RowStore.joined([*(part.rows for part in parts), away])
        self.integrals = _Sum(parts)
        self.wait_starts = IntLog.joined([*(part.wait_starts for part in parts), late])
        self.wait_ends = IntLog.joined(part.wait_ends for part in parts)
        self.preempted_at = IntLog.joined(part.preempted_at for part in parts)
        self.blocked = [interval for part in parts for interval in part.blocked]
        self.num_copied_blocks = sum(part.num_copied_blocks for part in parts)


class FleetRun(Run):
    """A finished replay over several replicas. `recorder` answers for all of them, `allocator` and `scheduler` are
    empty ones of their kind."""

    def __init__(
        self,
        spec: RunSpec,
        parts: Sequence[Part],
        frame: Frame,
        loop: Loop,
        *,
        away: RowStore | None = None,
        late: IntLog | None = None,
    ) -> None:
        """`away`: rows of requests that no replica saw; `late`: when those of them came that came after a cut."""
        makespan = max(part.makespan for part in parts)
        for part in parts:
            part.idle_until(makespan)
        allocator = make_allocator(spec.allocator, spec.pool)
        super().__init__(
            spec,
            cast("Recorder", _Merged(parts, RowStore() if away is None else away, IntLog() if late is None else late)),
            allocator,
            make_scheduler(spec.limits, allocator),
            frame.window or Window(0, makespan, "makespan"),
            makespan,
            frame.bins,
            frame.last,
            loop,
        )
        self.num_replicas = len(parts)
        self.parts = parts
        self._frame = frame

    @property
    def prefix(self) -> PrefixCounters:
        """Of all replicas."""
        counters = [part.prefix for part in self.parts]
        names = ("queries", "hits", "preempted_queries", "preempted_hits")
        return PrefixCounters(*(sum(getattr(one, name) for one in counters) for name in names))

    def replica(self, index: int) -> FleetRun:
        """One replica as a fleet of its own, over the same simulated time."""
        return FleetRun(self.spec, [self.parts[index]], self._frame, self.loop)

    def replica_of(self) -> Packed:
        """Index of the replica that served each request, by request id; -1: turned away."""
        served = np.full(len(self.rows), -1, dtype=np.int64)
        for index, part in enumerate(self.parts):
            served[part.rows.column("request_id")] = index
        return served

    def requests(self) -> pd.DataFrame:
        """One row a request, with its replica."""
        frame = super().requests()
        frame.insert(1, "replica", self.replica_of())
        return frame

    def replicas(self) -> pd.DataFrame:
        """One row a replica: the columns of a summary."""
        import pandas as pd

        rows = [{"replica": index, **self.replica(index).summary} for index in range(self.num_replicas)]
        return pd.DataFrame(rows).drop(columns=["allocator", "saturated"])

    def columns(self, replicas: pd.DataFrame) -> dict[str, Any]:
        """What a summary says of the fleet beside the columns of any run; `replicas` is the table of that name."""
        loads = (replicas["mean_batch_size"] + replicas["mean_num_waiting"]).dropna().tolist()
        tokens = replicas["output_tok_per_s"].dropna().tolist()
        return {
            "num_replicas": self.num_replicas,
            "router": self.spec.fleet.router,
            "load_imbalance": imbalance(loads) if loads else None,
            "token_imbalance": imbalance(tokens) if tokens else None,
        }


def fleet_checks(run: FleetRun, num_rows: int) -> list[Check]:
    """Each replica's own equations, and that they add up to the fleet."""
    checks = [
        check._replace(name=f"replica {index}: {check.name}")
        for index, part in enumerate(run.parts)
        for check in part.checks
    ]
    ids = run.rows.column("request_id")
    times = [sum(row[at.TIME] for row in part.integrals.segments()) for part in run.parts]
    used = sum(row[at.USED] for row in run.recorder.integrals.segments())
    held = sum(row[at.USED] for part in run.parts for row in part.integrals.segments())
    capacity = run.capacity_slots * run.makespan
    cut = run.spec.end_s is not None
    pairs = [
        ("fleet: every row of the trace has one row, of one replica or of none", ids.tolist(), list(range(num_rows))),
        ("fleet: slots held by replicas add up to the fleet's", held, used),
        ("fleet: never more held than there are", used <= run.capacity_slots * max(times), True),
    ]
    if not cut:
        pairs.append(("fleet: capacity x time of replicas = the fleet's", run.pool_slots * sum(times), capacity))
    return checks + [Check(name, left == right, *_short(left, right)) for name, left, right in pairs]


def _short(left: Any, right: Any) -> tuple[Any, Any]:
    """Both sides as they are written down: of long lists that agree, how long they are."""
    return (len(left), len(right)) if isinstance(left, list) and left == right else (left, right)
