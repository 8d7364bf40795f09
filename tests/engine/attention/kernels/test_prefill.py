"""Prefill attention in Triton's interpreter against float64, with NaN wherever nobody should read."""

import pytest
import torch
import triton
import triton.language as tl

from engine.attention.checks import AttentionInputError
from engine.attention.kernels import launch_prefill, prefill, work
from engine.attention.kernels.launch_prefill import prefill_attention, prefill_contiguous
from engine.attention.kernels.tuning import PrefillConfig
from tests.engine.attention.kernels.pools import Case, assert_close

SMALL = PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2, use_tma=False)
LARGE = PrefillConfig(block_m=64, block_n=32, num_warps=4, num_stages=2, use_tma=False)
TMA = PrefillConfig(block_m=32, block_n=16, num_warps=4, num_stages=2, use_tma=True)


def paged(case, config, **options):
    k_cache, v_cache, block_table = case.paged(options.get("window", 0))
    return prefill_attention(
        case.q, k_cache, v_cache, block_table, case.query_start_loc, case.seq_lens,
        scale=case.scale, max_query_len=case.max_query_len, max_seq_len=case.max_seq_len, config=config, **options,
    )  # fmt: skip


def contiguous(case, config, **options):
    k, v, starts = case.contiguous()
    return prefill_contiguous(
        case.q, k, v, starts, case.query_start_loc, case.seq_lens,
        scale=case.scale, max_query_len=case.max_query_len, max_seq_len=case.max_seq_len, config=config, **options,
    )  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 64, 128, 256])
def test_any_block_size_gives_the_same_attention(block_size):
    case = Case([40, 9], [9, 9], block_size=block_size)  # a chunk behind a context, and a whole prompt
    assert_close(paged(case, SMALL), case.expected())


@pytest.mark.parametrize(
    "lengths,query_lens,num_kv_heads,group,head_size,block_size,dtype,layout,config",
    [
        ([32], [32], 1, 1, 80, 16, torch.float16, "block_first", SMALL),
        ([33, 1], [33, 1], 1, 4, 128, 8, torch.bfloat16, "interleaved", LARGE),
        ([31, 70], [7, 8], 1, 4, 96, 32, torch.bfloat16, "kv_first", SMALL),
        ([64, 65], [6, 7], 1, 5, 256, 64, torch.float32, "block_first", SMALL),
        ([3, 97], [3, 4], 1, 8, 64, 128, torch.float16, "interleaved", LARGE),
        ([66], [5], 1, 16, 80, 1, torch.float32, "kv_first", LARGE),
        ([20, 50], [2, 5], 2, 2, 64, 24, torch.float16, "block_first", SMALL),
        ([47, 30, 2], [16, 0, 2], 1, 2, 128, 16, torch.float16, "kv_first", TMA),
        ([40, 35], [10, 3], 2, 4, 64, 32, torch.bfloat16, "interleaved", TMA),
        ([65], [17], 2, 1, 64, 64, torch.float32, "block_first", TMA),
    ],
)
def test_heads_lengths_types_and_layouts(
    lengths, query_lens, num_kv_heads, group, head_size, block_size, dtype, layout, config
):
    case = Case(lengths, query_lens, num_kv_heads, group, head_size, block_size, dtype, layout)
    assert_close(paged(case, config), case.expected())


@pytest.mark.parametrize("config", [SMALL, LARGE, TMA])
@pytest.mark.parametrize("lengths,query_lens", [([12, 47], [12, 6]), ([33], [9])])
def test_the_contiguous_twin(config, lengths, query_lens):
    case = Case(lengths, query_lens, dtype=torch.float16)
    assert_close(contiguous(case, config), case.expected())


@pytest.mark.parametrize("run", [paged, contiguous])
@pytest.mark.parametrize("window", [1, 7, 32, 50])
@pytest.mark.parametrize("config", [SMALL, TMA], ids=["pointers", "tma"])
def test_a_window_shows_the_last_tokens_only(run, config, window):
    case = Case([70], [11], group=2)
    expected = case.expected(window)
    seen = max(0, 70 - 11 + 1 - window)
    case.keys[0][:seen] = case.values[0][:seen] = torch.nan
    assert_close(run(case, config, window=window), expected)


@pytest.mark.parametrize("run", [paged, contiguous])
def test_a_soft_cap_bounds_the_scores(run):
    case = Case([40], [12])
    case.q *= 8
    assert_close(run(case, SMALL, soft_cap=2.0), case.expected(soft_cap=2.0))


def test_scores_of_ten_thousand_neither_overflow_nor_vanish():
    case = Case([40], [12])
    case.q *= 3000
    assert_close(paged(case, SMALL), case.expected(), times=20)  # an exponent of 1e4 has a float32 step of 1e-3


def test_padded_rows_get_zeros_and_tokens_of_nobody_are_left_alone():
    case = Case([0, 20], [1, 6])
    case.q = torch.cat([case.q, torch.zeros(2, *case.q.shape[1:])])
    out = paged(case, SMALL, out=torch.full_like(case.q, 7.0))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.equal(out[7:], torch.full_like(out[7:], 7.0))
    assert_close(out[:7], case.expected())


def test_batches_of_more_rows_than_are_read_at_once(monkeypatch):
    monkeypatch.setattr(work, "LENGTHS", tl.constexpr(4))
    case = Case([3, 0, 20, 5, 1, 40], [3, 0, 5, 0, 1, 2], group=1)
    assert_close(paged(case, SMALL), case.expected())


def test_out_may_be_a_view_and_nothing_beside_it_is_written():
    case = Case([40, 33], [9, 2], num_kv_heads=2, head_size=80)
    wide = torch.full((11, 10, 96), torch.nan)  # canaries: heads 0 and 9, dimensions 80..95
    out = wide[:, 1:9, :80]
    assert paged(case, SMALL, out=out) is out
    assert_close(out, case.expected())
    assert wide[:, [0, 9]].isnan().all()
    assert wide[:, :, 80:].isnan().all()


def test_the_default_rule_answers():
    case = Case([70, 5], [20, 5])
    assert_close(paged(case, None), case.expected())
    assert_close(contiguous(case, None), case.expected())


@triton.jit
def unclamped_offsets(
    entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES: tl.constexpr, CLAMP: tl.constexpr
):
    return entries.to(tl.int64) * kv_b + ((start + rows) % block_size) * kv_t


@triton.jit
def one_too_many(low, high, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    whole_end = (low + 1) // BLOCK_N + 1
    return 0, 0, 0, whole_end, tl.maximum(whole_end, (high + BLOCK_N - 1) // BLOCK_N)


@pytest.mark.parametrize("name,planted", [("row_offsets", unclamped_offsets), ("_stretches", one_too_many)])
def test_a_kernel_that_reads_past_the_length_is_caught(monkeypatch, name, planted):
    case = Case([41, 20], [9, 20])
    assert_close(paged(case, SMALL), case.expected())
    monkeypatch.setattr(prefill, name, planted)
    with pytest.raises(AssertionError, match="differs"):
        assert_close(paged(case, SMALL), case.expected())


GOOD = Case([20, 40], [4, 8], num_kv_heads=2)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"query_start_loc": GOOD.query_start_loc[:2]}, "query_start_loc: expected shape"),
        ({"query_start_loc": GOOD.query_start_loc.long()}, "query_start_loc: expected int32"),
        ({"max_query_len": -1}, "max_query_len"),
        ({"max_seq_len": 10_000}, "expected rows for max_seq_len=10000"),
        ({"q": GOOD.q.half()}, "q: expected float32, got float16"),
        ({"config": PrefillConfig(2, 32, 4, 2, False)}, "at most block_m=2 query heads a KV head, got 4"),
    ],
)
def test_wrong_arguments_are_refused_before_a_launch(monkeypatch, change, message):
    monkeypatch.setattr(launch_prefill, "prefill_kernel", None)
    k_cache, v_cache, block_table = GOOD.paged()
    good = {"q": GOOD.q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table, "scale": 1.0}
    good |= {"query_start_loc": GOOD.query_start_loc, "seq_lens": GOOD.seq_lens, "config": SMALL}
    good |= {"max_query_len": 8, "max_seq_len": 40}
    with pytest.raises(AttentionInputError, match=message):
        prefill_attention(**good | change)
