"""Calibrated step models, in which a change of rows costs time: skipping, cuts anywhere and stepping are one replay."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.progress import LivelockError
from sim.calibrated import CalibratedModel, Curve, MixedCost, Overheads
from sim.cost_executor import CostExecutor
from tests.sim.cases import STEP, US, Case, differences, random_case, random_cuts, random_shared_case
from tests.sim.check import check_case, check_shared
from tests.sim.fleet_cases import play_fleet, random_fleet, seen_of_fleet
from tests.sim.planting import with_line

SEEDS = st.integers(0, 2**32 - 1)


def random_calibration(rng: Random) -> CalibratedModel:
    """Few places, so that runs pass them; round numbers more often than not, so that boundaries meet arrivals.
    Sometimes a step becomes cheaper as it grows, as measured ones do."""
    unit = rng.choice((1, US // 16, US // 4, US))
    curves = []
    for num_seqs in sorted(rng.sample((1, 2, 3, 4, 8, 16, 64, 256), rng.randint(1, 5))):
        places = sorted(rng.sample(range(1, 400), rng.randint(2, 6)))
        durations = [unit * rng.choice((1, 2, 3, rng.randint(1, 40))) for _ in places]
        curves.append(Curve(num_seqs, tuple(places), tuple(sorted(durations) if rng.random() < 0.7 else durations)))
    tokens = tuple(sorted(rng.sample((1, 2, 4, 8, 16, 64, 256), rng.randint(1, 4))))
    bases = tuple(unit * rng.randint(1, 8) for _ in tokens)
    rates = [rng.choice((0, 1, US // 64)) for _ in range(5)]
    gaps = [rng.choice((0, 0, 1, 7, US // 8, US, 5 * US)) for _ in range(7)]
    mixed = MixedCost(tokens, bases, *rates, most_seqs=8, most_kv_tokens=400, most_pairs=4_000, most_longest_tokens=400)
    return CalibratedModel(tuple(curves), mixed, rng.random() < 0.5, Overheads(*gaps), extrapolate=True)


def calibrated(case: Case) -> Case:
    """The same case under a calibrated model."""
    return replace(case, model=random_calibration(Random(f"calibration {case.seed}")))


def random_cases(count: int) -> settings:
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)


@given(seed=SEEDS)
@random_cases(80)
def test_replays_are_the_same_stepped_skipped_cut_and_naive(seed):
    check_case(calibrated(random_case(seed)))


@given(seed=SEEDS)
@random_cases(60)
def test_groups_beams_and_swaps_are_the_same_stepped_skipped_and_cut(seed):
    check_shared(calibrated(random_shared_case(seed)))


def test_a_step_takes_longer_where_somebody_has_just_lost_memory_or_come_back():
    """Not only behind an end or a chunk: the reference notices an executor that forgets it."""
    careless = with_line(CostExecutor, "submit", "self._turned or batch.preempted or batch.joined", "self._turned")
    noticed = 0
    with careless:
        for seed in range(40):
            try:
                check_shared(calibrated(random_shared_case(seed, "paged", single=True)))
            except AssertionError as error:
                noticed += "naive reference" in str(error)
    assert noticed


@given(seed=SEEDS)
@random_cases(30)
def test_fleets_are_the_same_stepped_skipped_and_cut(seed):
    case = calibrated(random_fleet(seed, groups=seed % 2 == 1))
    try:
        skipped = play_fleet(case)
    except LivelockError:
        return
    seen = seen_of_fleet(skipped)
    for other in (play_fleet(case, skip=False), play_fleet(case, STEP), play_fleet(case, random_cuts(Random(seed)))):
        assert not differences(seen, seen_of_fleet(other))
