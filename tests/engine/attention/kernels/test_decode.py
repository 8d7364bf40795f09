"""Decode attention in Triton's interpreter against float64, with NaN wherever nobody should read."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from engine.attention.checks import AttentionInputError
from engine.attention.kernels import decode, launch_decode, work
from engine.attention.kernels.launch_decode import decode_attention, decode_contiguous, decode_workspace, shape_of
from engine.attention.kernels.plan import plan_decode
from engine.attention.kernels.tuning import DecodeConfig, decode_config
from tests.engine.attention.kernels.pools import Case, assert_close

WHOLE = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=1, min_piece_tokens=32)
SPLIT = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=3, min_piece_tokens=32)
SPLIT_TWO_HEADS = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=6, min_piece_tokens=32)
TWO_TILES = DecodeConfig(block_n=16, num_warps=2, num_stages=2, programs=8, min_piece_tokens=32)


def paged(case, config, **options):
    k_cache, v_cache, block_table = case.paged(options.get("window", 0))
    return decode_attention(
        case.q, k_cache, v_cache, block_table, case.seq_lens,
        scale=case.scale, max_seq_len=case.max_seq_len, config=config, **options,
    )  # fmt: skip


def contiguous(case, config, **options):
    k, v, starts = case.contiguous()
    return decode_contiguous(
        case.q, k, v, starts, case.seq_lens,
        scale=case.scale, max_seq_len=case.max_seq_len, config=config, **options,
    )  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 64, 128, 256])
@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_any_block_size_gives_the_same_attention(block_size, config):
    case = Case([1, block_size % 97 + 30, 33], block_size=block_size)
    assert_close(paged(case, config), case.expected())


@pytest.mark.parametrize(
    "lengths,num_kv_heads,group,head_size,block_size,dtype,layout,config",
    [
        ([15, 64], 1, 1, 80, 16, torch.float16, "block_first", WHOLE),
        ([16, 31], 2, 1, 128, 8, torch.bfloat16, "interleaved", SPLIT),
        ([17, 97], 1, 4, 96, 32, torch.bfloat16, "kv_first", SPLIT),
        ([63, 65], 1, 5, 256, 64, torch.float32, "block_first", SPLIT),
        ([1, 129], 1, 8, 64, 128, torch.float16, "interleaved", WHOLE),
        ([100, 2], 1, 16, 80, 1, torch.float32, "kv_first", TWO_TILES),
        ([47, 48, 49], 1, 16, 128, 24, torch.float16, "block_first", TWO_TILES),
        ([255], 1, 5, 64, 256, torch.bfloat16, "kv_first", SPLIT),
        ([80], 1, 71, 64, 16, torch.float32, "kv_first", SPLIT),
        ([33], 3, 2, 32, 16, torch.float32, "interleaved", SPLIT),
    ],
)
def test_heads_lengths_types_and_layouts(lengths, num_kv_heads, group, head_size, block_size, dtype, layout, config):
    case = Case(lengths, (), num_kv_heads, group, head_size, block_size, dtype, layout)
    assert_close(paged(case, config), case.expected())


@pytest.mark.parametrize("config", [WHOLE, SPLIT, TWO_TILES])
@pytest.mark.parametrize("lengths", [[1, 95], [32, 33, 64], [161]])
def test_the_contiguous_twin(config, lengths):
    case = Case(lengths, dtype=torch.float16, head_size=80)
    assert_close(contiguous(case, config), case.expected())


@pytest.mark.parametrize("run", [paged, contiguous])
@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("window", [1, 16, 40, 1000])
def test_a_window_shows_the_last_tokens_only(run, config, window):
    case = Case([3, 70, 128])
    full = case.expected(window)
    for row, length in enumerate(case.lengths):  # what left the window may be gone
        case.keys[row][: max(0, length - window)] = torch.nan
        case.values[row][: max(0, length - window)] = torch.nan
    assert_close(run(case, config, window=window), full)


@pytest.mark.parametrize("run", [paged, contiguous])
@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_a_soft_cap_bounds_the_scores(run, soft_cap):
    case = Case([5, 70])
    case.q *= 8
    assert_close(run(case, SPLIT, soft_cap=soft_cap), case.expected(soft_cap=soft_cap))


def test_scores_of_ten_thousand_neither_overflow_nor_vanish():
    case = Case([90])
    case.q *= 3000
    assert_close(paged(case, SPLIT), case.expected(), times=20)  # an exponent of 1e4 has a float32 step of 1e-3


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("run", [paged, contiguous])
def test_rows_of_length_zero_give_zeros(run, config):
    case = Case([0, 70, 0, 3, 0])
    out = run(case, config, out=torch.full_like(case.q, torch.nan))
    assert torch.equal(out[[0, 2, 4]], torch.zeros_like(out[[0, 2, 4]]))
    assert_close(out, case.expected())


def test_batches_of_more_lengths_than_are_read_at_once(monkeypatch):
    monkeypatch.setattr(work, "LENGTHS", tl.constexpr(4))
    monkeypatch.setattr(work, "GROUPS", (1, 2))
    case = Case([3, 0, 70, 0, 1, 66, 1, 0, 40], group=1, head_size=16)
    assert_close(paged(case, SPLIT), case.expected())


@pytest.mark.parametrize("lengths", [[130, 130, 131], [130, 1, 190], [0, 0, 0]], ids=["even", "uneven", "empty"])
@pytest.mark.parametrize("whole_programs", [1, 3, 4])
def test_an_even_batch_that_fills_the_device_stays_whole(lengths, whole_programs):
    case = Case(lengths)
    assert_close(paged(case, replace(SPLIT, whole_programs=whole_programs)), case.expected())


def test_a_plan_is_made_once_for_all_layers():
    case = Case([130, 1, 0, 64])
    k_cache, v_cache, block_table = case.paged()
    shape = shape_of(case.q, 1, case.max_seq_len, case.block_size)
    plan = plan_decode(case.seq_lens, shape, SPLIT)
    options = {"scale": case.scale, "max_seq_len": case.max_seq_len, "plan": plan}
    for _ in range(2):
        out = decode_attention(case.q, k_cache, v_cache, block_table, case.seq_lens, **options)
        assert_close(out, case.expected())
    assert plan.items[:, 0].tolist().count(-1) == len(plan.items) - int(plan.seqs[:, 1].sum())


def test_the_items_of_a_plan_are_all_tiles_once():
    case = Case([130, 1, 0, 64, 500], group=1, head_size=16)
    plan = plan_decode(case.seq_lens, shape_of(case.q, 1, 512, 16), replace(SPLIT, programs=7))
    tiles = [[] for _ in case.lengths]
    for seq, tile, end, pieces in plan.items.tolist():
        if seq >= 0:
            tiles[seq] += range(tile, end)
            assert pieces == plan.seqs[seq, 1]
    assert tiles == [list(range(-(-length // 32))) for length in case.lengths]
    assert all(plan.items[first, 0] == seq for seq, first in enumerate(plan.seqs[:, 0].tolist()))
    order = list(dict.fromkeys(seq for seq in plan.items[:, 0].tolist() if seq >= 0))
    assert order == [4, 0, 3, 1, 2], "longest first"


def test_a_plan_of_another_call_is_refused():
    case = Case([130, 1])
    k_cache, v_cache, block_table = case.paged()
    plan = plan_decode(case.seq_lens, shape_of(case.q, 1, 512, case.block_size), SPLIT)
    with pytest.raises(AttentionInputError, match=r"plan: expected one for .*max_seq_len=130"):
        decode_attention(
            case.q, k_cache, v_cache, block_table, case.seq_lens, scale=1.0, max_seq_len=case.max_seq_len, plan=plan
        )


def test_lengths_may_change_after_the_bounds_are_fixed():
    """A captured graph is replayed with other lengths: only max_seq_len and the shapes are fixed."""
    case = Case([64, 160])
    k_cache, v_cache, block_table = case.paged()
    case.lengths, case.seq_lens = [3, 97], torch.tensor([3, 97], dtype=torch.int32)
    case.keys = [keys[:n] for keys, n in zip(case.keys, case.lengths, strict=True)]
    case.values = [values[:n] for values, n in zip(case.values, case.lengths, strict=True)]
    out = decode_attention(
        case.q, k_cache, v_cache, block_table, case.seq_lens, scale=case.scale, max_seq_len=160, config=SPLIT
    )
    assert_close(out, case.expected())


def test_out_and_workspace_are_used_and_nothing_beside_them_is_written():
    case = Case([100, 33], num_kv_heads=2)
    wide = torch.full((2, 10, 96), torch.nan)  # canaries: heads 0 and 9, dimensions 64..95
    out = wide[:, 1:9, :64]
    floats = decode_workspace(shape_of(case.q, 2, 100, 16), SPLIT_TWO_HEADS)
    workspace = torch.full((floats + 7,), torch.nan)
    got = paged(case, SPLIT_TWO_HEADS, out=out, workspace=workspace)
    assert got is out
    assert_close(out, case.expected())
    assert wide[:, [0, 9]].isnan().all()
    assert wide[:, :, 64:].isnan().all()
    assert not workspace[:floats].isnan().all()
    assert workspace[floats:].isnan().all()


def test_the_default_rule_answers_for_any_shape():
    case = Case([70, 5])
    assert_close(paged(case, None), case.expected())
    assert_close(contiguous(case, None), case.expected())
    shape = shape_of(torch.zeros(300, 40, 256), 40, 65536, 16)
    assert decode_config(shape).block_n >= 16


@triton.jit
def unclamped_offsets(
    entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES: tl.constexpr, CLAMP: tl.constexpr
):
    return entries.to(tl.int64) * kv_b + ((start + rows) % block_size) * kv_t


@triton.jit
def unmasked(q, k, v, m, n, acc, visible, scale, cap, M: tl.constexpr, C: tl.constexpr, U: tl.constexpr):
    return launch_decode_attend(q, k, v, m, n, acc, visible, scale, cap, False, C, U)


launch_decode_attend = decode.attend


@pytest.mark.parametrize("name,planted", [("row_offsets", unclamped_offsets), ("attend", unmasked)])
def test_a_kernel_that_reads_past_the_length_is_caught(monkeypatch, name, planted):
    case = Case([33, 50])
    assert_close(paged(case, SPLIT), case.expected())
    monkeypatch.setattr(decode, name, planted)
    with pytest.raises(AssertionError, match="differs"):
        assert_close(paged(case, SPLIT), case.expected())


GOOD = Case([20, 40], num_kv_heads=2)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"q": GOOD.q[:1]}, "one query token for each of the 2 sequences, got 1"),
        ({"q": GOOD.q[:, :7]}, "multiple of the 2 KV heads, got 7"),
        ({"q": GOOD.q.half()}, "q: expected float32, got float16"),
        ({"q": GOOD.q.transpose(1, 2).contiguous().transpose(1, 2)}, "stride 1"),
        ({"seq_lens": GOOD.seq_lens.long()}, "seq_lens: expected int32, got int64"),
        ({"block_table": torch.zeros(2, 2, dtype=torch.int32)}, "expected rows for max_seq_len=40"),
        ({"block_table": torch.zeros(3, 9, dtype=torch.int32)}, "seq_lens: expected shape"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"window": -1}, "window"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"out": torch.zeros(2, 8, 32)}, "out: expected shape"),
        ({"workspace": torch.zeros(4)}, "workspace: expected at least"),
    ],
)
def test_wrong_arguments_are_refused_before_a_launch(monkeypatch, change, message):
    launched = []
    monkeypatch.setattr(launch_decode, "decode_kernel", launched)
    k_cache, v_cache, block_table = GOOD.paged()
    good = {"q": GOOD.q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table}
    good |= {"seq_lens": GOOD.seq_lens, "scale": 1.0, "max_seq_len": 40, "config": SPLIT_TWO_HEADS}
    with pytest.raises(AttentionInputError, match=message):
        decode_attention(**good | change)


def test_a_head_size_without_whole_vectors_is_refused():
    with pytest.raises(AttentionInputError, match="head size"):
        paged(Case([4], head_size=36), SPLIT)


def test_the_twin_refuses_lengths_beyond_its_rows():
    case = Case([20])
    k, v, starts = case.contiguous(gap=0)
    with pytest.raises(AttentionInputError, match="max_seq_len: expected 0 to the 20 rows of k, got 21"):
        decode_contiguous(case.q, k, v, starts, case.seq_lens, scale=1.0, max_seq_len=21)
