"""Claims on CPU tensors: online softmax, S17, S18, S24 and S25; what must fail, fails; without torch nothing passes."""

import importlib.util

import pytest

from experiments.paper import chapter_attention, online_softmax
from experiments.paper.runs import Lab

torch = pytest.importorskip("torch")

from engine.attention.merge import SoftmaxState  # noqa: E402


@pytest.fixture
def quick() -> Lab:
    return Lab(quick=True)


def by_id(results):
    return {result.claim.id.partition("/")[2]: result for result in results}


def test_every_claim_on_online_softmax_passes(quick):
    results = online_softmax.judge(quick)

    assert [(r.claim.id, r.got) for r in results if r.verdict != "pass"] == []
    assert len(results) == 18


def test_a_merge_that_does_not_rescale_is_caught(quick, monkeypatch):
    def careless(self, other):
        m = torch.maximum(self.m, other.m)
        return SoftmaxState(m, self.l + other.l, self.acc + other.acc)

    monkeypatch.setattr(SoftmaxState, "merge", careless)
    results = by_id(online_softmax.judge(quick))

    assert results["softmax"].verdict == "miss"


def test_an_absorb_without_the_shift_overflows_and_is_caught(quick, monkeypatch):
    def unshifted(self, scores, values):
        weights = torch.exp(scores)
        m = torch.zeros_like(self.m)
        return SoftmaxState(m, self.l + weights.sum(-1), self.acc + weights @ values)

    monkeypatch.setattr(SoftmaxState, "absorb", unshifted)
    results = by_id(online_softmax.judge(quick))

    assert [results[name].verdict for name in ("shifted", "shifted_fp32")] == ["miss", "miss"]


def test_accumulators_that_are_too_short_are_caught(quick, monkeypatch):
    wide = online_softmax._state

    monkeypatch.setattr(online_softmax, "_state", lambda scores, values: wide(scores.half(), values.half()))
    results = by_id(online_softmax.judge(quick))

    assert [results[name].verdict for name in ("fp32", "fp16_worse")] == ["miss", "miss"]


def test_passes_are_counted_not_assumed():
    q, k, v = torch.randn(2, 8), torch.randn(40, 8), torch.randn(40, 4)
    keys = online_softmax.CountedKeys(k)
    list(keys.pieces())
    online_softmax.one_pass(q, keys, v)

    assert keys.num_rows == 80


def test_the_table_has_a_row_a_length(quick):
    (table,) = online_softmax.tables(quick)

    assert [row[0] for row in table.rows] == list(online_softmax.QUICK_LENGTHS)


def test_the_chapters_tensor_claims_pass():
    results = chapter_attention.judge()

    assert [(r.claim.id, r.got) for r in results if r.verdict != "pass"] == []
    assert {r.claim.id.split("/")[1] for r in results} == {"S17", "S18", "S24", "S25"}


def test_only_one_reading_of_the_chapters_update_is_attention():
    scores = torch.tensor([[5.0, 2.0] * 8 + [0.0, 1.0] * 8], dtype=torch.float64)
    values = torch.arange(32.0, dtype=torch.float64)[:, None]
    wanted = scores.softmax(-1) @ values

    for new_maximum in (True, False):
        _, s, out = chapter_attention.literal_update(scores, values, new_maximum=new_maximum)
        assert torch.allclose(out / s[:, None], wanted) is new_maximum


def test_a_backend_of_another_shape_is_a_miss(monkeypatch):
    monkeypatch.setitem(chapter_attention.PRINTED, "reference-pallas", (1, 2, 3))

    assert by_id(chapter_attention.judge())["S17/shapes"].got == 1


def test_without_torch_everything_says_so(monkeypatch, quick):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    results = [*chapter_attention.judge(), *online_softmax.judge(quick)]

    assert [r.verdict for r in results] == ["not here"] * 5
    assert all("torch is not installed" in r.to_dict()["note"] for r in results)
    assert online_softmax.tables(quick) == []
