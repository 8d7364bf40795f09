"""Every refused tensor is named with what was expected and what was got, and nothing has changed."""

import pytest
import torch

from engine.attention import AttentionInputError, AttentionLayer, KVLayout, LayerConfig, get_backend
from engine.attention.checks import (
    check_caches,
    check_heads,
    check_inner_stride,
    check_queries,
    check_scale,
    check_shape,
    check_table,
    check_write,
)

NB, BS, KH, D = 3, 4, 2, 8


def caches(dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, NB, BS, KH, D, dtype=dtype).unbind(0)


@pytest.mark.parametrize(
    "k_cache,v_cache,message",
    [
        (torch.zeros(3, 4, 16), None, r"k_cache: expected 4 axes \[NB, BS, KH, D\], got 3 axes \[3, 4, 16\]"),
        (None, torch.zeros(3, 5, 2, 8), r"v_cache: expected shape \[3, 4, 2, DV\], got \[3, 5, 2, 8\]"),
        (torch.zeros(3, 4, 2, 8, dtype=torch.int32), None, "k_cache: expected float64 or float32 .*, got int32"),
        (None, torch.zeros(3, 4, 2, 8).half(), "v_cache: expected float32, got float16"),
        (torch.zeros(3, 4, 8, 2).mT, None, r"k_cache: expected stride 1 in the innermost axis .*, got stride 2"),
        (None, torch.zeros(3, 4, 2, 16)[..., ::2], r"v_cache: expected stride 1 .* got stride 2"),
        (None, torch.zeros(3, 4, 2, 8, device="meta"), "v_cache: expected on cpu as k_cache, got meta"),
    ],
)
def test_caches(k_cache, v_cache, message):
    k, v = caches()
    check_caches(k, v)
    with pytest.raises(AttentionInputError, match=message):
        check_caches(k if k_cache is None else k_cache, v if v_cache is None else v_cache)


@pytest.mark.parametrize(
    "q,out,message",
    [
        (torch.zeros(5, 4, 9), None, r"q: expected shape \[T, H, 8\], got \[5, 4, 9\]"),
        (torch.zeros(5, 32), None, r"q: expected shape \[T, H, 8\], got \[5, 32\]"),
        (torch.zeros(5, 3, 8), None, "expected a number of query heads that is a multiple of the 2 KV heads, got 3"),
        (torch.zeros(5, 4, 8).bfloat16(), None, "q: expected float32, got bfloat16"),
        (torch.zeros(5, 8, 4).mT, None, "q: expected stride 1"),
        (torch.zeros(5, 4, 8), torch.zeros(4, 4, 8), r"out: expected shape \[5, 4, 8\], got \[4, 4, 8\]"),
        (torch.zeros(5, 4, 8), torch.zeros(5, 4, 8).half(), "out: expected float32, got float16"),
        (torch.zeros(5, 4, 8), torch.zeros(5, 8, 4).mT, "out: expected stride 1"),
        (torch.zeros(5, 4, 8, device="meta"), None, "q: expected on cpu as k_cache, got meta"),
    ],
)
def test_queries(q, out, message):
    check_queries(torch.zeros(5, 4, 8), *caches(), torch.zeros(5, 4, 8))
    with pytest.raises(AttentionInputError, match=message):
        check_queries(q, *caches(), out)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"k": torch.zeros(5, 2, 9)}, r"k: expected shape \[T, 2, 8\], got \[5, 2, 9\]"),
        ({"v": torch.zeros(4, 2, 8)}, r"v: expected shape \[5, 2, 8\], got \[4, 2, 8\]"),
        ({"v": torch.zeros(5, 2, 8).double()}, "v: expected float32, got float64"),
        ({"k": torch.zeros(5, 8, 2).mT}, "k: expected stride 1"),
        ({"slot_mapping": torch.zeros(4, dtype=torch.int64)}, r"slot_mapping: expected shape \[5\], got \[4\]"),
        ({"slot_mapping": torch.zeros(5, dtype=torch.int32)}, "slot_mapping: expected int64, got int32"),
    ],
)
def test_writes(change, message):
    k_cache, v_cache = caches()
    given = {"k": torch.zeros(5, 2, 8), "v": torch.zeros(5, 2, 8), "slot_mapping": torch.zeros(5, dtype=torch.int64)}
    check_write(**given, k_cache=k_cache, v_cache=v_cache)
    with pytest.raises(AttentionInputError, match=message):
        check_write(**{**given, **change}, k_cache=k_cache, v_cache=v_cache)


@pytest.mark.parametrize(
    "table,lengths,longest,message",
    [
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32), 1, "block_table: expected int32, got float32"),
        (torch.zeros(6, dtype=torch.int32), None, 1, r"block_table: expected shape \[S, max_blocks\], got \[6\]"),
        (None, torch.zeros(3, dtype=torch.int32), 1, r"seq_lens: expected shape \[2\], got \[3\]"),
        (None, None, 13, "expected rows for max_seq_len=13 .*, got 3 blocks of 4 = 12 slots"),
        (None, None, -1, "max_seq_len: expected a whole number of at least 0, got -1"),
    ],
)
def test_tables(table, lengths, longest, message):
    fine = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    check_table(*fine, 4, 12)
    with pytest.raises(AttentionInputError, match=message):
        check_table(fine[0] if table is None else table, fine[1] if lengths is None else lengths, 4, longest)


@pytest.mark.parametrize("scale,window,cap", [(0.0, 0, 0.0), (-1.0, 0, 0.0), (float("nan"), 0, 0.0), (1.0, -1, 0.0)])
def test_scales_and_windows_that_make_no_sense(scale, window, cap):
    with pytest.raises(AttentionInputError, match=r"(scale|window): expected .*, got"):
        check_scale(scale, window, cap)


@pytest.mark.parametrize("cap", [-1.0, float("inf"), float("nan")])
def test_soft_caps_that_make_no_sense(cap):
    with pytest.raises(AttentionInputError, match=r"soft_cap: expected .*, got"):
        check_scale(1.0, 0, cap)


@pytest.mark.parametrize("heads,kv_heads", [(3, 2), (0, 1), (1, 2), (2, 0)])
def test_heads_that_do_not_divide(heads, kv_heads):
    with pytest.raises(AttentionInputError, match=f"got {heads}"):
        check_heads(heads, kv_heads)


def test_letters_match_any_size_and_one_element_needs_no_stride():
    check_shape("x", torch.zeros(7, 3), ("T", 3))
    check_inner_stride("x", torch.zeros(4, 2)[:, ::2])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"query": torch.zeros(2, 4, 9)}, r"query: expected shape \[2, 4, 8\], got \[2, 4, 9\]"),
        ({"query": torch.zeros(3, 4, 8)}, r"query: expected shape \[2, 4, 8\], got \[3, 4, 8\]"),
        ({"query": torch.zeros(2, 2, 8)}, r"query: expected shape \[2, 4, 8\], got \[2, 2, 8\]"),
        ({"key": torch.ones(2, 2, 8).double()}, "k: expected float32, got float64"),
        ({"out": torch.zeros(1, 4, 8)}, r"out: expected shape \[2, 4, 8\], got \[1, 4, 8\]"),
    ],
)
@pytest.mark.parametrize("name", ["reference", "reference-pallas", "triton"])
def test_a_refused_step_has_written_nothing(name, change, message):
    chosen = get_backend(name)
    cache = torch.zeros(chosen.get_kv_cache_shape(NB, BS, KH, D))
    layer = AttentionLayer(chosen, LayerConfig(4, 2, D, 1.0), cache)
    metadata = chosen.get_builder_cls()(BS).build([2], [2], [[1]])
    given = {"query": torch.zeros(2, 4, D), "key": torch.ones(2, 2, D), "value": torch.ones(2, 2, D)}
    with pytest.raises(AttentionInputError, match=message):
        layer(**{**given, **change}, metadata=metadata)
    assert not cache.any()


def test_a_bad_table_is_found_before_the_write():
    cache = torch.zeros(KVLayout.KV_FIRST.shape(NB, BS, KH, D))
    layer = AttentionLayer(get_backend("reference"), LayerConfig(4, 2, D, 1.0), cache)
    metadata = get_backend("reference").get_builder_cls()(BS).build([2], [6], [[1, 0]])
    metadata.block_table[0, 0] = NB
    with pytest.raises(AttentionInputError, match=r"expected blocks 0 to 2 for tokens 0 to 5 of row 0, got \[3, 0\]"):
        layer(torch.zeros(2, 4, D), torch.ones(2, 2, D), torch.ones(2, 2, D), metadata)
    assert not cache.any()
