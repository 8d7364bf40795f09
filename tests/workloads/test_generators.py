"""Arrivals and lengths: rates, spreads and shapes that their names promise."""

import numpy as np
import pytest

from workloads import Trace, describe, synthetic_trace
from workloads.arrivals import all_at_once, constant, gamma, poisson, poisson_counts
from workloads.lengths import Lognormal, fixed, lognormal, mixture, quantile_grid, spread, uniform

N = 40_000
RENEWAL_PROCESSES = [
    ("poisson", poisson(5.0, N, seed=1), 1.0),
    ("smooth gamma", gamma(5.0, 0.5, N, seed=2), 0.5),
    ("bursty gamma", gamma(5.0, 3.0, N, seed=3), 3.0),
    ("constant", constant(5.0, N), 0.0),
]


@pytest.mark.parametrize("name,stamps,cv", RENEWAL_PROCESSES)
def test_renewal_arrivals_have_the_rate_and_spread_asked_for(name: str, stamps: np.ndarray, cv: float):
    gaps = np.diff(stamps) / 1e9

    assert stamps.dtype == np.int64
    assert stamps[0] == 0
    assert len(stamps) == N
    assert (gaps >= 0).all()
    assert 1 / gaps.mean() == pytest.approx(5.0, rel=5 * max(cv, 0.01) / np.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_poisson_arrivals_count_like_poisson_on_every_scale():
    stamps = poisson(20.0, N, seed=4)
    for width_s in (1, 10):
        counts = np.bincount(stamps // (width_s * 10**9))[:-1]
        assert counts.var() / counts.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / len(counts)))


def test_a_constant_pace_does_not_drift():
    assert constant(3.0, 300_000)[-1] == 299_999 * 10**9 // 3
    assert all_at_once(3).tolist() == [0, 0, 0]


def test_counts_lie_on_the_quantum_grid_and_number_about_rate_times_duration():
    counts = [len(poisson_counts(4.0, 900, seed)) for seed in range(40)]
    stamps = poisson_counts(30.0, 900, seed=0)

    assert np.mean(counts) == pytest.approx(3600, abs=5 * 60 / np.sqrt(40))
    assert np.std(counts) == pytest.approx(60, rel=0.5)
    assert (stamps % 10_000_000 == 0).all()
    assert stamps[-1] < 900 * 10**9
    # P(a second request in the quantum of a first) makes ties: 1 - (1 - e^-m) / m with m = 0.3.
    assert (np.diff(stamps) == 0).mean() == pytest.approx(1 - (1 - np.exp(-0.3)) / 0.3, abs=0.01)


def test_a_longer_run_of_a_seed_begins_with_the_shorter_one():
    short, long = poisson_counts(4.0, 10, seed=7), poisson_counts(4.0, 20, seed=7)

    assert long[: len(short)].tolist() == short.tolist()


@pytest.mark.parametrize(
    "draw", [lambda s: poisson(2, 50, s), lambda s: gamma(2, 2, 50, s), lambda s: poisson_counts(2, 50, s)]
)
def test_a_seed_decides_the_arrivals(draw):
    assert draw(1).tolist() == draw(1).tolist() != draw(2).tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: poisson(0.0, 5, 0),
        lambda: poisson(float("nan"), 5, 0),
        lambda: gamma(1.0, 0.0, 5, 0),
        lambda: constant(1.0, -1),
        lambda: poisson_counts(1.0, 0.0, 0),
        lambda: fixed(3, 0),
        lambda: uniform(3, 5, 4, 0),
        lambda: mixture(3, [Lognormal(0.5, 1.0, 1.0)], 0),
        lambda: quantile_grid(3, [0, 50], [1, 2], 0),
        lambda: quantile_grid(3, [0, 100], [2, 1], 0),
    ],
)
def test_arguments_that_mean_nothing_are_refused(call):
    with pytest.raises(ValueError, match=r"need|must"):
        call()


def test_lengths_have_the_shape_asked_for():
    flat = uniform(N, 10, 19, seed=1)
    logs = np.log(lognormal(N, 7.0, 0.5, seed=2))
    two = mixture(N, [Lognormal(0.25, 3.0, 0.0), Lognormal(0.75, 6.0, 0.0)], seed=3)
    grid = quantile_grid(N, [0, 50, 100], [1, 101, 1001], seed=4)

    assert fixed(3, 7).tolist() == [7, 7, 7]
    assert np.bincount(flat)[10:] / N == pytest.approx(np.full(10, 0.1), abs=0.01)
    assert (logs.mean(), logs.std()) == pytest.approx((7.0, 0.5), abs=0.02)
    assert dict(zip(*np.unique(two, return_counts=True), strict=True))[20] / N == pytest.approx(0.25, abs=0.015)
    assert np.percentile(grid, [25, 50, 75]) == pytest.approx([51, 101, 551], rel=0.05)
    assert mixture(9, [Lognormal(1, -9.0, 0.1)], 0, minimum=5, maximum=8).tolist() == [5] * 9


@pytest.mark.parametrize("arrival", ["poisson", "gamma", "constant", "all-at-once", "counts"])
@pytest.mark.parametrize(
    "lengths", ["sharegpt", "alpaca-grid", "fixed:512,128", "uniform:1-9,2-3", "lognormal:5/1,4/0.5"]
)
def test_every_recipe_gives_the_number_asked_for_and_names_itself(arrival: str, lengths: str):
    trace = synthetic_trace(arrival, lengths, 300, seed=5, rate_per_s=10.0)

    assert len(trace) == 300
    assert (trace.status == 0).all()
    assert trace.source["lengths"] == lengths
    assert trace.source["arrival"].startswith(arrival)
    assert trace.sha256() == synthetic_trace(arrival, lengths, 300, seed=5, rate_per_s=10.0).sha256()


def test_lengths_do_not_follow_arrivals_of_the_same_seed():
    # Across seeds, not along a trace: two streams from one seed agree at their start and then fall out of step.
    drawn = [synthetic_trace("poisson", "sharegpt-grid", 2, seed=seed) for seed in range(400)]
    gaps = np.argsort(np.argsort([trace.arrival_ns[1] for trace in drawn]))
    prompts = np.argsort(np.argsort([trace.num_prompt_tokens[0] for trace in drawn]))

    assert abs(np.corrcoef(gaps, prompts)[0, 1]) < 0.2


def test_changing_the_arrivals_leaves_the_lengths():
    even, bursty = (synthetic_trace(arrival, "sharegpt", 50, seed=3) for arrival in ("constant", "gamma"))

    assert even.num_prompt_tokens.tolist() == bursty.num_prompt_tokens.tolist()


def test_given_pairs_go_round():
    trace = synthetic_trace("constant", (np.array([1, 2]), np.array([3, 4])), 5, seed=0)

    assert trace.num_prompt_tokens.tolist() == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"arrival": "weibull"}, "arrival: need one of poisson"),
        ({"lengths": "zipf:1,2"}, "lengths: 'zipf:1,2': no recipe 'zipf'; need one of sharegpt"),
        ({"lengths": "fixed:1"}, "lengths: 'fixed:1'"),
        ({"num_requests": 0}, "at least 1 request"),
    ],
)
def test_unknown_recipes_are_refused_with_the_known_ones(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        synthetic_trace(**arguments)


def test_describe_reports_the_rate_and_burstiness_that_were_asked_for():
    steady = describe(synthetic_trace("constant", "fixed:10,5", 2001, rate_per_s=10.0))
    bursty = describe(synthetic_trace("gamma", "fixed:10,5", 20_000, rate_per_s=10.0, cv=3.0))

    assert (steady["rate_per_s"], steady["iat_cv"], steady["fano_1s"], steady["tie_frac"]) == (
        10.0,
        0.0,
        0.0,
        0.0,
    )
    assert bursty["iat_cv"] == pytest.approx(3.0, rel=0.1)
    # A renewal process counts with Fano factor CV^2 in the long run.
    assert bursty["fano_60s"] == pytest.approx(9.0, rel=0.35)


def test_describe_leaves_out_what_is_not_defined():
    alone = describe(synthetic_trace("constant", "fixed:10,5", 1))

    assert (alone["rate_per_s"], alone["iat_cv"], alone["fano_1s"], alone["best_prefix_hit_frac"]) == (None,) * 4
    assert (alone["prompt_p50"], alone["output_max"]) == (10.0, 5)


@pytest.mark.parametrize("scope", ["chained", "content"])
def test_a_block_hits_only_if_its_whole_prefix_came_in_an_earlier_row(scope: str):
    trace = Trace.build(
        [0, 1, 2, 3],
        [2, 2, 2, 3],
        [1, 1, 1, 1],
        block_ids=[1, 2, 1, 2, 1, 3, 2, 2, 2],
        block_offsets=[0, 2, 4, 6, 9],
        block_size=1,
        block_scope=scope,
        block_partial="ceil",
    )

    facts = describe(trace)

    assert (facts["num_block_refs"], facts["num_distinct_blocks"]) == (9, 3)
    assert facts["best_prefix_hit_frac"] == pytest.approx(3 / 9)


@pytest.mark.parametrize("cv", [0.0, 0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("maximum", [None, 3000])
def test_a_spread_has_its_mean_and_nearly_its_cv(cv, maximum):
    values = spread(2000, 250.0, cv, seed=1, maximum=maximum)

    assert values.mean() == pytest.approx(250, abs=0.1)
    assert values.std() / values.mean() == pytest.approx(cv, rel=0.02 if cv <= 1 else 0.12 if maximum is None else 0.25)
    assert values.min() >= 1
    assert values.max() <= (maximum or 10**9)


def test_a_spread_has_the_same_values_for_every_seed_in_another_order():
    one, other = (spread(500, 90.0, 1.0, seed=seed) for seed in (0, 1))

    assert sorted(one) == sorted(other)
    assert (one != other).any()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2


@pytest.mark.parametrize("mean,cv,maximum", [(0.5, 1, None), (50, -1, None), (50, 1, 40), (50, float("inf"), None)])
def test_a_spread_that_cannot_be_is_refused(mean, cv, maximum):
    with pytest.raises(ValueError, match="spread"):
        spread(10, mean, cv, seed=0, maximum=maximum)
