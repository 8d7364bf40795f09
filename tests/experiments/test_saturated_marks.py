"""Runs that could not keep up: marked where a value depends on the length of the trace, and nowhere else."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.figures.latex import pivot
from experiments.figures.pareto import draw_pareto, goals_of
from experiments.figures.saturation import HOLLOW, grows, is_saturated
from experiments.figures.variables import Choice, draw_facets
from experiments.style import new_figure, style
from tests.experiments.swept import write_sweep

RATES = (1.0, 2.0, 4.0)
NAMES = ("orca-max", "paged")


def frame_of(flags, values=None):
    """Two runs of each allocator and rate; `flags`: whether they were saturated, as many."""
    keys = [(name, rate, seed) for name in NAMES for rate in RATES for seed in (0, 1)]
    frame = pd.DataFrame(keys, columns=["allocator", "rate", "seed"])
    return frame.assign(saturated=flags, mean_ttft_s=values or [1.0 + row for row in range(12)], kv_live_frac=0.5)


def drawn(frame, metric="mean_ttft_s", **more):
    choice = Choice("rate", metric, ("allocator",), **more).on(frame)
    with style():
        canvas = new_figure(5, 3)
        table = draw_facets(frame, choice, canvas)
    return canvas, table


def hollow_points(canvas):
    """(x, y) of every hollow mark that is no entry of the legend."""
    lines = [line for ax in canvas.axes for line in ax.get_lines() if line.get_markerfacecolor() == "white"]
    return {point for line in lines for point in zip(*line.get_data(), strict=True)}


def legend_of(canvas):
    return [text.get_text() for legend in canvas.legends for text in legend.get_texts()]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_point_is_hollow_exactly_where_one_of_its_runs_was_saturated(flags):
    frame = frame_of(flags)
    canvas, table = drawn(frame)
    groups = frame.groupby(["allocator", "rate"])
    expected = {(rate, rows["mean_ttft_s"].mean()) for (_, rate), rows in groups if rows["saturated"].any()}
    assert hollow_points(canvas) == expected
    assert ("saturated" in legend_of(canvas)) is any(flags)
    assert set(table.loc[table["saturated"], "mean_ttft_s"]) == {y for _, y in expected}


@pytest.mark.parametrize("words", [["True", "False"] * 6, [True, False] * 6, ["true", None] * 6])
def test_the_flag_is_read_however_it_is_stored(words):
    assert is_saturated(frame_of(words)).tolist() == [True, False] * 6


def test_a_closed_loop_has_no_flag_and_no_mark():
    canvas, _ = drawn(frame_of([None] * 12))
    assert (hollow_points(canvas), "saturated" in legend_of(canvas)) == (set(), False)


@pytest.mark.parametrize(
    "metric,does",
    [
        ("mean_ttft_s", True),
        ("p99_e2e_s", True),
        ("mean_normalized_latency_s", True),
        ("output_tok_per_s", False),
        ("kv_live_frac", False),
        ("num_preemptions", False),
        ("device_s", False),
        ("num_blocks", False),
    ],
)
def test_times_of_requests_depend_on_the_length_of_a_saturated_trace(metric, does):
    assert grows(metric) is does


def test_what_does_not_depend_on_the_length_has_no_mark():
    canvas, table = drawn(frame_of([True] * 12), "kv_live_frac")
    assert (hollow_points(canvas), "saturated" in legend_of(canvas), "saturated" in table) == (set(), False, False)


def test_one_curve_without_a_name_still_has_the_mark_named():
    frame = frame_of([True] * 12)
    with style():
        canvas = new_figure(5, 3)
        draw_facets(frame, Choice("rate", "mean_ttft_s").on(frame), canvas)
    assert legend_of(canvas) == ["saturated"]


def test_points_beside_each_other_are_marked_where_they_are():
    """Words have places side by side: a mark is on its own point."""
    frame = frame_of([True] * 12).assign(rule=["a"] * 6 + ["b"] * 6)
    with style():
        canvas = new_figure(5, 3)
        draw_facets(frame, Choice("rule", "mean_ttft_s", ("allocator",)).on(frame), canvas)
    [ax] = canvas.axes
    bars = [tuple(zip(*container.lines[0].get_data(), strict=True)) for container in ax.containers]
    assert hollow_points(canvas) == {point for points in bars for point in points}


def test_points_without_a_value_are_no_marks_and_the_others_stay():
    frame = frame_of([True] * 12, [None, None, *range(10)])
    canvas, table = drawn(frame)
    points = {point for point in hollow_points(canvas) if point[1] == point[1]}
    assert len(points) == 5
    assert len(table) == 6


def test_a_table_has_daggers():
    frame = frame_of([rate == 4.0 for _ in NAMES for rate in RATES for _ in (0, 1)])
    _, rows, _ = pivot(frame, Choice("rate", "mean_ttft_s", ("allocator",)).on(frame))
    assert [[cell.endswith(" †") for cell in row[1:]] for row in rows] == [[False] * 2, [False] * 2, [True] * 2]


def test_a_frontier_has_crosses_on_saturated_points():
    frame = frame_of([True, True] + [False] * 10).assign(output_tok_per_s=[float(row) for row in range(12)])
    goals = goals_of("max:output_tok_per_s,min:mean_ttft_s", frame)
    with style():
        canvas = new_figure(5, 3)
        table = draw_pareto(frame, ["allocator", "rate"], goals, ("allocator",), canvas)
    crosses = [line for line in canvas.axes[0].get_lines() if line.get_marker() == "x" and len(line.get_xdata())]
    assert [tuple(line.get_xdata()) for line in crosses] == [(1.5,)]
    assert table["saturated"].sum() == 1
    assert "saturated" in legend_of(canvas)


def test_the_verb_says_what_hollow_marks_are(tmp_path, pagelab, strict_object):
    axes = {"kv.allocator": ["orca-max", "paged"], "workload.request_rate": [2, 200]}
    base = {"kv.kv_tokens": 2048}.items()
    write_sweep(tmp_path / "a", axes, rate_key="workload.request_rate", num_requests=60, base=base)
    words = ("plot", tmp_path / "a", "--var-x", "request_rate", "--var-y", "mean_ttft_s", "-o", tmp_path / "a.png")
    done = pagelab(*words, "--json")
    points = strict_object(done.out)["points"]
    late = {(point["allocator"], point["workload.request_rate"]) for point in points if point["saturated"]}
    assert late == {("orca-max", 200), ("paged", 200)}
    assert HOLLOW in done.err
    assert HOLLOW not in pagelab(*words, "--filter-by", "request_rate=2").err
    assert "saturated" in (tmp_path / "a.csv").read_text()
    assert "daggers are of saturated runs" in pagelab(*words[:-1], tmp_path / "a.tex").err
    assert r"$\dagger$" in (tmp_path / "a.tex").read_text()
