"""From a trace to a fleet's run: on one clock, or, where the router decides without a look, in shares of the trace.

A share is replayed by itself, as a trace of its own, and by whichever process: the fleet adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.core.registry import make_allocator
from engine.core.request_level import make_scheduler
from sim.fleet import Fleet
from sim.fleet_run import FleetRun, Part, fleet_checks
from sim.frame import Window
from sim.int_log import IntLog
from sim.reconcile import reconcile
from sim.replica import Replica
from sim.router import STATIC, make_router
from sim.row_store import RowStore
from sim.rows import Progress
from sim.sessions import NEVER, last_arrival_ps, loop_of, turns_of
from sim.simulate import Run, RunSpec, Simulation, cut_for, frame_of, requests_for
from sim.watching import recorder_for
from workloads.reshape import select

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.executor import Executor
    from engine.core.step import Cut
    from sim.int_log import Packed
    from workloads import Trace

MakeExecutor = Callable[["KVAllocator"], "Executor"]
OnTurn = Callable[[int], None]


class FleetSimulation:
    """Several replicas on one clock."""

    def __init__(
        self,
        spec: RunSpec,
        trace: Trace,
        executor: MakeExecutor,
        *,
        cut: Cut | None = None,
        on_turn: Callable[[int], None] | None = None,
    ) -> None:
        """`executor` makes one for each replica."""
        self._spec = spec
        self._num_rows = len(trace)
        self._loop = loop_of(trace, spec.max_concurrency)
        self._frame = frame = frame_of(spec, last_arrival_ps(trace))
        router, turns = make_router(spec.fleet), turns_of(trace)
        end = NEVER if frame.end is None else frame.end
        follows = bool(turns) or spec.max_concurrency is not None
        self._replicas = []
        for _ in range(spec.fleet.num_replicas):
            scheduler = make_scheduler(spec.limits, make_allocator(spec.allocator, spec.pool))
            recorder = recorder_for(spec, scheduler, frame)
            replica = Replica(
                scheduler,
                executor(scheduler.allocator),
                recorder,
                end=end,
                cut=cut_for(spec, cut),
                reads_memory=router.reads_memory,
                follows_service=follows,
            )
            self._replicas.append(replica)
        self._away = RowStore()
        requests = requests_for(spec, trace, self._away.append, self._replicas[0].scheduler.allocator)
        self._fleet = Fleet(
            requests,
            self._replicas,
            router,
            end=end,
            on_turn=on_turn,
            turns=turns,
            max_concurrency=spec.max_concurrency,
        )
        self._makespan = 0

    def replay(self) -> None:
        """From the first arrival to the last token, or the cut."""
        self._makespan = self._fleet.run()

    def run(self) -> FleetRun:
        """What the replay left behind, reconciled."""
        front = self._fleet.front
        parts = [self._part(replica, sent) for replica, sent in zip(self._replicas, front.sent, strict=True)]
        away = RowStore.joined([self._away, front.rows])
        run = FleetRun(self._spec, parts, self._frame, self._loop, away=away, late=front.wait_starts)
        run.checks = fleet_checks(run, self._num_rows)
        return run

    def _part(self, replica: Replica, sent: list[int]) -> Part:
        scheduler, frame = replica.scheduler, self._frame
        window = frame.window or Window(0, self._makespan, "makespan")
        parts = replica.recorder, scheduler.allocator, scheduler
        run = Run(self._spec, *parts, window, self._makespan, frame.bins, frame.last, self._loop)
        run.checks = reconcile(run, self._num_rows, np.sort(np.array(sent, dtype=np.int64)))
        return Part.of(run)


class Share:
    """The requests of one replica, known before the run."""

    __slots__ = ("_last", "ids", "trace")

    def __init__(self, trace: Trace, ids: Packed, last: int) -> None:
        """`ids`: rows of the whole trace, whose last arrival is at picosecond `last`."""
        self.trace = trace
        self.ids = ids
        self._last = last

    def replay(self, spec: RunSpec, executor: MakeExecutor, on_turn: OnTurn | None = None) -> Part:
        """As a trace of its own, seen through the whole trace's window and bins."""
        simulation = Simulation(spec, self.trace, executor, frame=frame_of(spec, self._last), on_turn=on_turn)
        simulation.replay()
        run = simulation.run()
        run.rows.rename(self.ids)
        return Part.of(run)


def may_be_split(spec: RunSpec, trace: Trace) -> bool:
    """Whether each replica's requests are known before the run: nobody's arrival hangs on an end, and the router does
    not look."""
    return spec.fleet.router in STATIC and loop_of(trace, spec.max_concurrency) == "open"


class Split:
    """A trace in shares, one a replica. ValueError where it cannot be split."""

    def __init__(self, spec: RunSpec, trace: Trace) -> None:
        if not may_be_split(spec, trace):
            raise ValueError(f"{spec.fleet.router} with arrivals that follow service has no shares known beforehand")
        self._spec, self._trace = spec, trace
        self._last = last_arrival_ps(trace)
        self._away = RowStore()
        """Of requests that no replica sees."""
        self._late = IntLog()
        frame = frame_of(spec, self._last)
        end = NEVER if frame.end is None else frame.end
        scheduler = make_scheduler(spec.limits, make_allocator(spec.allocator, spec.pool))
        served = []
        for request in requests_for(spec, trace, self._away.append, scheduler.allocator):
            if scheduler.refuses_forever(request):
                self._away.append(Progress().row(request, "rejected", -1))
            elif request.arrival >= end:  # nobody is sent anywhere after the cut
                self._away.append(Progress().row(request, "unfinished", -1))
                self._late.append(request.arrival)
            else:
                served.append(request.request_id)
        ids = np.array(served, dtype=np.int64)
        num = spec.fleet.num_replicas
        self.shares = [Share(select(trace, ids[i::num]), ids[i::num], self._last) for i in range(num)]

    def join(self, parts: Sequence[Part]) -> FleetRun:
        """The fleet's run from its replicas', in order; reconciled."""
        spec, trace = self._spec, self._trace
        loop = loop_of(trace, spec.max_concurrency)
        run = FleetRun(spec, parts, frame_of(spec, self._last), loop, away=self._away, late=self._late)
        run.checks = fleet_checks(run, len(trace))
        return run


def simulate_fleet(
    spec: RunSpec,
    trace: Trace,
    executor: MakeExecutor,
    *,
    cut: Cut | None = None,
    on_turn: OnTurn | None = None,
) -> FleetRun:
    """Replays `trace` over `spec.fleet` on one clock and reconciles the result."""
    simulation = FleetSimulation(spec, trace, executor, cut=cut, on_turn=on_turn)
    simulation.replay()
    return simulation.run()
