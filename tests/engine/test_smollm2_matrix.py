"""The pairs of the matrix: a real model's greedy tokens do not depend on how its memory is managed."""

import copy
import dataclasses
import functools

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="the reference extra is not installed")

from engine.worker import engine as engine_module  # noqa: E402
from engine.worker.shared_prefix import SharedRows, SharingRule  # noqa: E402
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


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_tokens_are_those_of_transformers_where_prefixes_are_shared(on, over, right, monkeypatch):
    """Three prompts start with the same sentence: with the switch on decodes take its blocks once for all of them."""
    engine = copy.copy(over["kv-first"])
    engine.config = dataclasses.replace(engine.config, shared_prefix_kernel=on)
    monkeypatch.setattr(engine_module, "SharingRule", functools.partial(SharingRule, least_bytes=0, row_bytes=0))
    found = []
    look = SharedRows.look

    def noted(self, num_rows):
        look(self, num_rows)
        found.append(max((len(group.rows) for group in self.groups), default=0))

    monkeypatch.setattr(SharedRows, "look", noted)
    row = dict.fromkeys(matrix.IN_CI) | {"allocator": "paged", "block_size": 4, "chunked": True, "caching": True}
    tokens, _ = matrix.serve({None: engine}, row)
    right.check(tokens)
    assert max(found) == (3 if on else 0)
    assert engine.provenance["shared_prefix_kernel"] is on
