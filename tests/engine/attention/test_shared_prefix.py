"""Shared prefixes are plain attention, in float64: whoever shares how much, with NaN in every slot of nobody."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import AttentionInputError, AttentionLayer, LayerConfig, MetadataBuilder, get_backend
from engine.attention.layouts import KVLayout
from engine.attention.reference import paged_attention
from engine.attention.reference_shared import shared_prefix_attention
from engine.attention.shared_prefix import Group, SharedPrefixes, packed
from tests.engine.attention.kernels.shared_cases import SharedCase


def close(got, expected):
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def shared_attention(case, soft_cap=0.0, shared=None):
    k_cache, v_cache, table = case.paged(unread=False)
    shared = shared or case.shared()
    return shared_prefix_attention(
        case.q, k_cache, v_cache, table, case.seq_lens, shared, scale=case.scale, soft_cap=soft_cap
    )


@st.composite
def cases(draw):
    """Any partition of up to six rows, any shared length that they have, 0 to 20 own tokens."""
    block_size = draw(st.sampled_from([1, 3, 16]))
    label = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    blocks = [draw(st.integers(0, 40 // block_size)) for _ in range(3)]
    lengths = [draw(st.integers(0, 20)) + (blocks[g] * block_size if g < 3 else 0) for g in label]
    groups = [([row for row, g in enumerate(label) if g == index], blocks[index]) for index in range(3)]
    return SharedCase(
        [group for group in groups if group[0]],
        lengths,
        num_kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 2, 5])),
        head_size=draw(st.sampled_from([4, 16, 24])),
        block_size=block_size,
        dtype=torch.float64,
        layout=draw(st.sampled_from(["kv_first", "block_first", "interleaved"])),
        seed=draw(st.integers(0, 9)),
    )


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([0.0, 2.0]))
def test_sharing_is_plain_attention(case, soft_cap):
    out, lse = shared_attention(case, soft_cap)
    close(out, case.expected(soft_cap=soft_cap))
    k_cache, v_cache, table = case.paged(unread=False)
    _, plain = paged_attention(
        case.q, k_cache, v_cache, table, case.query_start_loc, case.seq_lens, scale=case.scale, soft_cap=soft_cap
    )
    close(lse, plain)


def test_of_one_row_too_many_shared_or_one_of_anothers_blocks_is_refused():
    case = SharedCase([((0, 1), 2)], [50, 33], dtype=torch.float64)
    with pytest.raises(AttentionInputError, match=r"48 shared tokens in the first blocks of row 1, .*a length of 33"):
        shared_attention(case, shared=SharedPrefixes.of([Group((0, 1), 3)], 2, 16))
    apart = SharedCase([], [50, 33], dtype=torch.float64)
    with pytest.raises(AttentionInputError, match="32 shared tokens in the first blocks of row 1"):
        shared_attention(apart, shared=case.shared())
    overlapping = SharedPrefixes(case.shared().members, torch.tensor([[0, 2, 16], [1, 1, 16]], dtype=torch.int32))
    with pytest.raises(AttentionInputError, match="places side by side"):
        shared_attention(case, shared=overlapping)
    with pytest.raises(AttentionInputError, match="each of the rows 0 to 1 once"):
        shared_attention(case, shared=SharedPrefixes(torch.zeros(2, dtype=torch.int32), case.shared().groups))


def test_groups_are_packed_side_by_side_and_rows_of_none_keep_their_order():
    members, groups = packed([Group((4, 1), 3), Group((0, 5, 2), 1)], 8, 3, 16)
    assert members.tolist() == [4, 1, 0, 5, 2, 3, 6, 7]
    assert groups.tolist() == [[0, 2, 48], [2, 3, 16], [0, 0, 0]]


@pytest.mark.parametrize(
    "groups,match",
    [
        ([Group((0, 1), 1), Group((1, 2), 1)], "each of the rows 0 to 3 once"),
        ([Group((0, 4), 1)], "each of the rows 0 to 3 once"),
        ([Group((0,), 1)] * 3, "at most 2, got 3"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups, match):
    with pytest.raises(AttentionInputError, match=match):
        packed(groups, 4, 2, 16)


@pytest.mark.parametrize("groups", [torch.zeros(0, 3, dtype=torch.int32), torch.zeros(3, 6, dtype=torch.int32)[:, ::2]])
def test_a_table_of_groups_is_one_dense_array(groups):
    with pytest.raises(AttentionInputError, match="groups"):
        SharedPrefixes(torch.zeros(2, dtype=torch.int32), groups)


def layer_step(backend, layout, window=0, query_lens=(1, 1, 1)):
    """(with `shared`, without) of one layer's step; rows 0 and 1 share 2 blocks of 16."""
    case = SharedCase([((0, 1), 2)], [40, 60, 21], num_kv_heads=2, group=2, head_size=16, layout=layout.name.lower())
    chosen = get_backend(backend)
    k_cache, v_cache, table = case.paged(unread=False)
    shape = chosen.get_kv_cache_shape(len(k_cache), 16, 2, 16, layout)
    cache = torch.zeros(shape)
    for mine, held in zip(layout.split(cache), (k_cache, v_cache), strict=True):
        mine.copy_(held)
    step = MetadataBuilder(16).build(query_lens, case.lengths, [row.tolist() for row in table.clamp(min=0)])
    config = LayerConfig(4, 2, 16, case.scale, window=window)
    q = torch.randn(sum(query_lens), 4, 16, generator=torch.Generator().manual_seed(1))
    shared = SharedPrefixes.of(case.groups, 3, 16)
    if step.num_decodes < 3:
        shared = SharedPrefixes.of(case.groups, step.num_decodes, 16)
    layer = AttentionLayer(chosen, config, cache, layout)
    return [layer.impl.attend(q, cache, one) for one in (dataclasses.replace(step, shared=shared), step)]


@pytest.mark.parametrize("layout", [KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_layer_gives_the_same_with_and_without(backend, layout):
    assert get_backend(backend).capabilities().shared_prefixes
    with_shared, without = layer_step(backend, layout)
    torch.testing.assert_close(with_shared, without, rtol=1e-5, atol=1e-5)
    assert not torch.equal(with_shared, without), "the parts were never computed apart"


@pytest.mark.parametrize("options", [{"window": 20}, {"query_lens": (1, 1, 5)}], ids=["window", "chunks"])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_with_a_window_or_beside_chunks_a_layer_takes_the_plain_way(backend, options):
    with_shared, without = layer_step(backend, KVLayout.KV_FIRST, **options)
    assert torch.equal(with_shared, without)


def test_metadata_refuses_groups_of_another_number_of_rows():
    step = MetadataBuilder(16).build([1, 1], [40, 50], [[1, 2, 3], [1, 2, 3, 4]])
    with pytest.raises(AttentionInputError, match=r"shared members: expected shape \[2\], got \[3\]"):
        dataclasses.replace(step, shared=SharedPrefixes.of([], 3, 16))
