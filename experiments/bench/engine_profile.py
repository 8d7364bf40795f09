"""Where the time of a step goes: kernels by name, from torch's profiler, in parts, and what is left is the host's.

The profiled run is one of its own, as tracing slows the host. Its steps are those of the best run: with the same
requests at the same time, the same batches. A part is the sum of its kernels over a few steps; the host's is what the
unprofiled step took beyond all kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.bench.engine_rows import Row, Step, full_decodes
from experiments.bench.engine_run import EngineWanted, Say, scheduler_of, stepping

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch
    from engine.worker.engine import Engine
    from engine.worker.executor import ModelExecutor

ATTENTION: Final = {
    *("decode_kernel", "reduce_kernel", "prefill_kernel", "hopper_kernel", "plan_kernel", "write_kernel"),
    *("shared_kernel", "merge_kernel", "shared_plan_kernel"),
}
"""Ours, by their exact names: torch has a reduce_kernel too, with a namespace before it."""
GEMM: Final = re.compile(r"gemm|gemv|cutlass|cublas|nvjet|xmma|wgmma|splitk", re.IGNORECASE)
COLLECTIVE: Final = re.compile(r"^nccl", re.IGNORECASE)
"""A collective's kernel runs from its own start to the end of the slowest rank: waiting for that one is in it."""
COPY: Final = re.compile(r"^mem(cpy|set)", re.IGNORECASE)
PARTS: Final = ("GEMMs", "attention", "collectives", "small kernels", "copies", "host")
STEPS_PROFILED: Final = 5


class Window(NamedTuple):
    """Steps first to first + num_steps - 1 of a run."""

    kind: str
    first: int
    num_steps: int


class Kernel(NamedTuple):
    """All calls of one kernel in a window."""

    name: str
    num_calls: int
    time_s: float


def part_of(name: str) -> str:
    """Which part of a step a device kernel belongs to."""
    if name in ATTENTION:
        return "attention"
    if COPY.match(name):
        return "copies"
    if COLLECTIVE.match(name):
        return "collectives"
    return "GEMMs" if GEMM.search(name) else "small kernels"


def windows(steps: Sequence[Step]) -> list[Window]:
    """A few prefill steps with the most tokens, and a few decode steps at full batch from their middle."""
    found = []
    most = max((step.num_chunk_tokens for step in steps), default=0)
    chunks = _longest([i for i, step in enumerate(steps) if step.num_chunk_tokens == most > 0])
    full = set(map(id, full_decodes(steps)))
    decodes = _longest([i for i, step in enumerate(steps) if id(step) in full])
    for kind, run in (("prefill", chunks), ("decode", decodes)):
        if run:
            count = min(STEPS_PROFILED, len(run))
            found.append(Window(kind, run[(len(run) - count) // 2], count))
    return found


def _longest(indices: Sequence[int]) -> list[int]:
    """The longest run of neighbours."""
    best: list[int] = []
    run: list[int] = []
    for index in indices:
        run = [*run, index] if run and index == run[-1] + 1 else [index]
        best = run if len(run) > len(best) else best
    return best


def rows_of(window: Window, kernels: Iterable[Kernel], steps: Sequence[Step]) -> list[Row]:
    """A row a kernel, per step, largest first within its part; the last is the host's share of the unprofiled steps."""
    inside = steps[window.first : window.first + window.num_steps]
    each_s = sum(step.duration_s for step in inside) / window.num_steps
    rows: list[Row] = [
        {
            "step": window.kind,
            "part": part_of(kernel.name),
            "kernel": kernel.name,
            "num_calls": kernel.num_calls / window.num_steps,
            "time_s": kernel.time_s / window.num_steps,
        }
        for kernel in kernels
    ]
    rows.sort(key=lambda row: (PARTS.index(row["part"]), -row["time_s"]))
    left_s = max(each_s - sum(row["time_s"] for row in rows), 0.0)
    rest = {"step": window.kind, "part": "host", "kernel": "no kernel runs", "num_calls": 1.0, "time_s": left_s}
    return [*rows, rest]


def profiled(
    wanted: EngineWanted,
    engine: Engine,
    allocator: KVAllocator,
    executor: ModelExecutor,
    steps: Sequence[Step],
    say: Say,
) -> list[Row]:
    """Runs the batch once more under the profiler, in the windows of the run that had these steps."""
    scheduler = scheduler_of(wanted, engine, allocator, wanted.num_runs)
    tracer = Tracer(windows(steps))
    for _ in stepping(scheduler, executor, tracer.before):
        pass
    tracer.stop()
    if not any(kernels for _, kernels in tracer.done):
        say("the profiler saw no kernels (it needs CUPTI): no table of where the time goes")
    return [row for window, kernels in tracer.done if kernels for row in rows_of(window, kernels, steps)]


class Tracer:
    """Profiles windows of a run; each is closed before the step behind it begins."""

    def __init__(self, wanted: Sequence[Window]) -> None:
        self._ahead = sorted(wanted, key=lambda window: window.first)
        self._open: tuple[Window, Any] | None = None
        self.done: list[tuple[Window, list[Kernel]]] = []

    def before(self, number: int, batch: Batch) -> None:
        """Step `number` is about to run."""
        if self._open is not None and number == self._open[0].first + self._open[0].num_steps:
            self.stop()
        if self._ahead and number == self._ahead[0].first:
            from torch.profiler import ProfilerActivity, profile

            trace = profile(activities=[ProfilerActivity.CUDA])
            self._open = self._ahead.pop(0), trace
            trace.start()

    def stop(self) -> None:
        """Closes what is open."""
        if self._open is None:
            return
        import torch

        torch.cuda.synchronize()
        window, trace = self._open
        trace.stop()
        self._open = None
        self.done.append((window, kernels_of(trace.key_averages())))


def kernels_of(averages: Iterable[Any]) -> list[Kernel]:
    """Device kernels of a trace, with their names and times."""
    return [
        Kernel(str(event.key), int(event.count), event.self_device_time_total / 1e6)
        for event in averages
        if event.self_device_time_total > 0 and "cuda" in str(event.device_type).lower()
    ]
