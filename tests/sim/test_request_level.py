"""Replays of request-level batches: the same stepped and skipped, and all of a run's laws hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.request_level import RequestLevelScheduler
from engine.core.scheduler import Scheduler
from tests.sim.cases import FITS, STEP, Case, differences, play, random_case, random_cuts

ALLOCATORS = ("orca-max", "orca-pow2", "orca-oracle", *(f"contiguous-limit-{fit}" for fit in FITS))


def request_level(seed: int, allocator: str) -> Case:
    case = random_case(seed, allocator)
    return replace(case, spec=replace(case.spec, limits=replace(case.spec.limits, batching="request")))


def check(case: Case) -> None:
    """AssertionError unless laws hold, and stepping, skipping and cutting are one and the same replay."""
    stepped = play(case, STEP)
    assert not [broken for broken in stepped.run.checks if not broken.holds]
    for cut in (None, random_cuts(Random(case.seed))):
        assert not differences(stepped.seen, play(case, cut).seen)


@pytest.mark.parametrize("allocator", ALLOCATORS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_replays_are_the_same_stepped_skipped_and_cut_and_add_up(allocator: str, seed: int):
    check(request_level(seed, allocator))


@pytest.mark.parametrize(
    "name,becomes",
    [("may_run_on", Scheduler.may_run_on), ("may_coast", Scheduler.may_coast)],
    ids=["runs go on while some are done", "coasting goes on beyond a stop"],
)
def test_what_is_overridden_is_needed(name: str, becomes: property, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RequestLevelScheduler, name, becomes)

    with pytest.raises(AssertionError):
        _ = [check(request_level(seed, "orca-max")) for seed in range(200)]


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
