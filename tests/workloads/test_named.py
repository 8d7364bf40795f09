"""The paper's workloads by name: what is drawn, what is fixed, what the provenance says."""

import numpy as np
import pytest

from workloads import NAMED_TRACES, describe, named_trace
from workloads.named import standin_file

LONG = (np.array([2000, 10, 20, 1040]), np.array([48, 5, 6, 1007]))


def test_the_default_is_figure_2_on_the_stand_in_offline():
    trace = named_trace()

    assert (trace.name, trace.source["lengths"]) == ("paper-fig2", "sharegpt stand-in")
    assert trace.sha256() == named_trace("paper-fig2", 0).sha256()
    assert describe(trace)["rate_per_s"] == pytest.approx(4.0, rel=0.06)
    assert (trace.num_prompt_tokens + trace.num_output_tokens).max() < 2048
    assert (trace.arrival_ns % 10_000_000 == 0).all()
    assert trace.arrival_ns[-1] < 900 * 10**9


def test_the_stand_in_file_has_the_means_of_the_set():
    for num_rows in (3600, 7200):
        prompt, output = standin_file("sharegpt", num_rows)
        assert len(prompt) == num_rows
        assert (prompt.mean(), output.mean()) == pytest.approx((161.31, 337.99), rel=0.005)


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_shuffles_the_same_rows(seed: int):
    file = sorted(zip(*standin_file("sharegpt", 3600), strict=True))

    trace = named_trace("paper-fig2", seed)

    rows = sorted(zip(trace.num_prompt_tokens, trace.num_output_tokens, strict=True))
    repeated = max(0, len(trace) - 3600)
    assert trace.source["repeated_rows"] == str(repeated)
    assert len(set(trace.source_row.tolist())) == min(len(trace), 3600)
    assert set(rows) <= set(file)
    if repeated:
        assert set(rows) == set(file)


def test_seeds_give_other_orders_and_other_arrivals():
    one, two = named_trace(seed=1), named_trace(seed=2)

    assert one.arrival_ns.tolist() != two.arrival_ns.tolist()
    assert one.source_row[:50].tolist() != two.source_row[:50].tolist()


def test_given_lengths_are_filtered_strictly_and_repeated():
    trace = named_trace("paper-fig2", 3, {"sharegpt": LONG, "alpaca": LONG})

    assert set(trace.source_row.tolist()) == {2, 3, 4}  # 2,000 + 48 is not below 2,048
    assert trace.source["lengths"] == "sharegpt as given"
    assert trace.source["rows"] == "first 3 with in + out < 2048, shuffled"
    counts = np.bincount(trace.source_row)[2:]
    assert counts.max() - counts.min() <= 1


def test_only_the_head_of_a_long_list_is_used():
    lengths = (np.arange(1, 2001), np.full(2000, 3))

    rows = named_trace("paper-fig12a", 0, {"sharegpt": lengths}, rate_per_s=0.25).source_row

    assert rows.max() <= 900


@pytest.mark.parametrize(
    "name,rate,duration_s,set_name",
    [
        ("paper-fig12a", 1.5, 3600, "sharegpt"),
        ("paper-fig12d", 3.0, 3600, "alpaca"),
        ("paper-fig13a", 2.0, 3600, "sharegpt"),
        ("paper-fig13b", 30.0, 900, "alpaca"),
    ],
)
def test_the_other_figures_have_their_rate_duration_and_set(name: str, rate: float, duration_s: int, set_name: str):
    trace = named_trace(name, 1, rate_per_s=rate if "fig12" in name else None)

    expected = rate * duration_s
    assert len(trace) == pytest.approx(expected, abs=5 * np.sqrt(expected))
    assert trace.source["duration_s"] == str(duration_s)
    assert trace.source["lengths"] == f"{set_name} stand-in"


def test_a_shorter_trace_begins_the_same_way_and_takes_fewer_rows():
    short, long = (named_trace("paper-fig12d", 3, rate_per_s=2.0, duration_s=seconds) for seconds in (300, 600))

    assert short.arrival_ns.tolist() == long.arrival_ns[: len(short)].tolist()
    assert short.source_row.max() <= 600 < long.source_row.max()


def test_names_and_rates_that_are_missing_are_asked_for():
    with pytest.raises(ValueError, match=f"need one of {', '.join(NAMED_TRACES)}, got 'paper-fig99'"):
        named_trace("paper-fig99", 0)
    for name in ("paper-fig12a", "paper-fig12d"):
        with pytest.raises(ValueError, match=f"{name} needs a rate_per_s; the artifact's grid"):
            named_trace(name, 0)
    with pytest.raises(ValueError, match="no row with in"):
        named_trace("paper-fig2", 0, {"sharegpt": (np.array([4000]), np.array([1]))})
