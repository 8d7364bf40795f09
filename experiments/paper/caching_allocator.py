"""Section 4.3.5 tried: the KV tensors of Fig 2's requests one by one through PyTorch's caching allocator, and a pool.

Who is admitted, preempted and finished when is taken from two simulated runs over the same memory: one by orca-oracle,
which reserves prompt + output for each request, and one by the paged pool. In that order one tensor a request, of
prompt + output, is allocated on the device and freed. In the order of orca-oracle the tensors would fit; in that of the
paged pool they add up to more than there is, as that pool holds what is computed and no more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.core.catalogue import lookup
from experiments.bench.caching_allocator import SETTINGS, Event, ExactFit, in_own_process, replay
from experiments.bench.timed_allocator import OPERATIONS, stopwatch_ns
from experiments.bench.timing import quantile
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.runs import BLOCK_SIZE, NUM_BLOCKS, Lab, RunKey, spec_of
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request

WORKLOAD, MODEL = "paper-fig2", "opt-13b"
ALLOCATORS: Final = {"orca-oracle": "timed_orca_oracle", "paged": "timed_paged"}
MODULE: Final = "experiments.bench.timed_allocator"
NUM_QUICK_EVENTS: Final = 1_000
EXACT: Final = "exact fit, counted"
"""Beside the settings of the caching allocator: nothing is ever lost to holes."""
MOST_HELD: Final = 65.0
"""Per cent of the paged pool's running requests that may hold a tensor at a time. Fig 13a has 45 (13.62 of 30.42) for
Orca (Oracle), which rounds up."""


class Lived(NamedTuple):
    """A simulated run: who held memory when, and what its allocator took for it."""

    events: list[Event]
    mean_running: float
    num_finished: int
    times_ns: dict[str, list[int]]


class Lifetimes:
    """A `CostExecutor` that notes who gets memory and who gives it back, in order."""

    def __init__(self, bytes_per_token: int) -> None:
        self._cost = CostExecutor(PAPER_13B)
        self._bytes = bytes_per_token
        self._elapsed = 0
        self._noted = 0
        self.events: list[Event] = []

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """A step at a time, so that the allocator is asked as by an engine."""
        return 1

    def submit(self, batch: Batch) -> StepResult:
        """The cost model's answer; memory changes hands before the step, or after it for those who stop."""
        for request, _, _ in batch.preempted:
            self._note(request, 0)
        for request, _, _ in batch.admitted:
            self._note(request, (request.num_prompt_tokens + request.num_stop_tokens) * self._bytes)
        result = self._cost.submit(batch)
        self._elapsed += result.duration
        for request in result.stopped:
            self._note(request, 0)
        return result

    def _note(self, request: Request, num_bytes: int) -> None:
        self.events.append(Event(request.request_id, num_bytes, self._elapsed - self._noted))
        self._noted = self._elapsed


def lived(allocator: str, lab: Lab) -> Lived:
    """Simulates Fig 2's run of seed 0 with that allocator, every call of which is timed."""
    from sim.simulate import simulate
    from workloads import named_trace

    spec = replace(spec_of(RunKey(WORKLOAD, allocator, 0)), allocator=f"{MODULE}:{ALLOCATORS[allocator]}", skip=False)
    executor = Lifetimes(bytes_per_token())
    run = simulate(spec, named_trace(WORKLOAD, seed=0, lengths=dict(lab.lengths)), executor)
    broken = [check for check in run.checks if not check.holds]
    assert not broken, f"{allocator}: {broken}"
    events = executor.events[:NUM_QUICK_EVENTS] if lab.quick else executor.events
    timed: Any = run.allocator
    return Lived(events, _mean_holders(events), run.summary["num_finished"], timed.times_ns)


def bytes_per_token() -> int:
    """K and V of one token of the paper's model."""
    return lookup(MODEL).kv_spec(None, 1, 1).bytes_per_token


def _mean_holders(events: list[Event]) -> float:
    """Requests that hold memory, mean over the run's time."""
    count, area, elapsed = 0, 0, 0
    for _, num_bytes, after_ps in events:
        area, elapsed = area + count * after_ps, elapsed + after_ps
        count += 1 if num_bytes else -1
    return area / elapsed if elapsed else 0.0


class Tried(NamedTuple):
    """Both orders, each under every setting of the caching allocator."""

    runs: dict[str, Lived]
    replays: dict[tuple[str, str], dict[str, Any]]


def tried(lab: Lab) -> Tried:
    """Simulates, then replays on the device; once in a lab's life."""

    def measure() -> Tried:
        runs = {name: lived(name, lab) for name in ALLOCATORS}
        limit = NUM_BLOCKS * BLOCK_SIZE * bytes_per_token()
        replays = {}
        for name, run in runs.items():
            replays[name, EXACT] = replay(run.events, ExactFit(limit))
            replays |= {(name, how): in_own_process(run.events, limit, how) for how in SETTINGS}
        return Tried(runs, replays)

    return lab.once("caching-allocator", measure)


def lacking() -> str:
    """Why it cannot be tried here; empty where it can."""
    from experiments.bench.machine import why_no_device

    reason = why_no_device()
    return reason and f"skipped: no device: {reason}"


def _claim(setting: str) -> Claim:
    return Claim(
        f"caching-allocator/{setting.replace(' ', '-')}/held",
        "requests that hold a tensor of their own, share of those that the paged pool runs, at most",
        MOST_HELD,
        "%",
        0.0,
        "chapter 4.3.5; Fig 13a: Orca (Oracle) runs 45 % of vLLM's requests",
        "R",
        ("one-tensor", "stand-in"),
        at_most=True,
    )


def judge(lab: Lab) -> list[Result]:
    """In the order of the paged run: how many of its requests have memory when each needs a tensor."""
    if reason := lacking():
        return [not_here(_claim(setting), reason) for setting in SETTINGS]
    done, results = tried(lab), []
    running = done.runs["paged"].mean_running
    for setting in SETTINGS:
        found = done.replays["paged", setting]
        note = (
            f"{found['mean_num_held']:.1f} of {running:.1f} requests; {found['num_failed']:,} of "
            f"{found['num_taken'] + found['num_failed']:,} allocations failed; "
            f"without any hole {done.replays['paged', EXACT]['mean_num_held']:.1f} would hold one"
        )
        results.append(exact(_claim(setting), 100 * found["mean_num_held"] / running, note))
    return results


def tables(lab: Lab) -> list[Table]:
    """Bytes, failures and microseconds."""
    if lacking():
        return []
    done = tried(lab)
    return [_bytes_table(done), _times_table(done)]


def _bytes_table(done: Tried) -> Table:
    limit = NUM_BLOCKS * BLOCK_SIZE * bytes_per_token()
    columns = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
    rows: list[tuple[Cell, ...]] = []
    for (order, setting), found in done.replays.items():
        means: list[Cell] = [100 * found[f"mean_{name}"] / limit for name in columns]
        peaks: list[Cell] = [found["peak_num_segments"], found["num_cuda_mallocs"]]
        failures: list[Cell] = [found["num_failed"], found["num_alloc_retries"], found["num_ooms"]]
        rows.append((order, setting, found["mean_num_held"], *means, *peaks, *failures))
    heads = (
        *("order of", "setting", "requests held", "allocated %", "reserved %", "inactive split %", "segments (peak)"),
        *("cudaMalloc calls", "failed", "retries", "OOMs"),
    )
    note = (
        f"Means over the run's time, % of {limit:,} bytes, which is all that the allocator may reserve. The paged pool "
        f"ran {done.runs['paged'].mean_running:.1f} requests at a time in them, orca-oracle "
        f"{done.runs['orca-oracle'].mean_running:.1f}; neither allocates anything once it is there."
    )
    return Table(
        "caching-allocator/bytes", "A tensor a request, through the caching allocator", heads, tuple(rows), note
    )


def _times_table(done: Tried) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (order, setting), found in done.replays.items():
        if setting == EXACT:
            continue
        for kind, word in (("take", "allocate"), ("failed", "allocate, failed"), ("give", "free")):
            times: list[Cell] = [_us(found[f"{kind}_{name}_s"]) for name in ("median", "p99", "mean")]
            rows.append((f"torch, {setting}", order, word, *times))
    overhead = stopwatch_ns()
    for name, run in done.runs.items():
        for operation in OPERATIONS:
            ascending = sorted(max(value - overhead, 0) * 1e-9 for value in run.times_ns[operation])
            if ascending:
                mean = sum(ascending) / len(ascending)
                times = [_us(value) for value in (quantile(ascending, 0.5), quantile(ascending, 0.99), mean)]
                rows.append((f"{name} (block ids)", name, operation, *times))
    return Table(
        "caching-allocator/times",
        "Host time of one call, µs",
        ("allocator", "order of", "call", "median", "99 %", "mean"),
        tuple(rows),
        "A pool's advance serves all that decode in one call a step; torch's allocator is asked once a request.",
    )


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


CACHING_ALLOCATOR: Final = Experiment(
    "caching-allocator", "Section 4.3.5 tried: a tensor a request instead of a pool", judge, tables=tables
)
