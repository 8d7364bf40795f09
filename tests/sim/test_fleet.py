"""Several replicas behind a router: nothing hangs on how steps are grouped, nothing is lost, and one is one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.progress import LivelockError
from sim.fleet_run import FleetRun
from sim.fleet_simulation import may_be_split
from sim.router import ROUTERS, FleetSpec
from tests.sim.cases import differences, play, random_cuts
from tests.sim.fleet_cases import play_fleet, play_shares, random_fleet, seen_of_fleet

SEEDS = st.integers(0, 2**32 - 1)


def random_cases(count: int) -> settings:
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)


def fleet_or_none(case) -> FleetRun | None:
    try:
        return play_fleet(case)
    except LivelockError:
        return None


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=SEEDS)
@random_cases(50)
def test_a_fleet_is_the_same_skipped_stepped_and_cut_at_random(router, seed):
    case = random_fleet(seed, router)
    skipped = fleet_or_none(case)
    if skipped is not None:
        seen = seen_of_fleet(skipped)
        assert not differences(seen, seen_of_fleet(play_fleet(case, skip=False)))
        assert not differences(seen, seen_of_fleet(play_fleet(case, random_cuts(Random(seed)))))


@given(seed=SEEDS)
@random_cases(40)
def test_groups_and_swaps_too(seed):
    case = random_fleet(seed, groups=True)
    skipped = fleet_or_none(case)
    if skipped is not None:
        assert not differences(seen_of_fleet(skipped), seen_of_fleet(play_fleet(case, skip=False)))


@pytest.mark.parametrize("router", ROUTERS)
@given(seed=SEEDS)
@random_cases(30)
def test_one_replica_behind_any_router_is_the_plain_replay(router, seed):
    case = random_fleet(seed, router)
    case = replace(case, spec=replace(case.spec, fleet=replace(case.spec.fleet, num_replicas=1)))
    fleet = fleet_or_none(case)
    if fleet is not None:
        plain = play(case).run
        assert list(fleet.rows) == list(plain.rows)
        assert fleet.recorder.integrals.segments() == plain.recorder.integrals.segments()
        assert fleet.recorder.blocked == plain.recorder.blocked
        assert fleet.summary == plain.summary
        assert fleet.timeline().equals(plain.timeline())
        assert [c.holds for c in fleet.checks] == [True] * len(fleet.checks)


@given(seed=SEEDS)
@random_cases(50)
def test_round_robin_is_each_replicas_own_replay_of_its_share(seed):
    case = replace(random_fleet(seed, "round-robin"), tokens=None)
    if not may_be_split(case.spec, case.trace):
        return
    together = fleet_or_none(case)
    if together is not None:
        assert not differences(seen_of_fleet(together), seen_of_fleet(play_shares(case)))


@given(seed=SEEDS)
@random_cases(50)
def test_every_request_has_one_row_and_every_equation_holds(seed):
    case = random_fleet(seed)
    run = fleet_or_none(case)
    if run is None:
        return
    assert [check.name for check in run.checks if not check.holds] == []
    assert [row.request_id for row in run.rows] == list(range(len(case.trace)))
    served = Counter(i for part in run.parts for i in part.rows.column("request_id").tolist())
    assert set(served.values()) <= {1}
    summary = run.summary
    shares = [summary[f"kv_{name}_frac"] for name in ("live", "reserved", "internal", "external", "free")]
    if None not in shares:
        assert sum(shares) == pytest.approx(1, abs=1e-12)
    assert summary["num_blocks"] == run.num_replicas * case.spec.pool.capacity_blocks


def test_the_random_fleets_meet_what_they_are_meant_to_meet():
    """No vacuous property: several replicas serve, runs are skipped, routers differ, caches hit, turns follow ends."""
    met: Counter[str] = Counter()
    for seed in range(80):
        case = random_fleet(seed)
        run = fleet_or_none(case)
        if run is None:
            continue
        robin = replace(case, spec=replace(case.spec, fleet=replace(case.spec.fleet, router="round-robin")))
        met["several served"] += len({i for i in run.replica_of().tolist() if i >= 0}) > 1
        met["hits"] += run.prefix.hits > 0
        met["preemptions"] += run.summary["num_preemptions"] > 0
        met["cut"] += case.spec.end_s is not None
        met["turns"] += bool((case.trace.delay_ns >= 0).any()) or case.spec.max_concurrency is not None
        other = fleet_or_none(robin)
        met["routed otherwise"] += other is not None and (run.replica_of() != other.replica_of()).any()
        met["turned away"] += -1 in run.replica_of()
    assert min(met.values()) >= 10, met


def test_a_router_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"random.*round-robin, least-loaded, prefix-aware"):
        FleetSpec(2, "random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one replica"):
        FleetSpec(0)
