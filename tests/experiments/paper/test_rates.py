"""Rates against latency: the interpolation, the curves, the FasterTransformer baseline, and how Fig 12 is judged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.paper import fig12, pictures, rates, verb
from experiments.paper.panels import FT, PANELS
from experiments.paper.runs import Lab
from sim.cost import PAPER_MODELS
from sim.cost_executor import CostExecutor
from sim.simulate import simulate
from workloads import named_trace

PANEL = PANELS["fig12a"]
KNEES = {FT: 0.2, "orca-max": 0.65, "orca-pow2": 0.85, "orca-oracle": 1.1, "paged": 2.2}


class Made(Lab):
    """A lab whose latencies are exponential in the rate and pass 0.5 s a token at given rates."""

    def __init__(self, knees=None, scale=None, **options):
        super().__init__(**{"num_seeds": 2, "quick": True, **options})
        self.knees = knees or KNEES
        self.scale = scale or {}

    def measure(self, keys, progress=None):
        return [self.made(key) for key in keys]

    def made(self, key):
        knee = self.knees[key.system] * self.scale.get(key.panel, 1.0)
        latency = 0.5 * math.exp(3 * (key.rate_per_s / knee - 1))
        return {
            rates.LATENCY: latency,
            "output_tok_per_s": 1.0,
            "mean_batch_size": 1.0,
            "num_rejected": 0.0,
            "num_requests": 9,
        }


@given(knee=st.floats(0.6, 5.0), steepness=st.floats(0.5, 20.0), threshold=st.floats(0.05, 2.0))
def test_the_rate_of_an_exponential_curve_is_exact_wherever_its_points_lie(knee, steepness, threshold):
    at = [0.1, 0.5, 1.5, 2.0, 4.0, 9.0]
    latencies = [threshold * math.exp(steepness * (rate / knee - 1)) for rate in at]

    found = rates.sustained(at, latencies, threshold)

    assert found == pytest.approx(knee, rel=1e-9)


def test_a_curve_that_starts_above_or_ends_below_the_threshold_has_no_rate():
    assert rates.sustained([1, 2, 3], [0.6, 0.7, 0.8], 0.5) is None
    assert rates.sustained([1, 2, 3], [0.1, 0.2, 0.3], 0.5) is None


def test_the_first_crossing_counts():
    assert 1.0 < rates.sustained([1, 2, 3, 4], [0.1, 0.9, 0.3, 2.0], 0.5) < 2.0


def test_a_curve_goes_on_beyond_its_rates_until_it_passes_the_threshold():
    last = PANEL.quick["paged"][-1]
    found = rates.curve(Made({**KNEES, "paged": last + 0.6}), PANEL, "paged", 0)

    assert found.rates[:-3] == PANEL.quick["paged"]
    assert found.rates[-3:] == (last + 0.25, last + 0.5, last + 0.75)
    assert found.latencies[-2] < 0.5 < found.latencies[-1]
    assert len(rates.curve(Made({**KNEES, "paged": 1e6}), PANEL, "paged", 0).rates) == 4 + rates.MAX_MORE


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_rates_ascend_and_what_is_added_lies_above_the_grid(panel):
    for system, grid in panel.grid.items():
        every = (*grid, *panel.added.get(system, ()))
        assert list(every) == sorted(set(every)), system
    assert set(panel.grid) == set(rates.ALL_SYSTEMS)
    assert set(rates.systems(Lab(), panel)) == set(rates.ALL_SYSTEMS)
    assert {key.duration_s for key in rates.runs(Lab(), panel) if key.system == FT} == {3600}


# FasterTransformer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_a_whole_batch_of_reservations_fits_the_pool(panel):
    spec = rates.fastertransformer(panel.num_blocks, panel.max_batch)

    blocks_each = -(-spec.limits.max_model_len // 16)
    assert panel.max_batch * blocks_each <= panel.num_blocks
    assert spec.limits.max_model_len == 2048 or panel.max_batch * (blocks_each + 1) > panel.num_blocks
    assert spec.limits.batching == "request"
    assert spec.limits.max_num_batched_tokens >= panel.max_batch * spec.limits.max_model_len


def test_fastertransformer_waits_for_the_longest_and_serves_everybody():
    trace = named_trace(PANEL.workload, 0, rate_per_s=0.3, duration_s=600)

    done = simulate(rates.fastertransformer(984, 5), trace, CostExecutor(PAPER_MODELS["paper-13b"]))

    assert all(check.holds for check in done.checks)
    batches: dict[int, set[int]] = {}
    for row in done.rows:
        batches.setdefault(row.first_scheduled, set()).add(row.finish)
    assert all(len(finishes) == 1 for finishes in batches.values())
    assert {row.status for row in done.rows} == {"finished"}
    together = [sum(row.first_scheduled == start for row in done.rows) for start in batches]
    assert max(together) == 5


def test_at_one_rate_the_systems_stand_in_the_papers_order():
    """Real runs: at a rate between two systems' knees the worse one has the higher latency."""
    lab = Lab(num_seeds=1, quick=True)
    keys = [rates.RateKey("fig12a", system, 1.0, 0, 600) for system in (FT, "orca-max", "orca-oracle", "paged")]

    latencies = lab.values(keys, rates.LATENCY)

    assert latencies == sorted(latencies, reverse=True)
    assert latencies[0] > 10 * latencies[-1]


# Judging --------------------------------------------------------------------------------------------------------------


def verdicts(results):
    return {result.claim.id.removeprefix("fig12a/"): result.verdict for result in results}


def test_the_ratios_are_those_of_the_knees_and_pass_inside_the_papers_bands():
    results = {result.claim.id: result for result in fig12.judge(Made(), PANEL)}

    assert results["fig12a/paged-over-orca-oracle"].got == pytest.approx(2.0)
    assert results["fig12a/paged-over-orca-max"].got == pytest.approx(2.2 / 0.65)
    assert results["fig12a/paged-over-fastertransformer"].got == pytest.approx(11.0)
    assert {result.verdict for result in results.values()} == {"pass"}


@pytest.mark.parametrize(
    "changed,missed",
    [
        ({"orca-oracle": 1.35}, {"paged-over-orca-oracle", "orca-oracle/rate"}),
        ({"orca-oracle": 0.8}, {"paged-over-orca-oracle", "orca-oracle/rate", "orca-oracle-over-orca-pow2/order"}),
        ({"orca-max": 0.26}, {"paged-over-orca-max", "orca-max/rate", "orca-pow2-over-orca-max/order"}),
        ({"orca-max": 0.84}, {"paged-over-orca-max", "orca-max/rate"}),
        ({FT: 0.09}, {"paged-over-fastertransformer"}),
    ],
)
def test_a_rate_that_moves_too_far_is_a_miss(changed, missed):
    found = verdicts(fig12.judge(Made({**KNEES, **changed}), PANEL))

    assert {name for name, verdict in found.items() if verdict == "miss"} == missed


def test_a_system_without_a_rate_is_a_miss_and_not_left_out():
    found = fig12.judge(Made({**KNEES, "paged": 1e6}), PANEL)

    missed = [result for result in found if result.verdict == "miss"]
    assert {"fig12a/paged-over-orca-oracle", "fig12a/paged/rate"} <= {result.claim.id for result in missed}
    assert all("no rate at which" in result.note for result in missed)


def test_fig12f_is_compared_with_the_same_model_on_long_requests():
    knees = {"orca-max": 5.0, "orca-pow2": 15.0, "orca-oracle": 25.0, "paged": 35.0}
    results = {r.claim.id: r for r in fig12.judge(Made(knees, {"fig12c": 0.06}), PANELS["fig12f"])}

    assert results["fig12f/less-pronounced"].got == pytest.approx(100.0)
    needed = {key.panel for key in verb.EXPERIMENTS["fig12f"].runs(Lab(num_seeds=1, quick=True))}
    assert needed == {"fig12c", "fig12f"}


def test_the_tables_have_every_point_and_mark_what_was_added():
    curves = fig12.tables(Made(quick=False), PANEL)[1]

    marked = {(row[0], row[1]): row[2] for row in curves.rows}
    assert marked["paged", "2"] == "yes"
    assert marked["paged", "2.25"] == "added"
    assert len(curves.rows) >= sum(map(len, PANEL.grid.values()))


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_picture_of_several_rates_says_which_and_bars_only_where_there_are_any(monkeypatch, num_seeds):
    monkeypatch.setattr(rates, "seeds", lambda lab, panel: range(num_seeds))
    made = Made(num_seeds=num_seeds)
    frame = pictures.points(made, PANEL)
    (picture,) = pictures.PICTURES["fig12a"](made)
    least, most = frame["rate_per_s"].min(), frame["rate_per_s"].max()

    assert least < most
    assert f"counts per 10 ms at {least:g} to {most:g}/s" in picture.caption
    assert ("deviation over seeds" in picture.claim) is (num_seeds > 1)
