"""Event skipping is exact: rows, tables, free queue, integrals, waiting and blocking times, bit for bit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.progress import LivelockError
from sim import integrals as at
from sim.sessions import turns_of
from sim.shadow import ShadowExecutor
from tests.sim.cases import FITS, Case, Watched, differences, play, random_case
from tests.sim.check import check_case

SEEDS = st.integers(0, 2**32 - 1)
ALLOCATORS = (
    "orca-max",
    "orca-pow2",
    "orca-oracle",
    *(f"contiguous-{reserve}-{fit}" for reserve in ("limit", "chunk(16)", "chunk(48)") for fit in FITS),
)


def random_cases(count: int) -> settings:
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)


@given(seed=SEEDS)
@random_cases(400)
def test_paged_replays_are_the_same_stepped_skipped_cut_and_naive(seed):
    check_case(random_case(seed, "paged"))


@pytest.mark.parametrize("allocator", ALLOCATORS)
@given(seed=SEEDS)
@random_cases(20)
def test_contiguous_replays_are_the_same_stepped_skipped_cut_and_naive(allocator, seed):
    case = random_case(seed, allocator)
    if "chunk" not in allocator or not int(allocator.split("(")[1].split(")")[0]) % case.spec.pool.block_size:
        check_case(case)


@given(seed=SEEDS)
@random_cases(200)
def test_every_request_reads_its_own_tokens_and_the_shadow_decides_nothing(seed):
    case = random_case(seed)
    skipped = play_or_none(case)
    if skipped is not None:
        assert not differences(skipped.seen, play(case, executor=ShadowExecutor).seen)


def play_or_none(case: Case) -> Watched | None:
    try:
        return play(case)
    except LivelockError:
        return None


def kinds_of_arrivals(case: Case, rows: Any) -> Counter[str]:
    """How often somebody's end decided an arrival."""
    met: Counter[str] = Counter()
    for row, turn in turns_of(case.trace).items():
        before, stamp = rows[turn.parent].finish, int(case.trace.arrival_ns[row]) * 1_000
        came = rows[row].first_scheduled >= 0 and case.spec.max_concurrency is None
        met["turns after an end"] += came and rows[row].arrival == before + turn.delay > before
        met["turns right at an end"] += came and rows[row].arrival == before
        met["turns that wait for their own stamp"] += came and rows[row].arrival == stamp > before + turn.delay
        met["turns rejected with the one before"] += rows[row].status == rows[turn.parent].status == "rejected"
    if case.spec.max_concurrency is not None:
        stamps = case.trace.arrival_ns.tolist()
        met["kept by a client"] += sum(row.arrival > stamps[row.request_id] * 1_000 for row in rows)
    return met


def test_the_random_cases_meet_what_they_are_meant_to_meet():
    """No vacuous property: runs are long, memory runs out, prefixes hit, requests are cut, turned away, truncated."""
    met: Counter[str] = Counter()
    for seed in range(250):
        case = random_case(seed)
        skipped = play_or_none(case)
        if skipped is None:
            continue
        run, rows = skipped.run, skipped.run.rows
        met["steps"] += run.integrals_between(0, run.makespan + 1)[at.STEPS]
        met["turns"] += run.recorder.num_turns
        met["preemptions"] += sum(row.num_preemptions for row in rows)
        met["preempted twice"] += sum(row.num_preemptions > 1 for row in rows)
        met["hits"] += run.scheduler.prefix.hits
        met["hits after preemption"] += run.scheduler.prefix.preempted_hits
        met["evictions"] += run.allocator.stats().num_evictions
        met["copies"] += run.recorder.num_copied_blocks
        met["blocked"] += len(run.recorder.blocked)
        met["arrivals at a boundary"] += sum(row.first_scheduled == row.arrival > 0 for row in rows)
        met.update(row.status for row in rows)
        met.update(kinds_of_arrivals(case, rows))
    assert met["steps"] > 2 * met["turns"]
    at_least = {
        "preemptions": 50,
        "preempted twice": 10,
        "hits": 50,
        "hits after preemption": 20,
        "evictions": 50,
        "copies": 20,
        "blocked": 50,
        "arrivals at a boundary": 50,
        "finished": 500,
        "truncated": 50,
        "rejected": 50,
        "failed": 10,
        "unfinished": 50,
        "turns after an end": 30,
        "turns right at an end": 20,
        "turns that wait for their own stamp": 5,
        "turns rejected with the one before": 5,
        "kept by a client": 50,
    }
    assert {name: met[name] for name, least in at_least.items() if met[name] < least} == {}
