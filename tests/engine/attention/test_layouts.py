"""Shapes of caches, and K and V as views of one storage."""

import pytest
import torch

from engine.attention import AttentionInputError, KVLayout
from tests.engine.attention.scenes import entry

WITH_KV = (KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED)


@pytest.mark.parametrize(
    "layout,shape",
    [
        (KVLayout.KV_FIRST, (2, 7, 16, 8, 128)),
        (KVLayout.BLOCK_FIRST, (7, 2, 16, 8, 128)),
        (KVLayout.INTERLEAVED, (7, 16, 16, 128)),
    ],
)
def test_shapes_are_the_fields(layout, shape):
    assert layout.shape(7, 16, 8, 128) == shape
    assert KVLayout.LATENT.shape(7, 64, 1, 576) == (7, 64, 576)


@pytest.mark.parametrize("layout", WITH_KV)
def test_k_and_v_are_disjoint_views_that_cover_the_cache(layout):
    cache = torch.zeros(layout.shape(3, 4, 2, 5))
    k, v = layout.split(cache)
    assert k.shape == v.shape == (3, 4, 2, 5)
    assert k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
    assert k.stride(-1) == v.stride(-1) == 1
    k.fill_(1.0)
    v.add_(2.0)
    assert sorted(cache.unique().tolist()) == [1.0, 2.0]
    assert (k == 1.0).all()


@pytest.mark.parametrize("layout", WITH_KV)
def test_a_view_shows_the_token_where_the_layout_says(layout):
    cache = torch.randn(layout.shape(3, 4, 2, 5))
    k, v = layout.split(cache)
    for block in range(3):
        for offset in range(4):
            here, there = entry(cache, layout, block, offset)
            assert torch.equal(k[block, offset], here)
            assert torch.equal(v[block, offset], there)


def test_pallas_interleaves_the_heads():
    cache = torch.arange(6.0).view(1, 1, 6, 1)
    k, v = KVLayout.INTERLEAVED.split(cache)
    assert k.flatten().tolist() == [0, 2, 4]
    assert v.flatten().tolist() == [1, 3, 5]


def test_v_of_a_latent_is_its_first_elements():
    cache = torch.randn(2, 3, 8)
    k, v = KVLayout.LATENT.split(cache, 6)
    assert torch.equal(k, cache[:, :, None])
    assert torch.equal(v, cache[:, :, None, :6])
    v.zero_()
    assert not cache[..., :6].any()
    assert cache[..., 6:].all()


@pytest.mark.parametrize("layout", list(KVLayout))
def test_block_ids_count_the_block_axis(layout):
    heads = 1 if layout is KVLayout.LATENT else 2
    cache = torch.zeros(layout.shape(7, 5, heads, 3))
    assert cache.shape[layout.block_axis] == 7
    assert layout.pages(cache) == (7, 5)


@pytest.mark.parametrize("sizes", [(0, 16, 1, 8), (1, 0, 1, 8), (1, 16, 0, 8), (1, 16, 1, -8)])
@pytest.mark.parametrize("layout", list(KVLayout))
def test_sizes_below_one_are_refused(layout, sizes):
    with pytest.raises(AttentionInputError, match=r"expected a whole number of at least 1, got (0|-8)"):
        layout.shape(*sizes)


@pytest.mark.parametrize(
    "layout,shape,message",
    [
        (KVLayout.KV_FIRST, (3, 4, 4, 1, 8), r"2 entries in axis 0, got shape \(3, 4, 4, 1, 8\)"),
        (KVLayout.BLOCK_FIRST, (2, 4, 4, 1, 8), r"2 entries in axis 1, got shape"),
        (KVLayout.INTERLEAVED, (4, 4, 3, 8), "an even number of heads in axis 2, got shape"),
        (KVLayout.LATENT, (4, 4, 8), r"kv_lora_rank of 1 to 8 \(asked for 0\), got"),
        (KVLayout.KV_FIRST, (4, 4, 4, 8), r"expected 5 axes \(2, NB, BS, KH, D\), got 4 axes \[4, 4, 4, 8\]"),
    ],
)
def test_a_cache_of_another_layout_is_refused(layout, shape, message):
    with pytest.raises(AttentionInputError, match=message):
        layout.split(torch.zeros(shape))
