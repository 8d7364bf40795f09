"""Block copies in Triton's interpreter: whatever the pairs, sources are those from before the call."""

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels import copy_blocks as module
from engine.attention.kernels.copy_blocks import PROGRAM_BYTES, Runs, copy_blocks, copy_kernel, copy_options

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


class OnDevice(torch.Tensor):
    """Pairs that say they are on a device: nothing about them is looked at before the launch."""

    is_cuda = True


class Launches:
    """Stands in for the kernel and keeps the grids."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return copy_kernel[grid]


@pytest.fixture
def launches(monkeypatch):
    seen = Launches()
    monkeypatch.setattr(module, "copy_kernel", seen)
    return seen


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


@pytest.mark.parametrize("view", [lambda c: c, lambda c: c[:, 1:4, 3:8]])
def test_blocks_larger_than_a_program(monkeypatch, launches, view):
    monkeypatch.setattr(module, "PROGRAM_BYTES", 64)
    cache = torch.randn(3, 5, 30)
    expected = cache.clone()
    view(expected)[2] = view(cache)[1]
    copy_blocks([view(cache)], of_pairs([[1, 2]]))
    assert torch.equal(cache, expected)
    assert launches.grids[0][1] * launches.grids[0][2] > 1


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("kind", [torch.Tensor, OnDevice])
def test_disjoint_pairs_take_one_launch_a_cache(layout, kind, launches):
    shape, axis = SHAPES[layout]
    caches = [torch.randn(shape) for _ in range(3)]
    expected = [cache.clone() for cache in caches]
    for cache in expected:
        cache.index_copy_(axis, torch.tensor([0, 4, 2]), cache.index_select(axis, torch.tensor([3, 3, 1])))
    pairs = torch.tensor([[3, 0, -1], [3, 4, -1], [1, 2, -1]])[:, :2].as_subclass(kind)
    copy_blocks(caches, pairs, block_axis=axis, disjoint=True)
    assert all(torch.equal(cache, copy) for cache, copy in zip(caches, expected, strict=True))
    assert len(launches.grids) == 3


@pytest.mark.parametrize("disjoint,number", [(True, 1), (False, 2)])
def test_pairs_on_the_device_go_through_scratch_unless_the_caller_promises(disjoint, number, launches):
    """Block 2 tells: of a chain it gets what block 1 held, and what block 0 held where the promise is broken."""
    cache = torch.arange(4.0).repeat_interleave(8).reshape(4, 8)
    copy_blocks([cache], of_pairs([[0, 1], [1, 2]]).as_subclass(OnDevice), disjoint=disjoint)
    assert cache[2, 0] == (0.0 if disjoint else 1.0)
    assert len(launches.grids) == number


@pytest.mark.parametrize("name", ["a chain", "a cycle", "onto itself"])
def test_a_broken_promise_is_refused_where_it_is_seen(name):
    cache = torch.randn(6, 8)
    before = cache.clone()
    with pytest.raises(AttentionInputError, match="expected no source that is a destination, got"):
        copy_blocks([cache], of_pairs(PAIRS[name]), disjoint=True)
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    "shape,axis,part,expected",
    [
        ((2, 9, 16, 8, 128), 1, slice(None), (2, 16_384)),
        ((9, 2, 16, 8, 128), 0, slice(None), (1, 32_768)),
        ((9, 2, 16, 8, 128), 0, (slice(None), 1), (1, 16_384)),
        ((9, 16, 16, 80), 0, (slice(None), slice(None), slice(1, None, 2)), (128, 80)),
        ((9, 16, 576), 0, slice(None), (1, 9_216)),
    ],
)
def test_every_number_that_bounds_a_vector_is_divisible_by_16(shape, axis, part, expected):
    """What the compiler is told of a launch; a lone run's stride of 1 once made all accesses two bytes wide."""
    runs = Runs.of(torch.empty(shape, dtype=torch.bfloat16, device="meta")[part], axis)
    assert (runs.count, runs.run) == expected
    assert all(number % 16 == 0 for number in (runs.block_stride, runs.stride, runs.run))


@pytest.mark.parametrize(
    "count,run,element_bytes,expected",
    [
        (1, 16_384, 2, (1, 8_192, 8)),
        (128, 128, 2, (64, 128, 8)),
        (128, 80, 2, (64, 128, 8)),
        (1, 64, 4, (1, 64, 1)),
        (3, 64, 4, (4, 64, 1)),
        (1, 1, 1, (1, 1, 1)),
    ],
)
def test_a_program_takes_as_much_as_there_is_up_to_its_share(count, run, element_bytes, expected):
    options = copy_options(count, run, element_bytes)
    assert tuple(options.values()) == expected
    assert options["BLOCK_R"] * options["BLOCK_E"] * element_bytes <= PROGRAM_BYTES


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
