"""What a group needs with the pool to itself: one rule for engine and simulator, exact for paged memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.group import in_group
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request, Status
from engine.core.scheduler import Scheduler
from sim.ancestry import Ancestry
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.shadow import ShadowExecutor
from sim.simulate import RunSpec, simulate
from workloads import Trace

LONGEST = 64
LIMITS = SchedulerConfig(LONGEST, max_num_batched_tokens=64)
COPYING = ("orca-max", "orca-pow2", "orca-oracle", "contiguous-limit-first-fit", "contiguous-oracle-best-fit")


@dataclass(frozen=True)
class Asked:
    """A group that is alone."""

    prompt: int
    output: int
    width: int
    size: int
    beam: bool = False

    def request(self) -> Request:
        return in_group(Request(0, self.prompt, self.output), self.width, beam=self.beam)

    def allocator(self, name: str, capacity: int):
        return make_allocator(name, PoolConfig(capacity, self.size, LONGEST))

    def smallest_pool(self, name: str = "paged") -> int:
        """Blocks from which on it is not refused."""
        for capacity in range(1, 1000):
            if self.allocator(name, capacity).refuses_forever(self.request()) is None:
                return capacity
        raise AssertionError(f"{self} is always refused")

    def peak(self, name: str, capacity: int) -> int:
        """Most blocks in use while it runs alone, every token read back; AssertionError where it is preempted."""
        allocator, request = self.allocator(name, capacity), self.request()
        scheduler = Scheduler(LIMITS, allocator)
        executor = ShadowExecutor(allocator, ancestry=Ancestry(0))
        scheduler.add(request)
        peak = 0
        while scheduler.has_work:
            batch = scheduler.schedule()
            assert batch.num_seqs
            assert not batch.preempted
            peak = max(peak, allocator.stats().num_referenced)
            scheduler.update(batch, executor.submit(batch))
            peak = max(peak, allocator.stats().num_referenced)
        assert all(member.status is Status.FINISHED for member in request.group.members)
        assert request.num_output_tokens == self.output
        return peak


@st.composite
def groups(draw, beams: bool = False) -> Asked:
    prompt = draw(st.integers(1, LONGEST - 1))
    output = draw(st.integers(1, LONGEST - prompt))
    return Asked(prompt, output, draw(st.integers(2, 5)), draw(st.sampled_from((1, 2, 3, 4, 8, 16, 64))), beams)


@given(groups())
@settings(max_examples=150, deadline=None)
def test_samples_need_exactly_what_the_rule_says(asked):
    smallest = asked.smallest_pool()
    assert asked.peak("paged", smallest) == smallest == asked.peak("paged", 4 * smallest)


@given(groups(beams=True))
@settings(max_examples=60, deadline=None)
def test_a_search_that_is_not_refused_finishes(asked):
    smallest = asked.smallest_pool()
    assert asked.peak("paged", smallest) <= smallest


@given(groups(), st.sampled_from(COPYING))
@settings(max_examples=100, deadline=None)
def test_copying_allocators_serve_whom_they_do_not_refuse(asked, name):
    smallest = asked.smallest_pool(name)
    assert asked.peak(name, smallest) <= smallest


def statuses(name: str, pool: PoolConfig, rows: list[tuple[int, int]], width: int, **trace) -> list[str]:
    """Of requests that come so far apart that each is alone."""
    spec = RunSpec(name, pool, LIMITS, num_samples=width)
    prompts, outputs = zip(*rows, strict=True)
    times = [i * 10**9 for i in range(len(rows))]
    made = Trace.build(times, list(prompts), list(outputs), **trace)
    run = simulate(spec, made, lambda allocator: CostExecutor(LinearModel(10**6, 0, 0, 0)))
    return [row.status for row in run.rows]


@given(st.lists(groups(), min_size=1, max_size=8), st.sampled_from(("paged", *COPYING)), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_simulator_serves_whom_the_rule_serves_and_a_larger_pool_no_fewer(asked, name, limited):
    size, width = asked[0].size, asked[0].width
    rows = [(one.prompt, one.output) for one in asked]
    limits = {"limit_tokens": [output for _, output in rows]} if limited else {}
    needs = [Asked(*row, width, size).smallest_pool(name) for row in rows]
    served: set[int] = set()
    for capacity in sorted({1, *needs, *(need - 1 for need in needs if need > 1), max(needs) + 3}):
        found = statuses(name, PoolConfig(capacity, size, LONGEST), rows, width, **limits)
        now = {row for row, status in enumerate(found) if status == "finished"}
        if limited or "limit" not in name:  # without a limit one that reserves it asks for all that fits
            assert now == {row for row, need in enumerate(needs) if need <= capacity}, (capacity, found)
        assert served <= now
        served = now


@pytest.mark.parametrize("capacity, status", [(28, "rejected"), (29, "finished"), (40, "finished")])
def test_a_prompt_of_400_tokens_is_there_once(capacity, status):
    """25 full blocks of 16 and four tails."""
    spec = RunSpec("paged", PoolConfig(capacity, 16, 2048), SchedulerConfig(2048), num_samples=4)
    run = simulate(spec, Trace.build([0], [400], [5]), lambda pool: CostExecutor(LinearModel(10**6, 0, 0, 0)))
    assert [row.status for row in run.rows] == [status]
