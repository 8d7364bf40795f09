"""Block copies in Triton's interpreter: whatever the pairs, sources are those from before the call."""

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels import copy_blocks as module
from engine.attention.kernels.copy_blocks import copy_blocks

SHAPES = {
    "kv_first": ((2, 6, 4, 2, 24), 1),
    "block_first": ((6, 2, 4, 2, 24), 0),
    "interleaved": ((6, 4, 4, 24), 0),
    "latent": ((6, 4, 40), 0),
}
PAIRS = {
    "apart": [[0, 3], [1, 4]],
    "one source, many destinations": [[2, 0], [2, 1], [2, 5]],
    "a chain": [[0, 1], [1, 2], [2, 3]],
    "a cycle": [[0, 1], [1, 2], [2, 0]],
    "onto itself": [[4, 4], [3, 5]],
    "none": [],
}


def of_pairs(pairs):
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("name", PAIRS)
def test_every_destination_gets_what_its_source_held(layout, name):
    shape, axis = SHAPES[layout]
    caches = [torch.randn(shape).to(torch.bfloat16) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    for cache, copy in zip(caches, expected, strict=True):
        for source, target in PAIRS[name]:
            copy.select(axis, target).copy_(cache.select(axis, source))
    copy_blocks(caches, of_pairs(PAIRS[name]), block_axis=axis)
    for cache, copy in zip(caches, expected, strict=True):
        assert torch.equal(cache, copy)


@pytest.mark.parametrize("view", [lambda c: c[:, :, 0::2], lambda c: c[:, :, 1::2]])
def test_half_of_an_interleaved_cache_leaves_the_other_half_alone(view):
    cache = torch.randn(6, 4, 4, 24)
    before = cache.clone()
    copy_blocks([view(cache)], of_pairs([[0, 5], [5, 1]]))
    view(before)[[5, 1]] = view(before)[[0, 5]]
    assert torch.equal(cache, before)


def test_blocks_larger_than_a_program(monkeypatch):
    monkeypatch.setattr(module, "ELEMENTS", 64)
    cache = torch.randn(3, 5, 30)
    expected = cache[1].clone()
    copy_blocks([cache], of_pairs([[1, 2]]))
    assert torch.equal(cache[2], expected)


def test_without_scratch_a_chain_would_be_caught(monkeypatch):
    monkeypatch.setattr(module, "_sorted_out", lambda pairs, num_blocks: (pairs, pairs[:0]))
    cache = torch.arange(4.0).repeat_interleave(8).reshape(4, 8)
    copy_blocks([cache], of_pairs([[0, 1], [1, 2]]))
    assert cache[2, 0] == 0.0, "the interpreter runs programs in order, so block 1 was overwritten before it was read"


@pytest.mark.parametrize(
    "pairs,message",
    [
        (of_pairs([[0, 6]]), r"expected blocks 0 to 5, got \[6\]"),
        (of_pairs([[-1, 2]]), r"expected blocks 0 to 5, got \[-1\]"),
        (of_pairs([[0, 2], [1, 2]]), r"each destination once, got \[2, 2\]"),
        (torch.zeros(2, 3, dtype=torch.int64), "pairs: expected shape"),
        (torch.zeros(2, 2, dtype=torch.int32), "pairs: expected int64"),
    ],
)
def test_wrong_pairs_are_refused_before_anything_is_copied(pairs, message):
    cache = torch.randn(6, 4, 8)
    before = cache.clone()
    with pytest.raises(AttentionInputError, match=message):
        copy_blocks([cache], pairs)
    assert torch.equal(cache, before)


def test_blocks_that_are_scattered_too_widely_are_refused():
    cache = torch.randn(6, 4, 8, 10)[:, ::2, ::2, :5]
    with pytest.raises(AttentionInputError, match="evenly spaced runs"):
        copy_blocks([cache], of_pairs([[0, 1]]))
