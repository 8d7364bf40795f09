"""The timing core, against a stopwatch whose times are known."""

import pytest

from experiments.bench.timing import MAX_REPLAYS, MAX_SETS, MIN_REPLAYS, measure, num_sets, quantile


def test_a_call_gets_its_share_of_a_replay(stopwatch):
    watch = stopwatch(9.0, 0.004, 0.008, 0.004, 0.016, 0.012, 0.008, 0.016, 0.020)  # two are the estimate

    timing = measure([lambda: None] * 4, watch)

    assert watch.replays == [2, MIN_REPLAYS]
    assert timing.num_calls == 4
    assert timing.num_replays == MIN_REPLAYS
    assert timing[:3] == pytest.approx((0.012 / 4, 0.008 / 4, 0.016 / 4))


def test_all_calls_run_once_before_and_are_captured_in_one_graph_in_order(stopwatch):
    seen = []
    watch = stopwatch(0.5)

    measure([lambda i=i: seen.append(i) for i in range(3)], watch)

    assert watch.num_graphs == 1
    assert watch.num_syncs >= 1
    assert seen == [0, 1, 2] * (1 + 2 + MIN_REPLAYS)


def test_calls_that_no_graph_holds_are_issued_anew(stopwatch):
    seen = []
    watch = stopwatch(0.5)

    measure([lambda i=i: seen.append(i) for i in range(3)], watch, captured=False)

    assert watch.num_graphs == 0
    assert seen == [0, 1, 2] * (1 + 2 + MIN_REPLAYS)


@pytest.mark.parametrize("replay_s,expected", [(10.0, MIN_REPLAYS), (0.001, 25), (1e-6, MAX_REPLAYS)])
def test_short_graphs_are_replayed_more_often(stopwatch, replay_s, expected):
    assert measure([lambda: None], stopwatch(replay_s)).num_replays == expected


def test_nothing_to_measure_is_refused(stopwatch):
    with pytest.raises(ValueError, match="no calls"):
        measure([], stopwatch(1.0))


@pytest.mark.parametrize("size", [1, 10**3, 10**7, 10**8, 4 * 10**8, 10**9, 10**10])
def test_a_gigabyte_passes_between_rereads_or_64_sets_do(size):
    count = num_sets(size)

    assert 2 <= count <= MAX_SETS
    assert count * size >= 10**9 or count == MAX_SETS
    assert count == 2 or (count - 1) * size < 10**9


def test_a_huge_set_is_alone_and_an_empty_one_refused():
    assert num_sets(20 * 10**9) == 1
    with pytest.raises(ValueError, match="positive"):
        num_sets(0)


def test_quantiles_interpolate():
    assert quantile([3.0], 0.2) == 3.0
    assert quantile([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 0.2) == 1.0
    assert quantile([0.0, 1.0], 0.8) == pytest.approx(0.8)
