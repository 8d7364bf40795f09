"""The reference against attention by its definition, in pools where every slot and entry nobody reads is poison."""

import dataclasses
import math

import pytest
import torch

from engine.attention import AttentionInputError, AttentionLayer, KVLayout, LayerConfig, get_backend
from engine.attention.builders import MetadataBuilder, PallasBuilder
from engine.attention.reference import TILE, copy_blocks, paged_attention, write_kv
from tests.engine.attention.scenes import TOLERANCE, Scene, attend_by_definition, batch, step, worst

KINDS = ("decode", "prefill", "chunked", "mixed")
WITH_KV = [
    ("reference", KVLayout.KV_FIRST),
    ("reference", KVLayout.BLOCK_FIRST),
    ("reference", KVLayout.INTERLEAVED),
    ("reference-pallas", KVLayout.INTERLEAVED),
]


def config_of(shape: tuple[int, int, int], window: int = 0, soft_cap: float = 0.0) -> LayerConfig:
    heads, kv_heads, size = shape
    return LayerConfig(heads, kv_heads, size, scale=size**-0.5, window=window, soft_cap=soft_cap)


def scene_of(kind, block_size, shape=(4, 2, 8), dtype=torch.float64, seed=0) -> Scene:
    return Scene(batch(kind, block_size), block_size, (*shape, shape[2]), dtype, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16])
@pytest.mark.parametrize("backend,layout", WITH_KV)
def test_every_layout_equals_the_definition(backend, layout, block_size, kind):
    shape = (4, 2, 8)
    error, cache_is_right = step(scene_of(kind, block_size, shape), backend, config_of(shape), layout)
    assert error < TOLERANCE[torch.float64]
    assert cache_is_right


@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize(
    "backend,block_size,shape", [("reference-flash-attn", 16, (4, 4, 16)), ("reference-flashinfer", 4, (2, 1, 64))]
)
def test_the_fields_shapes_equal_the_definition(backend, block_size, shape, kind):
    error, cache_is_right = step(scene_of(kind, block_size, shape), backend, config_of(shape))
    assert error < TOLERANCE[torch.float64]
    assert cache_is_right


@pytest.mark.parametrize("shape", [(3, 3, 8), (4, 1, 8), (5, 1, 4), (10, 2, 4), (8, 1, 4), (16, 1, 2), (2, 2, 1)])
def test_every_group_of_heads_equals_the_definition(shape):
    error, _ = step(scene_of("mixed", 4, shape), "reference", config_of(shape))
    assert error < TOLERANCE[torch.float64]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window,soft_cap", [(1, 0.0), (5, 0.0), (8, 0.0), (1000, 0.0), (0, 0.7), (6, 2.0)])
@pytest.mark.parametrize("backend,layout", WITH_KV[:1] + WITH_KV[3:])
def test_window_and_soft_cap_equal_the_definition(backend, layout, window, soft_cap, kind):
    shape = (4, 2, 8)
    config = config_of(shape, window, soft_cap)
    error, cache_is_right = step(scene_of(kind, 4, shape), backend, config, layout)
    assert error < TOLERANCE[torch.float64]
    assert cache_is_right


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_are_within_their_rounding(dtype):
    shape = (4, 2, 16)
    error, _ = step(scene_of("mixed", 8, shape, dtype), "reference", config_of(shape))
    assert error < TOLERANCE[dtype]


def test_scores_of_ten_thousand_are_exact_enough():
    shape = (2, 1, 8)
    config = LayerConfig(*shape, scale=3e3)
    error, _ = step(scene_of("mixed", 4, shape), "reference", config)
    assert error < 1e-9


def test_tiles_of_queries_and_tokens_do_not_show():
    length, shape = TILE + 5, (1, 1, 2)
    scene = Scene([(length, length)], 16, (*shape, 2))
    config = config_of(shape)
    cache = scene.poisoned("reference", KVLayout.KV_FIRST)
    scene.fill(cache, KVLayout.KV_FIRST, step=True)
    step_of = scene.metadata(MetadataBuilder(16))
    q, _, _ = scene.new_tokens()
    out, lse = paged_attention(
        q, cache[0], cache[1], step_of.block_table, step_of.query_start_loc, step_of.seq_lens, scale=config.scale
    )
    for position in (0, TILE - 1, TILE, length - 1):
        asked = scene.queries[0][position]
        wanted = attend_by_definition(asked, scene.keys[0], scene.values[0], position, scale=config.scale)
        assert worst(out[position], wanted) < TOLERANCE[torch.float64]
        scores = [float((asked * key).sum()) * config.scale for key in scene.keys[0][: position + 1]]
        assert float(lse[position]) == pytest.approx(math.log(sum(map(math.exp, scores))), rel=1e-12)


def test_pallas_never_looks_at_rows_from_num_seqs_on():
    """Its tensors have room for the largest batch; what lies behind is left from other steps."""
    shape = (4, 2, 8)
    scene, config = scene_of("mixed", 4, shape), config_of(shape)
    cache = scene.poisoned("reference-pallas", KVLayout.INTERLEAVED)
    scene.fill(cache, KVLayout.INTERLEAVED)
    step_of = scene.metadata(PallasBuilder(4))
    behind = torch.full((2,), 10**6, dtype=torch.int32)
    no_blocks = torch.full((2, step_of.block_tables.shape[1]), -3, dtype=torch.int32)
    roomy = dataclasses.replace(
        step_of,
        block_tables=torch.cat((step_of.block_tables, no_blocks)),
        context_lens=torch.cat((step_of.context_lens, behind)),
        query_start_loc=torch.cat((step_of.query_start_loc, behind)),
    )
    q, k, v = scene.new_tokens()
    out = AttentionLayer(get_backend("reference-pallas"), config, cache)(q, k, v, roomy)
    assert worst(out, scene.expected(config)) < TOLERANCE[torch.float64]


def test_writing_and_reading_apart_are_the_step():
    shape = (4, 2, 8)
    scene, config = scene_of("mixed", 4, shape), config_of(shape)
    cache = scene.poisoned("reference", KVLayout.KV_FIRST)
    scene.fill(cache, KVLayout.KV_FIRST)
    step_of, (q, k, v) = scene.metadata(MetadataBuilder(4)), scene.new_tokens()
    impl = AttentionLayer(get_backend("reference"), config, cache).impl
    impl.write(k, v, cache, step_of)
    assert worst(impl.attend(q, cache, step_of), scene.expected(config)) < TOLERANCE[torch.float64]


def test_a_padded_row_sees_nothing_and_gives_zero():
    made = MetadataBuilder(2).build([1], [3], [[1, 0]], num_padded_seqs=2)
    cache = torch.full((2, 2, 2, 1, 4), math.nan)
    cache[:, 1], cache[:, 0, 0] = 1.0, 1.0
    q = torch.ones(3, 2, 4)
    addresses = made.block_table, made.query_start_loc, made.seq_lens
    out = torch.full((3, 2, 4), math.nan)
    result, lse = paged_attention(q, cache[0], cache[1], *addresses, scale=0.5, out=out)
    assert result is out
    assert torch.equal(out[0], torch.ones(2, 4))
    assert torch.equal(out[1:], torch.zeros(2, 2, 4))
    assert torch.equal(lse[1:], torch.full((2, 2), -math.inf))


def test_the_write_skips_slots_below_zero_and_touches_nothing_else():
    k_cache, v_cache = torch.full((2, 3, 4, 1, 2), math.nan).unbind(0)
    k, v = torch.arange(8.0).view(4, 1, 2), 10 + torch.arange(8.0).view(4, 1, 2)
    write_kv(k, v, k_cache, v_cache, torch.tensor([9, -1, 0, -5]))
    for cache, given in ((k_cache, k), (v_cache, v)):
        expected = torch.full((12, 1, 2), math.nan)
        expected[9], expected[0] = given[0], given[2]
        assert torch.equal(cache.reshape(12, 1, 2).nan_to_num(99.0), expected.nan_to_num(99.0))


def test_a_slot_beyond_the_cache_is_refused_before_anything_is_written():
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 2).unbind(0)
    ones = torch.ones(2, 1, 2)
    with pytest.raises(AttentionInputError, match=r"expected slots below 3 x 4 = 12, got 12"):
        write_kv(ones, ones, k_cache, v_cache, torch.tensor([0, 12]))
    assert not k_cache.any()


@pytest.mark.parametrize("layout", list(KVLayout))
def test_copies_of_one_batch_read_all_sources_first(layout):
    caches = [torch.randn(layout.shape(4, 2, 1, 3)) for _ in range(2)]
    before = [cache.movedim(layout.block_axis, 0).clone() for cache in caches]
    copy_blocks(caches, torch.tensor([[0, 1], [1, 2], [2, 0]]), layout)
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache.movedim(layout.block_axis, 0), old[[2, 0, 1, 3]])


@pytest.mark.parametrize("pairs,got", [([[0, 4]], "0 to 4"), ([[-1, 0]], "-1 to 0"), ([[0, 2], [1, 2]], "each dest")])
def test_impossible_copies_are_refused_before_any(pairs, got):
    cache = torch.randn(4, 2, 3)
    before = cache.clone()
    with pytest.raises(AttentionInputError, match=got):
        copy_blocks([cache], torch.tensor(pairs), KVLayout.LATENT)
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    "starts,lengths,table,message",
    [
        ([0, 2], [1], [[0]], r"row 0: expected .*got 2 and 1"),
        ([1, 2], [3], [[0]], r"query_start_loc: expected 0 to at most 2"),
        ([0, 3], [4], [[0]], r"query_start_loc: expected 0 to at most 2, got \[0, 3\]"),
        ([0, 2], [5], [[0]], r"expected entries for the 5 tokens of row 0, got 1 blocks of 4"),
        ([0, 2], [5], [[0, 3]], r"expected blocks 0 to 2 for tokens 0 to 4 of row 0, got \[0, 3\]"),
        ([0, 2], [5], [[-1, 0]], r"got \[-1, 0\]"),
    ],
)
def test_lengths_and_blocks_that_cannot_be_are_refused(starts, lengths, table, message):
    cache = torch.zeros(3, 4, 1, 2)
    starts, lengths, table = (torch.tensor(x, dtype=torch.int32) for x in (starts, lengths, table))
    with pytest.raises(AttentionInputError, match=message):
        paged_attention(torch.zeros(2, 1, 2), cache, cache, table, starts, lengths, scale=1.0)
