"""What a paged pool puts off (commits of full blocks, forgetting what taken blocks held), nobody can tell.

Random lives with forks, groups, copies, swaps, resets, runs and wrong calls, and replays of groups, swaps, priorities
and sessions, each against a pool that puts nothing off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from engine.core.block_pool import BlockPool
from engine.core.commits import Commits
from engine.core.paged import PagedAllocator
from engine.core.sharing import Sharing
from tests.engine.core.late_actor import at_once, copies_by_block, life
from tests.sim.cases import STEP, differences, play, random_case, random_shared_case
from tests.sim.planting import instead, with_line

SEEDS = range(20)


def difference(seed: int, at: int, left: list[Any], right: list[Any]) -> str:
    """The first action after which something else was to be seen."""
    index = next((i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), -1)
    return f"seed {seed}, {at}: after action {index}: {left[index]} | {right[index]}"


def check(seed: int) -> list[Any]:
    """AssertionError with the first difference; the life."""
    late = life(seed)
    with at_once():
        now = life(seed)
    paced = life(seed, pace=Random(seed))
    for at, other in enumerate((now, paced)):
        assert late == other, difference(seed, at, late, other)
    return late


def noting(met: Counter[str]) -> AbstractContextManager[Any]:
    """Counts what waits whenever somebody catches up."""

    def counted(original: Callable[..., None], commits: Commits) -> None:
        met["put off"] += len(commits._behind)
        met["stale"] += len(commits._pool.stale)
        original(commits)

    return instead(Commits, "catch_up", counted)


def test_no_life_tells_whether_anything_was_put_off():
    met: Counter[str] = Counter()
    with noting(met):
        for seed in SEEDS:
            seen = check(seed)
            met["hits"] += sum(hit[0] > 0 for state in seen for hit in state[5])
            met["evictions"] += seen[-1][1]["stats"].num_evictions
            met["copies"] += seen[-1][1]["stats"].num_copies
    assert {name: met[name] for name in ("put off", "stale", "hits", "evictions", "copies") if met[name] < 20} == {}


def test_no_replay_tells_either():
    met: Counter[str] = Counter()
    for seed in range(24):
        case = random_shared_case(seed, "paged") if seed % 2 else random_case(seed, "paged")
        case = replace(case, spec=replace(case.spec, pool=replace(case.spec.pool, enable_caching=True)))
        for cut in (None, STEP):
            with noting(met):
                late = play(case, cut)
            with at_once():
                now = play(case, cut)
            assert not differences(late.seen, now.seen), seed
            assert copies_by_block(late.run.allocator) == copies_by_block(now.run.allocator), seed
            met["hits"] += late.run.scheduler.prefix.hits
    assert {name: met[name] for name in ("put off", "stale", "hits") if met[name] < 20} == {}


def check_all() -> None:
    for seed in SEEDS:
        check(seed)


def line(owner: Any, name: str, line: str, becomes: str) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: with_line(owner, name, line, becomes)


BEHIND = "for request, full in behind:"
FAULTS = {
    "blocks that wait are not found": line(Commits, "may_find", "first_key in self._first_keys or ", ""),
    "blocks that wait behind a found one are not": line(Commits, "may_find", " or self._pool.finds(first_key)", ""),
    "what was given up is found": line(Commits, "catch_up", "self._pool.forget_stale()", "pass"),
    "the last one is committed first": line(Commits, "catch_up", BEHIND, "for request, full in reversed(behind):"),
    "only the first one is committed": line(Commits, "catch_up", BEHIND, "for request, full in behind[:1]:"),
    "who leaves does not catch up": line(PagedAllocator, "_release", "self._commits.catch_up()", "pass"),
    "evictions are not counted": line(BlockPool, "_give_up", "self.num_evictions += len(block_ids)", "pass"),
    "evictions are counted twice": line(BlockPool, "forget_stale", "self.num_evictions = evictions", "pass"),
}
RARE = {
    "commits by request": (103, line(Commits, "catch_up", BEHIND, "for request, full in dict(behind).items():")),
    "who comes back does not catch up": (69, line(Sharing, "swap_in", "self.catch_up()", "pass")),
}
"""With the seed of a life that tells."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_life_tells_where_something_is_put_off_too_long(fault):
    with FAULTS[fault](), pytest.raises((AssertionError, LookupError, TypeError)):
        check_all()


@pytest.mark.parametrize("fault", RARE)
def test_some_life_tells_what_is_rare(fault):
    seed, planted = RARE[fault]
    check(seed)
    with planted(), pytest.raises(AssertionError):
        check(seed)
