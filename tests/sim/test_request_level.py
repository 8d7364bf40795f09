"""Replays of request-level batches: the same stepped and skipped, and all of a run's laws hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.cases import FITS, STEP, Case, differences, play, random_case, random_cuts

ALLOCATORS = ("orca-max", "orca-pow2", "orca-oracle", *(f"contiguous-limit-{fit}" for fit in FITS))


def request_level(seed: int, allocator: str) -> Case:
    case = random_case(seed, allocator)
    return replace(case, spec=replace(case.spec, limits=replace(case.spec.limits, batching="request")))


@pytest.mark.parametrize("allocator", ALLOCATORS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_replays_are_the_same_stepped_skipped_and_cut_and_add_up(allocator: str, seed: int):
    case = request_level(seed, allocator)

    stepped = play(case, STEP)

    assert not [check for check in stepped.run.checks if not check.holds]
    for cut in (None, random_cuts(Random(seed))):
        assert not differences(stepped.seen, play(case, cut).seen)


def test_batches_follow_one_another_and_end_with_their_longest():
    """From the rows alone: whoever is scheduled together finishes together, before the next are scheduled."""
    several = 0
    for seed in range(200):
        finishes: dict[int, list[int]] = {}
        for row in play(request_level(seed, "orca-max")).run.rows:
            if row.first_scheduled >= 0:
                finishes.setdefault(row.first_scheduled, []).append(row.finish)
        several += sum(len(batch) > 1 for batch in finishes.values())
        assert all(len(set(batch)) == 1 for batch in finishes.values()), seed
        for start, after in pairwise(sorted(finishes)):
            assert 0 < finishes[start][0] <= after, f"seed {seed}: only the last batch may be cut"
    assert several > 20
