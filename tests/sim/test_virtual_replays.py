"""Replays over page groups: those of a paged pool of the same blocks without sharing, skipped or stepped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.progress import LivelockError
from engine.core.step import never_skip
from sim import integrals as at
from tests.sim.cases import Case, differences, play, random_case

SEEDS = st.integers(0, 2**32 - 1)
several = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def case_of(seed: int, allocator: str) -> Case:
    """The random case of that seed, with nothing shared and nobody swapped."""
    case = random_case(seed, "paged")
    plain = replace(case.spec.pool, enable_caching=False, host_blocks=0)
    limits = replace(case.spec.limits, preemption="recompute")
    return replace(case, spec=replace(case.spec, allocator=allocator, pool=plain, limits=limits, num_samples=1))


@given(seed=SEEDS)
@several
def test_page_groups_are_blocks_that_nobody_shares(seed):
    """The same steps, rows and integrals as `paged` without caching, whose placement nobody sees."""
    try:
        paged, virtual = (play(case_of(seed, name)).run for name in ("paged", "virtual"))
    except LivelockError:
        return
    end = paged.makespan + 1
    assert virtual.integrals_between(0, end) == paged.integrals_between(0, end)
    assert list(virtual.rows) == list(paged.rows)


@given(seed=SEEDS)
@several
def test_stepped_and_skipped_replays_are_the_same(seed):
    case = case_of(seed, "virtual")
    try:
        skipped = play(case)
    except LivelockError:
        return
    assert not differences(skipped.seen, play(case, cut=never_skip).seen)
    assert all(check.holds for check in skipped.run.checks)


def test_the_random_cases_run_out_of_pages():
    preempted = reclaimed = 0
    for seed in range(60):
        try:
            run = play(case_of(seed, "virtual")).run
        except LivelockError:
            continue
        preempted += run.integrals_between(0, run.makespan + 1)[at.STEPS] > 0 and run.summary["num_preemptions"]
        reclaimed += run.allocator.num_maps > run.allocator.capacity_blocks
    assert preempted > 20
    assert reclaimed > 10


@pytest.mark.parametrize("kind", ["live", "reserved", "internal", "external", "free"])
def test_strict_shares_are_there_and_sum_to_the_capacity(kind):
    shares = play(case_of(3, "virtual")).run.summary
    names = [f"kv_{state}_frac" for state in ("live", "reserved", "internal", "external", "free")]
    assert shares[f"kv_{kind}_frac"] >= 0
    assert sum(shares[name] for name in names) == pytest.approx(1, abs=1e-12)
