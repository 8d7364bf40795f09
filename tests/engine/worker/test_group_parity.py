"""Forks, beams, swaps and copies are decided alike, whether a model computes or a cost model answers.

All requests are there at once and have forced lengths, so that nothing depends on time. Which beams live on is what the
engine's own scores have said: the simulated run is told. Per step both see the same batch, block tables, copies, swaps,
forks and statistics.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from sim.cost_executor import CostExecutor  # noqa: E402
from tests.engine.worker.tiny import executor_over  # noqa: E402
from tests.sim.cases import STEP, Case, play, random_shared_case  # noqa: E402

ALLOCATORS = ("paged", "paged", "orca-max", "paged", "orca-oracle", None)
"""None: whatever the case draws."""
SEEDS = range(int(os.environ.get("PAGELAB_PARITY_CASES", "36")))
WIDEST = 4


pytestmark = pytest.mark.usefixtures("one_thread")


def name(request: Any) -> tuple[Any, int]:
    return request.request_id, request.sample


class Spy:
    """Notes what each step was and which beams lived on, and hands it on. A step at a time."""

    def __init__(self, allocator: Any, executor: Any) -> None:
        self.allocator, self.executor = allocator, executor
        self.steps: list[dict[str, Any]] = []
        self.beams: list[list[tuple[Any, list[int]]]] = []

    def horizon(self, decodes: Any, until: Any, end: Any) -> int:
        self.executor.horizon(decodes, until, end)  # the cost model prices the next step there
        return 1

    def submit(self, batch: Any) -> Any:
        self.steps.append(
            {
                "batch": [(*name(request), context, new) for request, context, new in batch.items()],
                "tables": [(*name(request), tuple(request.blocks)) for request, _, _ in batch.items()],
                "preempted": [(*name(one.request), one.num_lost_tokens, one.swapped) for one in batch.preempted],
                "copies": list(batch.copies),
                "to host": list(batch.to_host),
                "to device": list(batch.to_device),
                "forks": [(*name(fork.parent), *name(fork.child), fork.num_tokens) for fork in batch.forks],
                "joined": [name(request) for request in batch.joined],
                "swapped in": [(*name(one.request), one.num_tokens) for one in batch.swapped_in],
                "statistics": self.allocator.stats(),
                "free host blocks": getattr(self.allocator, "num_free_host_blocks", 0),
                "waiting": batch.num_waiting,
            }
        )
        result = self.executor.submit(batch).result()
        self.beams.append([(group.leader.request_id, list(parents)) for group, parents in result.beams])
        return result


class Recorded:
    """The ancestry that a run of the engine had."""

    def __init__(self, beams: list[list[tuple[Any, list[int]]]]) -> None:
        self._steps = iter(beams)

    def select(self, batch: Any, stopped: Any) -> Any:
        groups = {request.request_id: request.group for request, _, _ in batch.items()}
        return [(groups[request_id], parents) for request_id, parents in next(self._steps)]


def case_of(seed: int) -> Case:
    """With a cut in simulated time no run of the engine could be the same. Turns come right at the end of the one
    before. A search finds its answers: it has none that the next turn's prompt could name."""
    case = random_shared_case(seed, ALLOCATORS[seed % len(ALLOCATORS)])
    spec, trace = case.spec, case.trace
    beams = spec.beam_search and trace.block_scope != "runs"
    width = min(spec.num_samples, WIDEST)
    spec = replace(spec, end_s=None, num_snapshots=0, num_samples=width, beam_search=beams)
    trace = replace(trace, arrival_ns=trace.arrival_ns * 0, delay_ns=trace.delay_ns.clip(max=0))
    return replace(case, spec=spec, trace=trace)


def engine_over(allocator: Any, case: Case) -> Any:
    limits = case.spec.limits
    tokens = min(limits.max_num_batched_tokens, limits.max_num_seqs * limits.max_model_len)
    seqs = min(limits.max_num_seqs, 12 * case.spec.num_samples)
    return executor_over(allocator, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def both(case: Case) -> tuple[Spy, Spy]:
    """The engine's run, and the simulated one."""
    spies: list[Spy] = []

    def real(allocator: Any, model: Any, **costs: Any) -> Spy:
        spies.append(Spy(allocator, engine_over(allocator, case)))
        return spies[-1]

    def simulated(allocator: Any, model: Any, **costs: Any) -> Spy:
        costs["ancestry"] = Recorded(spies[0].beams) if case.spec.beam_search else None
        spies.append(Spy(allocator, CostExecutor(model, **costs)))
        return spies[-1]

    play(case, STEP, executor=real)
    play(case, STEP, executor=simulated)
    return spies[0], spies[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_both_see_the_same_steps(seed):
    real, simulated = both(case_of(seed))
    assert len(real.steps) == len(simulated.steps)
    for number, (left, right) in enumerate(zip(real.steps, simulated.steps, strict=True)):
        assert left == right, f"step {number}"


def test_the_cases_fork_copy_swap_and_search():
    counts = dict.fromkeys(("copies", "to host", "to device", "forks", "preempted", "joined"), 0)
    searches = 0
    for seed in SEEDS:
        case = case_of(seed)
        searches += case.spec.beam_search
        spies: list[Spy] = []

        def simulated(allocator: Any, model: Any, spies: list[Spy] = spies, **costs: Any) -> Spy:
            spies.append(Spy(allocator, CostExecutor(model, **costs)))
            return spies[-1]

        play(case, STEP, executor=simulated)
        for one in spies[0].steps:
            for key in counts:
                counts[key] += len(one[key])
    assert all(counts.values()), counts
    assert searches
