"""One scheduler, one allocator, two executors: what is decided must not depend on who runs it.

With all arrivals at time 0 and forced lengths no decision depends on time: simulator and engine then see the same
batches, block tables and statistics, step by step. With arrivals over time the simulator reproduces a run of the engine
from the step times that the engine measured.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from sim.cost_executor import CostExecutor  # noqa: E402
from sim.recorded_executor import RecordedExecutor, Recording  # noqa: E402
from tests.engine.worker.tiny import executor_over  # noqa: E402
from tests.sim.cases import FITS, STEP, Case, differences, play, random_case  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ALLOCATORS = (
    "paged", "orca-max", "orca-pow2", "orca-oracle", "paged", "chunk", "chunk",
    None,
)  # fmt: skip
"""chunk: reservations of a block or two, which move; None: any reservation and placement that the case draws."""
SEEDS = range(int(os.environ.get("PAGELAB_PARITY_CASES", "40")))


class Spy:
    """Notes what each step was, and hands it on. A step at a time."""

    def __init__(self, allocator: Any, executor: Any) -> None:
        self.allocator, self.executor = allocator, executor
        self.seen: list[Any] = []

    def horizon(self, decodes: Any, until: Any, end: Any) -> int:
        self.executor.horizon(decodes, until, end)  # the cost model prices the next step there
        return 1

    def submit(self, batch: Any) -> Any:
        items = [(request.request_id, context, new) for request, context, new in batch.items()]
        tables = [(request.request_id, tuple(request.blocks)) for request, _, _ in batch.items()]
        preempted = [(request.request_id, lost, swapped) for request, lost, swapped in batch.preempted]
        self.seen.append((items, tables, preempted, list(batch.copies), self.allocator.stats(), batch.num_waiting))
        return self.executor.submit(batch)


def engine_over(allocator: Any, case: Case) -> Any:
    limits = case.spec.limits
    tokens = min(limits.max_num_batched_tokens, limits.max_num_seqs * limits.max_model_len)
    return executor_over(allocator, max_num_seqs=min(limits.max_num_seqs, 12), max_num_batched_tokens=tokens)


def case_of(seed: int) -> Case:
    """With a cut in simulated time no run of the engine could be the same."""
    allocator = ALLOCATORS[seed % len(ALLOCATORS)]
    case = random_case(seed, None if allocator == "chunk" else allocator)
    spec = replace(case.spec, end_s=None, num_snapshots=0)
    if allocator == "chunk":
        tokens = case.spec.pool.block_size * (1 + seed % 2)
        spec = replace(spec, allocator=f"contiguous-chunk({tokens})-{FITS[seed % len(FITS)]}")
    return replace(case, spec=spec)


def at_once(case: Case) -> Case:
    """Turns come right at the end of the one before: who comes when is a matter of steps, not of time."""
    trace = case.trace
    stamps = replace(trace, arrival_ns=trace.arrival_ns * 0, delay_ns=trace.delay_ns.clip(max=0))
    return replace(case, trace=stamps)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_at_once_both_see_the_same_steps(seed):
    case = at_once(case_of(seed))
    spies: list[Spy] = []

    def spied(make: Any) -> Any:
        def executor(allocator: Any, model: Any, copy_block_ps: int) -> Spy:
            spies.append(Spy(allocator, make(allocator, model, copy_block_ps)))
            return spies[-1]

        return executor

    play(case, STEP, executor=spied(lambda allocator, model, _: CostExecutor(model)))
    play(case, STEP, executor=spied(lambda allocator, model, _: engine_over(allocator, case)))
    simulated, real = spies
    assert len(simulated.seen) == len(real.seen)
    for number, (left, right) in enumerate(zip(simulated.seen, real.seen, strict=True)):
        assert left == right, f"step {number}"


@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_step_times_reproduce_a_run_with_arrivals_over_time(seed):
    case = case_of(seed)
    engines: list[Any] = []

    def real(allocator: Any, model: Any, copy_block_ps: int) -> Any:
        engines.append(engine_over(allocator, case))
        return engines[-1]

    first = play(case, STEP, executor=real)
    columns = zip(*((s.duration_ps, s.num_decodes, s.num_chunk_tokens) for s in engines[0].steps), strict=True)
    recording = Recording(*(columns if engines[0].steps else ((), (), ())))
    again = play(case, STEP, executor=lambda allocator, model, copy_block_ps: RecordedExecutor(recording))
    assert differences(first.seen, again.seen) == {}
    assert first.run.summary == again.run.summary


def test_the_cases_preempt_share_and_move():
    counts = {"preempted": 0, "hits": 0, "copies": 0}
    for seed in SEEDS:
        watched = play(at_once(case_of(seed)), STEP)
        counts["preempted"] += sum(row.num_preemptions for row in watched.run.rows)
        counts["hits"] += watched.run.scheduler.prefix.hits
        counts["copies"] += watched.seen["copies"]
    assert all(counts.values()), counts
