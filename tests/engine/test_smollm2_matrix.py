"""The pairs of the matrix: a real model's greedy tokens do not depend on how its memory is managed."""

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="the reference extra is not installed")

from tests.engine import smollm2_matrix as matrix  # noqa: E402
from tests.engine.attention.kernels.pairwise import pairwise  # noqa: E402
from tests.engine.model import smollm2  # noqa: E402

pytestmark = [smollm2.needed, pytest.mark.xdist_group("smollm2")]
ROWS = pairwise(matrix.IN_CI)


@pytest.fixture(scope="module")
def over():
    return matrix.engines()


@pytest.fixture(scope="module")
def right(over):
    return matrix.expected(over["kv-first"])


def test_the_pairs_are_at_most_sixteen():
    assert len(ROWS) <= 16


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_tokens_are_those_of_transformers(row, over, right):
    tokens, preemptions = matrix.serve(over, row)
    right.check(tokens)
    if row["allocator"] == "paged" and row["tight"] and row["block_size"] <= 16:
        assert preemptions > 0
