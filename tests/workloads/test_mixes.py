"""Rates that change, bursts, and mixes of clients: means, shapes and independence that their names promise."""

import numpy as np
import pytest

from workloads import ClientClass, client_mix, describe, synthetic_trace
from workloads.arrivals import on_off, piecewise

N = 40_000


def test_a_piece_gets_requests_in_proportion_to_its_rate_and_a_pause_none():
    stamps = piecewise([(2.0, 60.0), (0.0, 10.0), (8.0, 30.0)], N, seed=1)
    phase = stamps % (100 * 10**9) / 1e9
    cycles = stamps[-1] // (100 * 10**9)

    counts = [int(((phase >= a) & (phase < b)).sum()) for a, b in ((0, 60), (60, 70), (70, 100))]

    assert counts[1] == 0
    # Poisson counts of mean rate x seconds x cycles.
    assert counts[0] == pytest.approx(120 * cycles, abs=5 * np.sqrt(120 * cycles) + 120)
    assert counts[2] == pytest.approx(240 * cycles, abs=5 * np.sqrt(240 * cycles) + 240)


def test_one_piece_is_a_renewal_process_of_that_rate_and_cv():
    gaps = np.diff(piecewise([(5.0, 7.0)], N, seed=2, cv=2.0)) / 1e9

    assert 1 / gaps.mean() == pytest.approx(5.0, rel=5 * 2 / np.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)


def test_within_a_piece_poisson_gaps_are_exponential_at_the_pieces_rate():
    stamps = piecewise([(50.0, 10.0), (5.0, 10.0)], N, seed=3) / 1e9
    cycle, phase = np.divmod(stamps, 20.0)
    same = (np.diff(cycle) == 0) & (phase[:-1] < 9) & (phase[1:] < 9)

    gaps = np.diff(stamps)[same]

    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)


def test_bursts_keep_the_mean_rate_and_leave_pauses():
    stamps = on_off(5.0, 10.0, 30.0, N, seed=4) / 1e9
    gaps = np.diff(stamps)

    # Some 200 cycles of 40 s; their number is what the mean rests on.
    assert N / stamps[-1] == pytest.approx(5.0, rel=0.25)
    assert np.median(gaps) == pytest.approx(np.log(2) / 20, rel=0.05)  # exponential at 5 x 40 / 10 while on
    assert gaps[gaps > 2].mean() == pytest.approx(30.0, rel=0.25)
    assert describe(synthetic_trace("on-off:10,30", "fixed:1,1", 5000, rate_per_s=5.0))["fano_10s"] > 20


@pytest.mark.parametrize(
    "draw", [lambda n, s: piecewise([(1, 5), (3, 2)], n, s), lambda n, s: on_off(2.0, 3.0, 4.0, n, s)]
)
def test_a_longer_run_of_a_seed_begins_with_the_shorter_one(draw):
    assert draw(50, 1).tolist() == draw(80, 1)[:50].tolist() != draw(50, 2).tolist()
    assert (np.diff(draw(80, 1)) >= 0).all()
    assert draw(0, 1).tolist() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: piecewise([], 5, 0),
        lambda: piecewise([(0.0, 5.0)], 5, 0),
        lambda: piecewise([(1.0, 0.0)], 5, 0),
        lambda: piecewise([(float("inf"), 1.0)], 5, 0),
        lambda: piecewise([(1.0, 1.0)], 5, 0, cv=0.0),
        lambda: on_off(0.0, 1.0, 1.0, 5, 0),
        lambda: on_off(1.0, 0.0, 1.0, 5, 0),
        lambda: synthetic_trace("piecewise:2", "fixed:1,1", 5),
        lambda: synthetic_trace("piecewise:2@3", "fixed:1,1", 5, rate_per_s=1.0),
        lambda: synthetic_trace("on-off:3", "fixed:1,1", 5),
        lambda: synthetic_trace("poisson:3", "fixed:1,1", 5),
        lambda: synthetic_trace("poisson", "fixed:1,1", 5, cv=2.0),
        lambda: ClientClass("a", 0.0),
        lambda: ClientClass("a", 1.0, num_clients=0),
        lambda: ClientClass("a", 1.0, arrivals="weibull"),
        lambda: ClientClass("a", 1.0, lengths="zipf:1,2"),
        lambda: client_mix([], 5),
        lambda: client_mix([ClientClass("a", 1.0), ClientClass("a", 2.0)], 5),
    ],
)
def test_arguments_that_mean_nothing_are_refused(call):
    with pytest.raises(ValueError, match=r"need|leave|two classes"):
        call()


def test_each_class_sends_at_its_rate_with_its_lengths():
    mix = [
        ClientClass("short", 6.0, "fixed:10,1", num_clients=5, rate_skew=1.0),
        ClientClass("bursty", 3.0, "fixed:20,2", cv=3.0),
        ClientClass("daily", 1.0, "fixed:30,3", "piecewise:1@10,3@10"),
    ]

    trace = client_mix(mix, 20_000, seed=1)

    span_s = trace.arrival_ns[-1] / 1e9
    for one, prompt, cv in zip(mix, (10, 20, 30), (1.0, 3.0, 1.2), strict=True):
        rows = trace.num_prompt_tokens == prompt
        assert set(trace.num_output_tokens[rows].tolist()) == {prompt // 10}
        count = one.request_rate * span_s
        assert rows.sum() == pytest.approx(count, abs=5 * cv * np.sqrt(count))
    bursty = np.diff(trace.arrival_ns[trace.num_prompt_tokens == 20])
    assert bursty.std() / bursty.mean() == pytest.approx(3.0, rel=0.15)


def test_skewed_rates_follow_zipf_and_sum_to_the_class():
    one = ClientClass("a", 12.0, num_clients=3, rate_skew=1.0)

    rates = [one.rate(client) for client in range(3)]

    assert sum(rates) == pytest.approx(12.0)
    assert rates[0] / rates[1] == pytest.approx(2.0)
    assert rates[0] / rates[2] == pytest.approx(3.0)


def test_another_class_changes_nobodys_requests():
    chat = ClientClass("chat", 2.0, "uniform:100-900,5-9", num_clients=2)
    alone = client_mix([chat], 100, seed=5)
    mixed = client_mix([ClientClass("tool", 5.0, "fixed:7,3"), chat], 700, seed=5)

    rows = np.flatnonzero(mixed.num_prompt_tokens != 7)[:100]
    gaps = np.diff(mixed.arrival_ns[rows])

    assert len(rows) == 100
    assert mixed.num_prompt_tokens[rows].tolist() == alone.num_prompt_tokens.tolist()
    assert gaps.tolist() == np.diff(alone.arrival_ns).tolist()
    assert client_mix([chat], 100, seed=6).sha256() != alone.sha256()


def test_clients_do_not_all_begin_at_once():
    trace = client_mix([ClientClass("many", 10.0, "fixed:1,1", num_clients=200)], 400, seed=2)

    assert (np.diff(trace.arrival_ns) == 0).mean() < 0.01
    assert describe(trace)["rate_per_s"] == pytest.approx(10.0, rel=0.25)
