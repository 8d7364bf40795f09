"""Expressions that leave cells out: they mean what Python means by them, and can do nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.exits import UsageError
from experiments.sweep.exclude import excluded

POINT = {"kv.block_size": 16, "workload.request_rate": 2.5, "kv.allocator": "paged", "kv.kv_tokens": None}
PYTHON = {"kv.block_size": "16", "workload.request_rate": "2.5", "kv.allocator": "'paged'", "null": "None"}
NUMBERS = st.one_of(
    st.integers(0, 300).map(str),
    st.floats(0.125, 8, width=16).map(str),
    st.sampled_from(["kv.block_size", "workload.request_rate"]),
)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({' '.join(p)})"),
    max_leaves=4,
)
TESTS = st.one_of(
    st.tuples(SUMS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), SUMS).map(" ".join),
    st.sampled_from(["kv.allocator == 'paged'", "kv.allocator not in ['orca-max', 'paged']", "kv.allocator is null"]),
)
EXPRESSIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda p: f"({' '.join(p)})"),
        inner.map(lambda text: f"(not {text})"),
    ),
    max_leaves=5,
)


@pytest.mark.filterwarnings("ignore:.*with a literal")
@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_an_expression_is_true_where_python_says_so(text):
    spelled = text
    for key, value in PYTHON.items():
        spelled = spelled.replace(key, value)
    assert excluded(text, POINT) is bool(eval(spelled, {"__builtins__": {}}))  # the oracle: texts made here


@pytest.mark.parametrize(
    "text,truth",
    [
        ('kv.allocator != "paged" and kv.block_size != 16', False),
        ("block_size == 16", True),
        ("kv.kv_tokens is null", True),
        ("scheduler.watermark == None", True),
        ("1 < kv.block_size <= 16", True),
        ("kv.block_size % 3 == 1 and kv.block_size // 5 == 3 and -kv.block_size < 0", True),
    ],
)
def test_keys_are_those_of_the_configuration(text, truth):
    assert excluded(text, POINT) is truth


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "kv.__class__",
        "(lambda: True)()",
        "[key for key in 'ab']",
        "kv.block_size[0]",
        "f'{kv.block_size}'",
        "9 ** 9 ** 9",
        "(kv.block_size := 3)",
        "kv.allocator * 1000000000 == 1",
        "kv.block_size < 'paged'",
        "kv.kv_tokens > 3",
        "kv.block_size / 0 == 1",
        "kv.block_sise > 3",
        "kv.block_size >",
        "(" * 400 + "1" + ")" * 400,
        "1 + " * 300 + "1",
    ],
)
def test_nothing_else_is_understood(text):
    with pytest.raises(UsageError, match="exclude"):
        excluded(text, POINT)


def test_a_slip_in_a_key_is_suggested_a_mend():
    with pytest.raises(UsageError, match=r"did you mean kv\.block_size"):
        excluded("kv.block_sise > 3", POINT)
