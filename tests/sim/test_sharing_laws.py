"""Groups, copy-on-write, swaps and victims: exact under skipping, and accounted for block by block."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.cost import LinearModel
from sim.last_blocks import LastBlocks
from sim.simulate import RunSpec
from tests.sim.cases import CONTIGUOUS, US, Case, random_shared_case
from tests.sim.check import check_shared
from tests.sim.planting import instead
from tests.sim.test_skipping import random_cases
from workloads import Trace

SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS)
@random_cases(100)
def test_paged_groups_are_the_same_stepped_skipped_cut_and_shadowed(seed):
    check_shared(random_shared_case(seed, "paged"))


@given(seed=SEEDS, allocator=st.sampled_from((*CONTIGUOUS, "contiguous-limit-first-fit", None)))
@random_cases(40)
def test_groups_of_any_allocator_are_the_same_stepped_skipped_cut_and_shadowed(seed, allocator):
    check_shared(random_shared_case(seed, allocator))


@given(seed=SEEDS)
@random_cases(70)
def test_victims_and_swaps_of_single_sequences_are_those_of_the_naive_reference(seed):
    check_shared(random_shared_case(seed, "paged", single=True))


def waiting_search(seed: int) -> Case:
    """A budget for one search and one token more: the second search takes steps until the first one's prompt, a token a
    step, is computed. Then it waits, some of its beams with another one's last block until they write."""
    limits = SchedulerConfig(64, max_num_batched_tokens=3, long_prefill_token_threshold=1)
    spec = RunSpec("paged", PoolConfig(20, 16, 64), limits, num_samples=2, beam_search=True)
    return Case(seed, spec, Trace.build([0, 0], [10, 2], [20, 14]), LinearModel(US, 0, 0, 0), None)


def test_searches_that_wait_for_budget_count_a_last_block_that_they_share_once():
    for seed in range(4):
        check_shared(waiting_search(seed))
    noticed = 0
    with instead(LastBlocks, "share", lambda original, blocks, request: None):
        for seed in range(4):
            try:
                check_shared(waiting_search(seed))
            except AssertionError as error:
                noticed += "block by block" in str(error)
    assert noticed


def test_the_shared_cases_meet_what_they_are_meant_to_meet():
    met: Counter[str] = Counter()
    for seed in range(120):
        case = random_shared_case(seed)
        checked = check_shared(case)
        if checked is None:
            continue
        watched, flows = checked
        run, width = watched.run, case.spec.num_samples
        met.update(flows.met)
        met["groups"] += (width > 1) * sum(row.status in ("finished", "truncated") for row in run.rows)
        met["refused swaps"] += run.scheduler.num_swaps_refused
        met["swapped blocks"] += run.recorder.num_swapped_out
        met["beams that died"] += case.spec.beam_search and flows.met["forks"]
        met["contiguous copies"] += run.allocator.contiguous and flows.met["copies"]
        met["hits of groups"] += (width > 1) * run.scheduler.prefix.hits
        met["hits after preemption"] += run.scheduler.prefix.preempted_hits
        met["groups by priority"] += width > 1 and case.spec.limits.policy == "priority"
        met["groups that were cut"] += (width > 1) * sum(row.status == "unfinished" for row in run.rows)
        met["refused for ever"] += sum(row.status == "rejected" for row in run.rows)
    at_least = {
        "groups": 200,
        "groups preempted": 10,
        "gathered": 5,
        "swapped out": 10,
        "recomputed": 20,
        "refused swaps": 1,
        "swapped blocks": 15,
        "beams that died": 200,
        "copies": 300,
        "contiguous copies": 100,
        "hits of groups": 5,
        "hits after preemption": 5,
        "groups by priority": 20,
        "groups that were cut": 20,
        "refused for ever": 50,
    }
    assert {name: met[name] for name, least in at_least.items() if met[name] < least} == {}
