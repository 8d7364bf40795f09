"""One run from a trace to its tables: builds the parts, replays, and reads the metrics off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from engine.core.executor import Executor
from engine.core.group import in_group
from engine.core.limits import PrefixCounters, SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request
from engine.core.request_level import make_scheduler
from engine.core.step import Cut, never_skip
from sim import integrals as at
from sim import metrics
from sim.arrivals import LengthLimits, requests_of
from sim.frame import Frame, Window
from sim.group_room import room_of_groups
from sim.reconcile import Check, reconcile
from sim.recorder import Recorder
from sim.replay import Replay
from sim.router import SINGLE, FleetSpec
from sim.row_store import RowStore
from sim.sessions import Loop, last_arrival_ps, loop_of, turns_of
from sim.watching import recorder_for

if TYPE_CHECKING:
    import pandas as pd

    from engine.core.allocator import KVAllocator
    from engine.core.scheduler import Scheduler
    from sim.rows import RequestRow
    from workloads import Trace

PS = metrics.PS
MAX_BINS = 600
TARGET_BINS = 300


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that decides a run's numbers, the trace and the executor apart."""

    allocator: str
    pool: PoolConfig
    limits: SchedulerConfig
    too_long: Literal["reject", "truncate"] = "reject"
    final_token_has_slot: bool = False
    """Whether a request's final KV length is prompt + output (`sosp23`), not one less (vLLM)."""
    window_s: tuple[float, float] | None = None
    """Half-open window of the means; None: first to last arrival."""
    end_s: float | None = None
    """Simulated time at which the run is cut; None drains."""
    num_snapshots: int = 0
    """Pictures of the pool, evenly spaced up to the last arrival or the cut; ever farther apart if all come at 0."""
    max_concurrency: int | None = None
    """Most requests inside at once; others wait with their clients."""
    record_steps: bool = False
    """A row a step; forces stepping."""
    record_residency: bool = False
    """How long cached blocks stay, where the allocator caches any; forces stepping."""
    skip: bool = True
    num_samples: int = 1
    """Sequences of each request that start from its prompt, all of its output length."""
    beam_search: bool = False
    """Whether they are the beams of a search."""
    record_sharing: bool = False
    """Whether logical and physical blocks are counted step by step, and what was copied and swapped is told."""
    tell_sharing: bool = False
    """Whether the means that need no count are told: where prompts may meet in the prefix cache. Not of fleets."""
    bytes_per_token: int = 0
    """Of K and V, for the bytes that were swapped; 0: not known."""
    fleet: FleetSpec = SINGLE
    """Replicas, each with a pool and limits as above; more than one: see `sim.fleet_run`."""


@dataclass
class Run:
    """A finished replay: raw rows and integrals, and the tables made from them."""

    spec: RunSpec
    recorder: Recorder
    allocator: KVAllocator
    scheduler: Scheduler
    window: Window
    makespan: int
    bin_edges: list[int]
    last_arrival: int
    loop: Loop = "open"
    checks: list[Check] = field(default_factory=list)

    @property
    def rows(self) -> RowStore:
        """One `RequestRow` a request, by id."""
        return self.recorder.rows

    num_replicas = 1
    """Pools that the integrals are about."""

    @property
    def pool_slots(self) -> int:
        """Token slots that requests can hold in one pool."""
        return self.allocator.capacity_blocks * self.allocator.block_size

    @property
    def capacity_slots(self) -> int:
        """Token slots that requests can hold, in all pools."""
        return self.num_replicas * self.pool_slots

    @property
    def prefix(self) -> PrefixCounters:
        """Tokens looked up and found in the prefix cache."""
        return self.scheduler.prefix

    @property
    def pages(self) -> bool:
        """Whether memory comes block by block from anywhere in the pool."""
        allocator = self.allocator
        return allocator.growth_tokens == allocator.block_size and not getattr(allocator, "contiguous", False)

    @property
    def reserves(self) -> bool:
        """Whether all of a request's memory is taken at admission."""
        return self.allocator.growth_tokens == 0

    @property
    def caches(self) -> bool:
        """Whether free blocks may hold cached prefixes."""
        return bool(getattr(self.allocator, "enable_caching", False))

    def integrals_between(self, start: int, stop: int) -> list[int]:
        """Sums over [start, stop); both must be edges, 0, or beyond the last edge."""
        total = [0] * at.COLUMNS
        lows = [0, *self.recorder.integrals.edges]
        for low, row in zip(lows, self.recorder.integrals.segments(), strict=True):
            if start <= low < stop:
                total = [a + b for a, b in zip(total, row, strict=True)]
        return total

    @property
    def emitted(self) -> list[tuple[int, int]]:
        """(width, tokens emitted) of each stretch between edges in the window, in order."""
        start, stop = self.window.start, self.window.stop
        lows = [0, *self.recorder.integrals.edges]
        rows = zip(lows, [*lows[1:], stop], self.recorder.integrals.segments(), strict=True)
        return [(min(high, stop) - low, row[at.EMITTED]) for low, high, row in rows if start <= low < stop]

    @cached_property
    def backlog(self) -> metrics.Backlog:
        """The queue over time."""
        return metrics.Backlog(self.recorder.wait_starts, self.recorder.wait_ends)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """One tidy row: see `sim.metrics.METRICS`."""
        from sim.tables import summary_of

        return summary_of(self)

    def requests(self) -> pd.DataFrame:
        """One row a request; times in seconds."""
        from sim.tables import requests_frame

        return requests_frame(self.rows)

    def preemptions(self) -> pd.DataFrame:
        """One row a preemption: request, when it left, when it came back, whether it was swapped out."""
        from sim.tables import preemptions_frame

        return preemptions_frame(self)

    def timeline(self) -> pd.DataFrame:
        """Means over a fixed grid of simulated time, from exact integrals."""
        from sim.tables import timeline_frame

        return timeline_frame(self)

    def steps(self) -> pd.DataFrame:
        """One row a step, if `record_steps`."""
        from sim.tables import steps_frame

        return steps_frame(self)

    def memory_map(self) -> pd.DataFrame:
        """One row a region and snapshot: time_s, start_block, num_blocks, owner (request id or a negative kind)."""
        from sim.tables import map_frame

        return map_frame(self)


def grid(span: int) -> list[int]:
    """Edges of at most 600 bins over simulated time, from the span alone; the last bin is open."""
    width = max(-(-span // TARGET_BINS), 1) if span else PS
    return [width * i for i in range(1, MAX_BINS)]


def window_of(spec: RunSpec, last_arrival: int) -> Window | None:
    """The window of the means, if it is known before the run. It ends where the run is cut: a rate over time that was
    never simulated would be too low. Empty where the cut comes first."""
    end = None if spec.end_s is None else round(spec.end_s * PS)
    if spec.window_s is not None:
        start, stop = (round(bound * PS) for bound in spec.window_s)
        return Window(start, stop if end is None else max(start, min(stop, end)), "named")
    return Window(0, last_arrival if end is None else min(last_arrival, end), "arrivals") if last_arrival else None


def frame_of(spec: RunSpec, last_arrival: int) -> Frame:
    """From the specification and the trace's last arrival alone: the same for every allocator."""
    window = window_of(spec, last_arrival)
    end = None if spec.end_s is None else round(spec.end_s * PS)
    bins = grid(max(last_arrival, window.stop if window else 0, end or 0))
    edges = set(bins) | ({window.start, window.stop} if window else set()) | ({end} if end else set())
    return Frame(last_arrival, window, end, bins, sorted(edges - {0}))


def requests_for(
    spec: RunSpec, trace: Trace, turn_away: Callable[[RequestRow], None], allocator: KVAllocator
) -> Iterable[Request]:
    """The trace's requests, or groups; rows that are not replayed go to `turn_away`. `allocator`: one like the one that
    serves them; it is only asked how long groups may become."""
    grouped, longest = spec.num_samples > 1 or spec.beam_search, spec.limits.max_model_len
    capacity = spec.pool.capacity_blocks * spec.pool.block_size
    room = room_of_groups(allocator, longest, spec.num_samples) if grouped else None
    requests: Iterable[Request] = requests_of(trace, LengthLimits(longest, capacity, spec.too_long, room), turn_away)
    if grouped:
        requests = (in_group(request, spec.num_samples, beam=spec.beam_search) for request in requests)
    return requests


def cut_for(spec: RunSpec, cut: Cut | None) -> Cut | None:
    """Stepping where the specification asks for it or for what needs it."""
    return never_skip if spec.record_steps or spec.record_residency or not spec.skip else cut


class Simulation:
    """One run in three parts: everything is built, then replayed, then read off."""

    def __init__(
        self,
        spec: RunSpec,
        trace: Trace,
        executor: Executor | Callable[[KVAllocator], Executor],
        *,
        cut: Cut | None = None,
        on_turn: Callable[[int], None] | None = None,
        load: bool = False,
        frame: Frame | None = None,
    ) -> None:
        """`executor` may be a factory for those that need the allocator. `load`: all requests are made now, not each
        as it arrives; more memory for a replay that is nothing but that. `frame`: of the trace that this one is a
        share of."""
        self._spec = spec
        self._num_rows = len(trace)
        self._loop = loop_of(trace, spec.max_concurrency)
        self._frame = frame = frame_of(spec, last_arrival_ps(trace)) if frame is None else frame
        self._allocator = allocator = make_allocator(spec.allocator, spec.pool)
        self._scheduler = scheduler = make_scheduler(spec.limits, allocator)
        self._recorder = recorder_for(spec, scheduler, frame)
        requests = requests_for(spec, trace, self._recorder.rows.append, allocator)
        self._replay = Replay(
            list(requests) if load else requests,
            scheduler,
            executor(allocator) if callable(executor) else executor,
            self._recorder,
            end=frame.end,
            cut=cut_for(spec, cut),
            on_turn=on_turn,
            turns=turns_of(trace),
            max_concurrency=spec.max_concurrency,
        )
        self._makespan = 0

    def replay(self) -> None:
        """From the first arrival to the last token, or the cut."""
        self._makespan = self._replay.run()

    def run(self) -> Run:
        """What the replay left behind, reconciled. Nothing is written anywhere."""
        frame, parts = self._frame, (self._recorder, self._allocator, self._scheduler)
        window = frame.window or Window(0, self._makespan, "makespan")
        run = Run(self._spec, *parts, window, self._makespan, frame.bins, frame.last, self._loop)
        run.checks = reconcile(run, self._num_rows)
        return run


def simulate(
    spec: RunSpec,
    trace: Trace,
    executor: Executor | Callable[[KVAllocator], Executor],
    *,
    cut: Cut | None = None,
    on_turn: Callable[[int], None] | None = None,
) -> Run:
    """Replays `trace` and reconciles the result: all three parts of a `Simulation`."""
    simulation = Simulation(spec, trace, executor, cut=cut, on_turn=on_turn)
    simulation.replay()
    return simulation.run()
