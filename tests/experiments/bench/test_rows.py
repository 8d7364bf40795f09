"""The tidy table: schema, ratios, round trip, and what is summed up from it."""

import math

import pytest

from experiments.bench.cases import shapes_of
from experiments.bench.rows import COLUMNS, from_csv, geometric_mean, row_of, to_csv, with_ratios
from experiments.bench.shapes import FP8, GQA, Shape, decode
from experiments.bench.summary import best_of_sweep, fp8_gains, overheads, standings, wrong_rows
from experiments.bench.timing import Timing

SHAPE = decode("twin", GQA, 64, 4096)


def row(peer="pagelab", median_s=1.0, shape=SHAPE, **values):
    timing = Timing(median_s, 0.9 * median_s, 1.1 * median_s, 2, 7)
    fixed = {"contiguous": False, "status": "ok", "timing": timing, "relative_error": 1e-3, "seed": 0}
    return row_of(shape, peer, **{**fixed, **values})


def test_a_row_has_every_column_and_its_rates_follow_from_its_time():
    one = row(median_s=2.0, device="card", torch="2", triton="3")

    assert tuple(one) == COLUMNS
    assert one["bytes_per_s"] == SHAPE.moved_bytes / 2
    assert one["flop_per_s"] == SHAPE.num_flops / 2
    assert (one["batch"], one["context_tokens"], one["kv_tokens"]) == (64, 4096, 64 * 4096)


def test_a_row_without_a_time_has_no_numbers_and_a_reason():
    one = row(status="unsupported", timing=None, relative_error=None, reason="no pages")

    assert [one[name] for name in ("median_s", "bytes_per_s", "relative_error", "time_over_ours")] == [None] * 4
    assert one["reason"] == "no pages"


def test_infinite_errors_stay_out_of_the_table():
    assert row(relative_error=math.inf)["relative_error"] is None


def test_an_unknown_column_is_a_bug():
    with pytest.raises(AssertionError, match="no such columns"):
        row(latency=1.0)


def test_ratios_are_time_over_ours_of_the_same_shape_only():
    other = SHAPE.with_(block_size=32)
    rows = with_ratios([row("fa3", 3.0), row("pagelab", 2.0), row("fa3", 5.0, other), row("pagelab", 10.0, other)])

    assert [one["time_over_ours"] for one in rows] == [1.5, 1.0, 0.5, 1.0]


def test_a_case_about_another_kernel_of_ours_is_measured_by_that_one():
    shape = SHAPE.with_(case="shared-prefix")
    times = {"pagelab": 6.0, "pagelab-shared": 2.0, "fa3": 8.0}
    rows = with_ratios([row(peer, median_s, shape) for peer, median_s in times.items()])

    assert [one["time_over_ours"] for one in rows] == [3.0, 1.0, 4.0]
    assert [(one.peer, one.least) for one in standings(rows)] == [("pagelab", 3.0), ("fa3", 4.0)]


def test_what_was_not_measured_right_has_no_ratio_and_gives_none():
    wrong = row("pagelab", 2.0, status="wrong")

    assert [one["time_over_ours"] for one in with_ratios([wrong, row("fa3", 3.0)])] == [None, None]
    rows = with_ratios([row("pagelab", 2.0), row("pagelab", 1.0, swept=True), row("fa3", 3.0, status="failed")])
    assert [one["time_over_ours"] for one in rows] == [1.0, 0.5, None]


def test_a_table_reads_back_as_it_was_written():
    rows = with_ratios(
        [
            row("pagelab", 1 / 3, config="block_n=64", device="NVIDIA H200", torch="2.11.0+cu130", triton="3.6.0"),
            row("fa3", status="failed", timing=None, relative_error=None, reason='it, said "no"'),
            row("pagelab-twin", contiguous=True, swept=True),
        ]
    )

    assert from_csv(to_csv(rows)) == rows


def test_another_table_is_refused():
    with pytest.raises(ValueError, match="no column 'case'"):
        from_csv("cell,seed\n1,2\n")


def test_geometric_means():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None


def test_standings_are_geometric_means_with_the_worst_shape():
    far = decode("twin", GQA, 8, 4096)
    rows = with_ratios([row("pagelab", 1.0), row("fa3", 2.0), row("pagelab", 1.0, far), row("fa3", 0.5, far)])

    (one,) = standings(rows)

    assert (one.case, one.peer, one.num_shapes) == ("twin", "fa3", 2)
    assert one.mean_time_over_ours == pytest.approx(1.0)
    assert (one.least, one.least_shape) == (0.5, far.label)


@pytest.mark.parametrize("case,names", [("prefill", {"prefill bs16", "prefill bs64"}), ("block-size", {"block-size"})])
def test_standings_keep_block_sizes_apart_but_of_cases_that_vary_them(case, names):
    shared = {"case": case, "shape": "a", "peer": "fa3", "swept": False, "time_over_ours": 1.0}
    assert {one.case for one in standings([{**shared, "block_size": size} for size in (16, 64)])} == names


def test_what_paging_costs_is_told_in_separate_numbers():
    shuffled, identity = (
        shape for shape in shapes_of("table-order") if shape.label == SHAPE.label and shape.block_size == 16
    )
    small = decode("twin", GQA, 8, 4096)  # 134 MB: bandwidth does not decide
    rows = with_ratios(
        [
            *(
                row("pagelab", 1.10),
                row("pagelab-twin", 1.0, contiguous=True),
                row("pagelab-twin-equal", 1.05, contiguous=True),
            ),
            *(row("torch-flash", 2.0, contiguous=True), row("torch-cudnn", 0.88, contiguous=True), row("fa3", 0.5)),
            *(row("pagelab", 9.0, small), row("pagelab-twin", 1.0, small, contiguous=True)),
            *(row("pagelab", 1.21, shuffled), row("pagelab", 1.10, identity)),
        ]
    )

    found = {one.against: (one.num_shapes, one.paged_over) for one in overheads(rows)}

    assert found == {
        "identity table (order)": (1, pytest.approx(1.1)),
        "twin, equal bytes in flight": (1, pytest.approx(1.10 / 1.05)),
        "twin, best against best": (1, pytest.approx(1.1)),
        "best contiguous kernel here": (1, pytest.approx(1.25)),
    }


def test_the_best_of_a_sweep_is_set_against_the_heuristic():
    rows = [
        row("pagelab", 1.2, config="a"),
        row("pagelab", 1.0, config="b", swept=True),
        row("pagelab", 1.5, config="c", swept=True),
        row("pagelab", 0.1, config="d", swept=True, status="wrong"),
    ]

    (best,) = best_of_sweep(rows)

    assert (best.config, best.median_s) == ("b", 1.0)
    assert best.heuristic_over_best == pytest.approx(1.2)


def test_only_our_own_failures_count_as_failures():
    rows = [row("fa3", status="failed"), row("pagelab", status="wrong"), row("pagelab-twin", status="unsupported")]

    assert [one["peer"] for one in wrong_rows(rows)] == ["pagelab"]


def test_a_write_has_no_operations():
    assert row(shape=Shape("write", "write", "w", GQA, (4,), (4,)))["flop_per_s"] is None


def test_the_gain_of_fp8_is_a_shapes_own_time_over_sixteen_bits_over_its_time_over_fp8():
    wide = decode("fp8", GQA, 64, 4096)
    narrow = wide.with_(dtype=FP8)
    lonely = narrow.with_(label="other")
    rows = [row(shape=wide, median_s=3.0), row(shape=narrow, median_s=2.0), row(shape=lonely)]
    rows += [row(shape=narrow, median_s=1.0, swept=True), row(shape=wide, median_s=9.0, peer="torch")]

    (gain,) = fp8_gains(rows)

    assert (gain.shape, gain.block_size, gain.times_faster) == ("gqa 64 x 4k", 16, 1.5)
