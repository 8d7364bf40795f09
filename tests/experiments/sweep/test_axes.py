"""The axes of a sweep: how they are written, and which points they have."""

import math
import tomllib
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.config import Layer, read_layer, to_toml
from experiments.exits import UsageError
from experiments.sweep.axes import Axes, axes_of, axes_of_keys, parse_values

KEYS = ("kv.block_size", "kv.allocator", "workload.request_rate", "scheduler.watermark", "model.name")
VALUES = st.one_of(
    st.none(),
    st.integers(1, 512),
    st.floats(0.01, 100, allow_nan=False),
    st.sampled_from(["paged", "orca-max", "a,b", "contiguous-chunk(64)-first-fit", "linear:1,2,3,4"]),
)


@st.composite
def some_axes(draw):
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True))
    zipped = draw(st.integers(0, len(keys)))
    length = draw(st.integers(1, 4))
    together = len(keys[:zipped]) > 1
    values = {
        key: tuple(draw(st.lists(VALUES, min_size=length if i < zipped and together else 1, max_size=length)))
        for i, key in enumerate(keys)
    }
    return Axes(values, (tuple(keys[:zipped]),) if together else ())


@settings(max_examples=60, deadline=None)
@given(some_axes())
def test_points_are_the_product_of_the_groups_and_each_has_every_key(axes):
    zipped = {key for group in axes.zips for key in group}
    groups = [[len(axes.values[group[0]])] for group in axes.zips]
    groups += [[len(values)] for key, values in axes.values.items() if key not in zipped]
    points = list(axes.points())
    assert len(points) == math.prod(length for (length,) in groups)
    assert all(tuple(point) == axes.keys for point in points)
    for group in axes.zips:
        rows = set(zip(*(axes.values[key] for key in group), strict=True))
        assert {tuple(point[key] for key in group) for point in points} == rows


def test_without_zips_points_are_the_cartesian_product_in_order():
    axes = axes_of_keys({"kv.block_size": [1, 8], "kv.allocator": ["paged", "orca-max"]})
    assert [tuple(point.values()) for point in axes.points()] == list(product([1, 8], ["paged", "orca-max"]))


@settings(max_examples=60, deadline=None)
@given(some_axes())
def test_what_is_written_into_a_file_is_what_is_read_back(axes):
    table = tomllib.loads(to_toml({"sweep": axes.table()}))["sweep"]
    read = axes_of([Layer({}, "file", sweep=table)])
    assert sorted(map(str, read.points())) == sorted(map(str, _ordered(axes, read)))
    assert read.zips == axes.zips


def _ordered(axes, like):
    return [{key: point[key] for key in like.keys} for point in axes.points()]


def test_flags_a_file_and_python_say_the_same(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_text(
        '[sweep.grid]\n"kv.block_size" = [1, 8, "null"]\nkv.allocator = ["paged", "orca-max"]\n'
        "exclude = ['kv.allocator != \"paged\" and kv.block_size == 8']\n"
    )
    expression = 'kv.allocator != "paged" and kv.block_size == 8'
    flags = axes_of([], ["block_size=1,8,null", "kv.allocator=paged,orca-max"], [], [expression])
    python = axes_of_keys({"kv.block_size": [1, 8, None], "kv.allocator": ["paged", "orca-max"]}, exclude=[expression])
    assert axes_of([read_layer(path)]) == flags == python


def test_a_flag_replaces_the_values_of_a_file(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_text('[sweep.grid]\n"kv.block_size" = [1, 8]\n"kv.allocator" = ["paged"]\n')
    axes = axes_of([read_layer(path)], ["kv.block_size=32"])
    assert axes.values == {"kv.block_size": (32,), "kv.allocator": ("paged",)}


@pytest.mark.parametrize(
    "text,values",
    [
        ("1,8,16", [1, 8, 16]),
        ("paged, orca-max", ["paged", "orca-max"]),
        ("null,32", [None, 32]),
        ("0.5,true,1e3", [0.5, True, 1000.0]),
        ("contiguous-chunk(64)-first-fit,paged", ["contiguous-chunk(64)-first-fit", "paged"]),
        ('["linear:1,2,3,4", "null"]', ["linear:1,2,3,4", None]),
        ("log(1,256,9)", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("lin(1,4,10)", [1, 1, 2, 2, 2, 3, 3, 3, 4, 4]),
    ],
)
def test_values_are_numbers_words_spaces_and_nothing(text, values):
    assert parse_values("kv.block_size", text) == values


def test_spaces_of_a_rate_are_not_rounded():
    assert parse_values("workload.request_rate", "lin(1,2,5)") == [1.0, 1.25, 1.5, 1.75, 2.0]


@pytest.mark.parametrize(
    "words,said",
    [
        ((["kv.block_size"], [], []), "--axis needs KEY=VALUE"),
        ((["kv.block_size="], [], []), "at least one value"),
        ((["seed=1,2"], [], []), "say --num-runs"),
        ((["kv.block_size=lin(1,2)"], [], []), "lin(FIRST,LAST,COUNT)"),
        ((["kv.block_size=log(0,2,3)"], [], []), "bounds above 0"),
        ((["kv.block_size=lin(1,2,3"], [], []), "lin(FIRST,LAST,COUNT)"),
        ((["kv.block_size=lin(1,nan,3)"], [], []), "lin(FIRST,LAST,COUNT)"),
        ((["workload.request_rate=lin(1,inf,3)"], [], []), "lin(FIRST,LAST,COUNT)"),
        ((["workload.request_rate=lin(-1e308,1e308,3)"], [], []), "lin(FIRST,LAST,COUNT)"),
        ((["workload.request_rate=log(1e-308,1e308,3)"], [], []), "log(FIRST,LAST,COUNT)"),
        ((["kv.block_size=lin(1,2,inf)"], [], []), "COUNT of 2 to 1,000,000"),
        ((["kv.block_size=lin(1,2,1e9)"], [], []), "COUNT of 2 to 1,000,000"),
        ((["kv.block_size=[1,"], [], []), "not a TOML list"),
        ((["kv.block_size=1,2", "kv.allocator=paged"], ["kv.block_size,kv.allocator"], []), "kv.block_size has 2"),
        ((["kv.block_size=1,2"], ["kv.block_size,kv.allocator"], []), "which is no axis"),
        ((["kv.block_size=1,2"], ["kv.block_size,kv.block_size"], []), "twice"),
        ((["kv.block_size=1,2"], [], ["kv.block_size >"]), "not an expression"),
    ],
)
def test_what_is_wrong_is_said(words, said):
    with pytest.raises(UsageError) as error:
        axes_of([], *words)
    assert said in str(error.value)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    key=st.sampled_from(("kv.block_size", "workload.request_rate", "kv.allocator", "x")),
    parts=st.lists(
        st.sampled_from(
            (
                "lin(",
                "log(",
                ")",
                ",",
                "1",
                "0",
                "2.5",
                "-",
                "inf",
                "nan",
                "1e308",
                "[",
                "]",
                '"',
                "{",
                "=",
                "\n",
                "null",
                "a",
            )
        ),
        max_size=12,
    ),
)
def test_any_text_is_values_or_a_mistake_that_is_told(key, parts):
    try:
        values, said = parse_values(key, "".join(parts)), key
    except UsageError as error:
        values, said = [], str(error)
    assert key in said
    assert all(value is None or isinstance(value, bool | int | float | str | list | dict) for value in values)


def test_an_unknown_key_of_the_table_is_refused_with_its_place(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_text("[sweep]\nexcludes = []\n")
    with pytest.raises(UsageError, match=r"exp.toml:2: sweep.excludes: unknown key; known are grid, zip, exclude"):
        axes_of([read_layer(path)])
