"""Axes of plots: sizes in words are in order of their bytes, large integers keep their digits, marks are whole."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.figures.columns import by_size, written
from experiments.figures.curves import Horizontal
from experiments.figures.latex import latex_table, over_curves, pivot
from experiments.figures.looks import looks_of
from experiments.figures.variables import Choice, draw_facets
from experiments.quantities import byte_count
from experiments.style import new_figure, style

SIZES = ["2MiB", "64KiB", "1GB", "256KiB", "4096"]
IN_ORDER = ["4096", "64KiB", "256KiB", "2MiB", "1GB"]


def pages(sizes=SIZES):
    many = len(sizes)
    return pd.DataFrame({"kv.page_bytes": sizes, "y": range(1, many + 1), "seed": [0] * many, "x": [1] * many})


@given(st.permutations([*SIZES, None]))
def test_sizes_in_words_are_in_order_of_their_bytes_wherever_they_stand(sizes):
    frame = pages(sizes)
    order = ["unset", *IN_ORDER]
    assert list(Horizontal.of(frame["kv.page_bytes"]).categories) == order
    assert list(looks_of(frame, ("kv.page_bytes",))) == order
    _, rows, _ = pivot(frame, Choice("kv.page_bytes", "y"))
    assert [row[0] for row in rows] == order


@given(st.lists(st.sampled_from(["paged", "orca-max", "64 KiB?", "10XB", "pool", None]), min_size=1))
def test_words_that_are_no_sizes_are_in_order_of_the_alphabet(words):
    column = pd.Series(words, dtype=object)
    ordered = column.sort_values(key=by_size, kind="stable", na_position="first")
    assert ordered.dropna().tolist() == sorted(word for word in words if word is not None)


@given(st.lists(st.integers(-(2**53) + 1, 2**53 - 1), unique=True, min_size=2), st.booleans())
def test_integers_keep_every_digit_beside_a_missing_value(values, missing):
    column = pd.Series([*values, None] if missing else values)
    assert [written(value) for value in column.dropna()] == [str(int(value)) for value in column.dropna()]
    assert column.map(written).nunique() == column.nunique(dropna=False)


def test_fractions_are_short():
    assert [written(value) for value in (0.1, 2.5, 1e-9, 1e30)] == ["0.1", "2.5", "1e-09", "1e+30"]
    assert byte_count("1KiB") == 1024


@pytest.mark.parametrize("lowest", [0.0, 0.5, 0.98])
@pytest.mark.parametrize("x", [[1, 2, 4], ["64KiB", "256KiB", "2MiB"]])
def test_no_mark_is_cut_by_the_edge_of_its_panel(lowest, x):
    with style():
        canvas = new_figure(6, 3)
        frame = pd.DataFrame({"x": x * 2, "y": [lowest, 0.99, 1.0] * 2, "of": ["a"] * 3 + ["b"] * 3, "seed": [0] * 6})
        draw_facets(frame, Choice("x", "y", (), None, "of"), canvas)
    for ax in canvas.axes:
        low, high = ax.get_ylim()
        assert low == 0
        assert high >= 1.04


@pytest.mark.parametrize(
    "curve_by,over",
    [
        ((), ""),
        (("allocator",), "live"),
        (("request_rate",), "live, by requests per second"),
        (("allocator", "request_rate"), "live, by allocator, requests per second"),
    ],
)
def test_a_table_says_what_its_numbers_and_the_names_of_its_columns_are(curve_by, over):
    frame = pd.DataFrame({"x": [1, 1], "kv_live_frac": [0.5, 0.25], "allocator": "paged", "request_rate": [2, 4]})
    choice = Choice("x", "kv_live_frac", curve_by)
    if not curve_by:
        frame = frame[:1]
    heads, rows, _ = pivot(frame.assign(seed=0), choice)
    assert over_curves(choice) == over
    lines = latex_table(heads, rows, "", over_curves(choice)).splitlines()
    assert ("multicolumn" in lines[3]) == bool(over)
    assert over in lines[3]
    if not curve_by:
        assert heads == ["x", "live"]
