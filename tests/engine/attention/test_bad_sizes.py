"""Sizes, lengths and blocks that cannot be are refused where they are first said: layers, caches, builders."""

import math

import pytest
import torch

from engine.attention import (
    AttentionInputError,
    KVLayout,
    LayerConfig,
    MetadataBuilder,
    allocate_kv_caches,
    get_backend,
    resolve_block_size,
)

NOT_COUNTS = [-1, True, 2.0, math.nan, None, "2"]


@pytest.mark.parametrize(
    "values",
    [
        *({name: value} for name in ("num_heads", "num_kv_heads", "head_size") for value in [*NOT_COUNTS, 0]),
        *({"window": value} for value in [-1, True, 1.5, math.nan, None]),
        *({"kv_lora_rank": value} for value in [*NOT_COUNTS, 17]),
        *({name: value} for name in ("scale", "soft_cap") for value in [-1.0, True, math.nan, math.inf, None, "1"]),
        {"scale": 0},
    ],
)
def test_a_layer_that_cannot_be(values):
    with pytest.raises(AttentionInputError, match=r"expected .*, got"):
        LayerConfig(**{"num_heads": 4, "num_kv_heads": 2, "head_size": 16, "scale": 0.25, **values})


@pytest.mark.parametrize("backend", ["reference", "reference-flash-attn", "reference-flash-mla", "triton"])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("size", [*NOT_COUNTS, 0])
def test_a_cache_shape_is_made_of_counts(backend, place, size):
    sizes = [4, 64, 1, 64]
    sizes[place] = size
    with pytest.raises(AttentionInputError, match=r"expected .*, got"):
        get_backend(backend).get_kv_cache_shape(*sizes)


@pytest.mark.parametrize("num_layers", [*NOT_COUNTS, 0])
def test_layers_are_counted(num_layers):
    with pytest.raises(AttentionInputError, match="num_layers: expected a whole number of at least 1"):
        allocate_kv_caches(
            get_backend("reference"), LayerConfig(4, 2, 16, 0.25), num_layers=num_layers, num_blocks=4, block_size=16,
            dtype=torch.float32,
        )  # fmt: skip


@pytest.mark.parametrize("backend", ["reference", "reference-pallas"])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("number", [-1, 0, True, 64.0, math.nan, "64"])
def test_a_block_size_is_resolved_from_counts(backend, place, number):
    asked = [64, 4096, 8]
    asked[place] = number
    with pytest.raises(AttentionInputError, match=r"expected .*, got"):
        resolve_block_size(get_backend(backend), *asked)


@pytest.mark.parametrize("rank", [-1, 0, 9, True, 1.5])
def test_a_part_of_a_latent_is_a_count(rank):
    with pytest.raises(AttentionInputError, match="kv_lora_rank"):
        KVLayout.LATENT.split(torch.zeros(4, 4, 8), rank)


@pytest.mark.parametrize("block_size", [*NOT_COUNTS, 0])
def test_a_builder_has_a_block_size(block_size):
    with pytest.raises(AttentionInputError, match="block_size: expected a whole number of at least 1"):
        MetadataBuilder(block_size)


@pytest.mark.parametrize(
    "query_lens,seq_lens,tables",
    [
        ([1.5], [3], [[0]]),
        ([True], [3], [[0]]),
        (["1"], [3], [[0]]),
        ([math.nan], [3], [[0]]),
        (1, [3], [[0]]),
        ([[1]], [[3]], [[0]]),
        ([1], [3.0], [[0]]),
        ([1], [None], [[0]]),
        ([1], [3], [[0.5]]),
        ([1], [3], [[None]]),
        ([1], [3], [[-1]]),  # nobody would notice that its token is not written
        ([1], [3], [[2**31]]),
        ([1], [3], [[2**63]]),
        ([1], [3], [[2**70]]),
        ([1], [17], [[0, -5]]),
    ],
)
def test_a_builder_takes_whole_lengths_and_blocks(query_lens, seq_lens, tables):
    with pytest.raises(AttentionInputError, match=r"expected .*got"):
        MetadataBuilder(16).build(query_lens, seq_lens, tables)


@pytest.mark.parametrize("num_padded_seqs", NOT_COUNTS)
def test_padding_is_counted(num_padded_seqs):
    with pytest.raises(AttentionInputError, match="num_padded_seqs: expected"):
        MetadataBuilder(16).build([1], [3], [[0]], num_padded_seqs=num_padded_seqs)
