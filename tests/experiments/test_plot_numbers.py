"""Numbers behind plots: intervals over repeats, names and conditions, frontiers, tables for LaTeX."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.figures.columns import configuration_of, filtered, mixed, resolved
from experiments.figures.intervals import t95, with_intervals
from experiments.figures.latex import escaped, latex_table, plus_minus
from experiments.figures.pareto import frontier, goals_of, on_frontier


def frame_of(**columns):
    return pd.DataFrame(columns)


# intervals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "degrees,quantile",
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (9, 2.26216),
        (10, 2.22814),
        (30, 2.04227),
        (120, 1.97993),
    ],
)
def test_students_quantiles_are_those_of_the_tables(degrees, quantile):
    assert t95(degrees) == pytest.approx(quantile, abs=6e-5)


def test_students_quantile_falls_towards_the_normal_one():
    values = [t95(degrees) for degrees in range(1, 60)]
    assert values == sorted(values, reverse=True)
    assert t95(5000) == pytest.approx(1.960438, abs=2e-6)
    with pytest.raises(ValueError, match="at least 1 degree of freedom, got 0"):
        t95(0)


def test_an_interval_is_over_the_runs_that_have_the_value():
    frame = frame_of(size=[8] * 4 + [16], y=[1.0, 2.0, 3.0, None, 5.0])
    table = with_intervals(frame, ["size"], ["y"]).set_index("size")
    assert table.loc[8, "y"] == 2.0
    assert (table.loc[8, "num_runs"], table.loc[8, "y_n"]) == (4, 3)
    assert table.loc[8, "y_ci95"] == pytest.approx(4.30265 * 1.0 / math.sqrt(3), rel=1e-5)
    assert math.isnan(table.loc[16, "y_ci95"])


def test_intervals_of_repeats_hold_the_true_mean_95_times_of_100():
    """The law that the name promises, on 1,000 samples of four normal values; 0.007 is one sd of the share."""
    values = np.random.default_rng(7).normal(3.0, 2.0, (1000, 4))
    frame = frame_of(key=np.repeat(np.arange(1000), 4), y=values.ravel())
    table = with_intervals(frame, ["key"], ["y"])
    assert ((table["y"] - 3.0).abs() <= table["y_ci95"]).mean() == pytest.approx(0.95, abs=0.02)


# names of columns and conditions --------------------------------------------------------------------------------------


def test_short_and_long_names_find_their_column():
    frame = frame_of(**{"block_size": [1], "kv.block_size": [1], "kv.watermark": [0], "allocator": ["paged"]})
    found = {name: resolved(name, frame) for name in ("block_size", "kv.block_size", "watermark", "kv.allocator")}
    assert found == {
        "block_size": "block_size",
        "kv.block_size": "kv.block_size",
        "watermark": "kv.watermark",
        "kv.allocator": "allocator",
    }


def test_a_name_that_two_keys_end_with_is_ambiguous():
    with pytest.raises(ValueError, match=r"'seed' may be a\.seed or b\.seed: say which"):
        resolved("seed", frame_of(**{"a.seed": [1], "b.seed": [2]}))


def test_an_unknown_column_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown column 'watermrk'; did you mean watermark or kv\.watermark"):
        resolved("watermrk", frame_of(**{"kv.watermark": [0]}))


@pytest.mark.parametrize(
    "condition,kept",
    [
        ("size>=16", [1, 2]),
        ("size = 8, 32", [0, 2]),
        ("size!=16", [0, 2]),
        ("name=Paged", [0, 1]),
        ("limit=unset", [0, 2]),
        ("limit!=unset", [1]),
        ("limit<33", [1]),
        ("limit!=32", [0, 2]),
        ("late=true", [2]),
    ],
)
def test_a_condition_keeps_the_rows_that_meet_it(condition, kept):
    frame = frame_of(
        size=[8, 16, 32], name=["paged", "paged", "orca-max"], limit=[None, 32.0, None], late=[False, False, True]
    )
    assert list(filtered(frame, [condition]).index) == kept


@pytest.mark.parametrize(
    "condition,said",
    [
        ("size", "a condition is COLUMN=VALUE"),
        ("size=", "a condition is COLUMN=VALUE"),
        ("size=8,,16", "an empty value; a missing one is written 'unset'"),
        ("size<8,16", "< takes one value"),
        ("size=large", "'size' is a number, got 'large'"),
        ("name<paged", "'name' is not a number, so < does not apply"),
        ("size=64", "no row has size=64; size is 8, 16"),
        ("sise=8", "did you mean size"),
    ],
)
def test_a_condition_that_says_nothing_is_refused(condition, said):
    with pytest.raises(ValueError, match=said):
        filtered(frame_of(size=[8, 16], name=["paged", "paged"]), [condition])


def test_means_over_conditions_are_told_from_means_over_repeats():
    frame = frame_of(allocator=["paged"] * 4, block_size=[8, 8, 16, 16], seed=[0, 1, 0, 1], **{"w.rate": [1, 1, 2, 2]})
    assert configuration_of(frame, ["w.rate"]) == ["w.rate", "allocator", "block_size"]
    assert mixed(frame, ["block_size"], ["w.rate"]) == []
    assert mixed(frame, ["allocator"], ["w.rate"]) == ["w.rate", "block_size"]


# frontiers ------------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(0, 6).map(float), st.just(math.nan))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_a_frontier_is_what_nobody_beats_and_beats_all_others(points):
    found = on_frontier(points)
    on = [point for point, is_on in zip(points, found, strict=True) if is_on]

    def beats(a, b):
        return a[0] >= b[0] and a[1] >= b[1] and a != b

    whole = [point for point in points if not any(map(math.isnan, point))]
    assert sorted(on) == sorted(p for p in whole if not any(beats(other, p) for other in whole))
    assert all(any(beats(best, p) for best in on) for p in whole if p not in on)


def test_a_frontier_is_over_configurations_and_less_may_be_better():
    frame = frame_of(allocator=["a", "a", "b", "c"], up=[1.0, 3.0, 2.0, 1.0], cost_s=[1.0, 1.0, 1.0, 0.5])
    table = frontier(frame, ["allocator"], goals_of("max:up,min:cost_s", frame)).set_index("allocator")
    assert table["on_frontier"].to_dict() == {"a": True, "b": True, "c": True}
    table = frontier(frame, ["allocator"], goals_of("max:up,max:cost_s", frame)).set_index("allocator")
    assert table["on_frontier"].to_dict() == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize(
    "text", ["max:up", "up,cost_s", "max:up,min:cost_s,min:up", "best:up,min:cost_s", "max:up,min:up"]
)
def test_goals_are_two_columns_with_their_ways(text):
    with pytest.raises(ValueError, match="--pareto"):
        goals_of(text, frame_of(up=[1.0], cost_s=[1.0]))


# LaTeX ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mean,half,percent,text",
    [
        (0.9621, 0.0043, True, "96.21 ± 0.43 %"),
        (12345.678, 12.3, False, "12,346 ± 12"),
        (0.001234, None, False, "0.001234"),
        (2.0, 0.0, False, "2.000 ± 0"),
        (None, None, False, "–"),
        (math.nan, math.nan, True, "–"),
        (0.0, None, False, "0"),
    ],
)
def test_an_interval_has_two_digits_and_its_mean_the_same_last_place(mean, half, percent, text):
    assert plus_minus(mean, half, percent=percent) == text


def test_text_cannot_be_a_command():
    evil = r"\input{/etc/passwd} & 50% $x_1^2$ ~ #1 <a|b>" + "\n\\end{tabular}"
    made = escaped(evil)
    assert "\n" not in made
    for mark in ("&", "%", "#", "_"):
        assert made.count(mark) == made.count("\\" + mark)
    assert r"\input" not in made
    assert r"\end" not in made


def test_a_table_has_the_rules_of_booktabs_and_its_source():
    lines = latex_table(["size", "live"], [["8", "1 ± 2 %"]], "seeds 1\ntrace x").splitlines()
    assert lines == [
        "% seeds 1",
        "% trace x",
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"size & live \\",
        r"\midrule",
        r"8 & 1 $\pm$ 2 \% \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
