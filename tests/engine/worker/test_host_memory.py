"""Blocks to host memory and back, and copies beside them, held against plain indexing.

With PAGELAB_GPU=1 the same on a CUDA device, through pinned memory.
"""

from __future__ import annotations

from random import Random

import pytest

torch = pytest.importorskip("torch", reason="KV memory is made of torch tensors")

from engine.attention.layouts import KVLayout  # noqa: E402
from engine.core.batch import Batch  # noqa: E402
from engine.core.decode_set import DecodeSet  # noqa: E402
from engine.worker import host_memory  # noqa: E402
from engine.worker.host_memory import HostMemory, runs  # noqa: E402
from tests.engine.worker.tiny import DEVICE, decoder_over  # noqa: E402

LAYOUTS = (KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED)


def memory_of(layout, *, num_blocks=12, host_blocks=9, block_size=4):
    _, kv = decoder_over(num_blocks, block_size, layout=layout, host_blocks=host_blocks)
    for layer, cache in enumerate(kv.caches):
        cache.copy_(torch.arange(cache.numel(), device=cache.device).view_as(cache) + 1e6 * layer)
    return kv


def blocks_of(kv):
    """[layer][block], as copies on the host."""
    axis = kv.layout.block_axis
    return [[cache.select(axis, block).cpu().clone() for block in range(cache.shape[axis])] for cache in kv.caches]


def batch_of(to_host=(), to_device=(), copies=()):
    batch = Batch(DecodeSet(4), (), copies=copies)
    batch.to_host, batch.to_device = to_host, to_device
    return batch


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_batch_moves_is_where_it_should_be(layout, at_once, monkeypatch):
    """Out, back and copies of one batch, in that order: a block that was swapped out is written by what follows."""
    kv = memory_of(layout)
    monkeypatch.setattr(host_memory, "STAGING_BYTES", at_once * kv.host.blocks[0].nbytes)
    kv.host = HostMemory(kv.caches, layout.block_axis, 9)
    kv.host.blocks.fill_(-1)
    before = blocks_of(kv)
    kv.move_blocks(batch_of([(3, 7), (4, 2), (1, 8), (9, 0)]))
    kv.move_blocks(batch_of([(5, 3)], [(7, 5), (7, 4), (8, 3)], [(5, 9), (4, 1), (1, 10), (9, 2)]))
    after = blocks_of(kv)
    source = {**{b: b for b in range(12)}, 5: 3, 4: 3, 3: 1, 9: 3, 1: 3, 10: 1, 2: 9}
    for layer in range(2):
        for block in range(12):
            assert torch.equal(after[layer][block], before[layer][source[block]]), (layer, block)
        for block, host in ((3, 7), (4, 2), (1, 8), (9, 0), (5, 3)):
            assert torch.equal(kv.host.blocks[host, layer], before[layer][block])
    assert (kv.host.blocks[[1, 4, 5, 6]] == -1).all()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_goes_out_comes_back(seed):
    rng = Random(seed)
    kv = memory_of(rng.choice(LAYOUTS), num_blocks=40, host_blocks=40)
    before = blocks_of(kv)
    moved, there = rng.sample(range(40), 25), rng.sample(range(40), 25)
    kv.move_blocks(batch_of(list(zip(moved, there, strict=True))))
    for cache in kv.caches:
        cache.fill_(float("nan"))
    back = rng.sample(range(40), 25)
    kv.move_blocks(batch_of((), list(zip(there, back, strict=True))))
    after = blocks_of(kv)
    for layer in range(2):
        for source, target in zip(moved, back, strict=True):
            assert torch.equal(after[layer][target], before[layer][source])


@pytest.mark.skipif(DEVICE != "cuda", reason="without a device there is nothing to pin for")
def test_host_memory_is_pinned():
    assert memory_of(KVLayout.KV_FIRST).host.blocks.is_pinned()


def test_without_host_memory_nothing_is_swapped():
    _, kv = decoder_over(4, 4)
    assert kv.host is None
    with pytest.raises(ValueError, match="host_blocks=0"):
        kv.move_blocks(batch_of([(1, 0)]))


def test_runs_are_stretches_of_adjacent_ids():
    assert runs([]) == []
    assert runs([4]) == [(0, 1, 4)]
    assert runs([1, 2, 3, 5, 6, 6, 9]) == [(0, 3, 1), (3, 5, 5), (5, 6, 6), (6, 7, 9)]
