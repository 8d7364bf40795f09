"""FP8 caches in Triton's interpreter: attention over what the stored numbers stand for, and writes bit for bit."""

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.launch import (
    decode_attention,
    decode_contiguous,
    mixed_attention,
    prefill_attention,
    prefill_contiguous,
    shared_prefix_attention,
    write_kv,
)
from engine.attention.kernels.launch_hopper import HopperConfig, supports_shapes
from engine.attention.kernels.tuning import DecodeConfig, PrefillConfig, WriteConfig
from engine.attention.kernels.tuning_shared import SharedConfig
from engine.attention.kv_scales import FP8, KVScales, dequantized, quantized
from engine.attention.reference import paged_attention
from engine.attention.reference import write_kv as specified_write
from engine.attention.shared_prefix import SharedPrefixes
from tests.engine.attention.kernels.fp8_pools import Fp8Case
from tests.engine.attention.kernels.pools import Case, assert_close, poisoned_caches

WHOLE = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=1, min_piece_tokens=32)
SPLIT = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=3, min_piece_tokens=32)
ROWS = PrefillConfig(block_m=16, block_n=32, num_warps=4, num_stages=2, use_tma=False)
TMA = PrefillConfig(block_m=16, block_n=32, num_warps=4, num_stages=2, use_tma=True)


def decode(pool, config, **options):
    case = pool.case
    return decode_attention(
        case.q, pool.k_cache, pool.v_cache, pool.block_table, case.seq_lens, scale=case.scale,
        max_seq_len=case.max_seq_len, scales=pool.scales, config=config, **options,
    )  # fmt: skip


def twin(pool, config, **options):
    case, ((k, v), starts) = pool.case, pool.rows
    return decode_contiguous(
        case.q, k, v, starts, case.seq_lens, scale=case.scale, max_seq_len=case.max_seq_len, scales=pool.scales,
        config=config, **options,
    )  # fmt: skip


def prefill(pool, config, **options):
    case = pool.case
    return prefill_attention(
        case.q, pool.k_cache, pool.v_cache, pool.block_table, case.query_start_loc, case.seq_lens, scale=case.scale,
        max_query_len=case.max_query_len, max_seq_len=case.max_seq_len, scales=pool.scales, config=config, **options,
    )  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 64, 128, 256])
def test_decode_over_any_block_size(block_size):
    pool = Fp8Case(Case([1, block_size % 97 + 30, 33], block_size=block_size, head_size=32))
    assert_close(decode(pool, SPLIT), pool.case.expected())


@pytest.mark.parametrize(
    "lengths,num_kv_heads,group,head_size,block_size,dtype,layout,config",
    [
        ([15, 64], 1, 1, 80, 16, torch.float16, "block_first", WHOLE),
        ([16, 31], 2, 1, 128, 8, torch.bfloat16, "interleaved", SPLIT),
        ([17, 97], 2, 4, 96, 32, torch.bfloat16, "kv_first", SPLIT),
        ([63, 65], 1, 5, 256, 64, torch.float32, "block_first", SPLIT),
        ([100, 2], 1, 16, 16, 1, torch.float32, "interleaved", SPLIT),
        ([47, 49], 1, 71, 8, 24, torch.float16, "kv_first", WHOLE),
    ],
)
def test_decode_heads_types_and_layouts(lengths, num_kv_heads, group, head_size, block_size, dtype, layout, config):
    pool = Fp8Case(Case(lengths, (), num_kv_heads, group, head_size, block_size, dtype, layout))
    assert_close(decode(pool, config), pool.case.expected())


@pytest.mark.parametrize("run", [decode, twin])
@pytest.mark.parametrize("window,soft_cap", [(16, 0.0), (0, 0.5), (40, 30.0)])
def test_decode_with_a_window_and_a_soft_cap(run, window, soft_cap):
    pool = Fp8Case(Case([3, 70], num_kv_heads=2, head_size=32), window=window if run is decode else 0)
    out = run(pool, SPLIT, window=window, soft_cap=soft_cap)
    assert_close(out, pool.case.expected(window, soft_cap))


@pytest.mark.parametrize("size", [3e-4, 1.0, 3e4])
def test_a_query_of_any_size_meets_float16_products(size):
    """bfloat16 has a wider range than the float16 of the products."""
    case = Case([40], dtype=torch.bfloat16, head_size=32)
    case.q *= 3 * size
    case.scale /= size
    pool = Fp8Case(case)
    assert_close(decode(pool, WHOLE), case.expected())
    assert_close(prefill(pool, ROWS), case.expected())


def test_rows_of_length_zero_give_zeros():
    pool = Fp8Case(Case([0, 70, 0], head_size=32))
    out = decode(pool, SPLIT, out=torch.full_like(pool.case.q, torch.nan))
    assert torch.equal(out[[0, 2]], torch.zeros_like(out[[0, 2]]))
    assert_close(out, pool.case.expected())


@pytest.mark.parametrize(
    "head_size,block_size,dtype,layout,config",
    [
        (32, 32, torch.float32, "kv_first", TMA),
        (64, 16, torch.bfloat16, "block_first", ROWS),
        (80, 24, torch.float16, "interleaved", ROWS),
        (16, 1, torch.float32, "kv_first", ROWS),
    ],
)
def test_prefill(head_size, block_size, dtype, layout, config):
    pool = Fp8Case(Case([40, 33, 5], [9, 33, 1], 2, 2, head_size, block_size, dtype, layout))
    assert_close(prefill(pool, config), pool.case.expected())


def test_prefill_with_a_window_a_soft_cap_and_without_blocks():
    case = Case([70, 5], [20, 5], 2, 2, 32)
    pool = Fp8Case(case, window=16)
    assert_close(prefill(pool, ROWS, window=16, soft_cap=3.0), case.expected(16, 3.0))
    (k, v), starts = pool.rows
    out = prefill_contiguous(
        case.q, k, v, starts, case.query_start_loc, case.seq_lens, scale=case.scale, max_query_len=20, max_seq_len=70,
        scales=pool.scales, config=ROWS,
    )  # fmt: skip
    assert_close(out, case.expected())


def test_a_mixed_step():
    case = Case([50, 33, 40], [1, 1, 12], 2, 2, 32)
    pool = Fp8Case(case)
    out = mixed_attention(
        case.q, pool.k_cache, pool.v_cache, pool.block_table, case.query_start_loc, case.seq_lens, num_decodes=2,
        scale=case.scale, max_query_len=12, max_seq_len=50, scales=pool.scales,
    )  # fmt: skip
    assert_close(out, case.expected())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_prefix(dtype):
    case = Case([40, 52, 33], (), 2, 2, 32, dtype=dtype)
    for name in ("keys", "values"):
        first, *others = getattr(case, name)
        setattr(case, name, [first, *(torch.cat((first[:32], other[32:])) for other in others)])
    pool = Fp8Case(case)
    table = pool.block_table.clone()
    table[1:, :2] = table[0, :2]
    shared = SharedPrefixes(torch.tensor([2, 0, 1], dtype=torch.int32), torch.tensor([[0, 3, 32]], dtype=torch.int32))
    config = SharedConfig(16, 16, num_warps=4, num_stages=1, programs=4, min_piece_tokens=16, own=SPLIT)
    for cache in (pool.k_cache, pool.v_cache):
        cache.view(torch.uint8)[pool.block_table[1:, :2].flatten().long()] = 0x7F  # nobody reads the others' copies
    out = shared_prefix_attention(
        case.q, pool.k_cache, pool.v_cache, table, case.seq_lens, shared, scale=case.scale, max_seq_len=52,
        scales=pool.scales, config=config,
    )  # fmt: skip
    assert_close(out, case.expected())


def test_kernels_and_specification_agree_on_the_same_pool():
    case = Case([50, 33], [7, 1], 2, 2, 32)
    pool = Fp8Case(case)
    tables = pool.block_table, case.query_start_loc, case.seq_lens
    specified, _ = paged_attention(
        case.q, pool.k_cache, pool.v_cache, *tables, scale=case.scale, scales=pool.scales
    )  # fmt: skip
    assert_close(prefill(pool, ROWS), specified)
    assert_close(specified, case.expected())


def hard_numbers(dtype):
    """[T, KH, D]: every number of E4M3, every middle between two, their neighbours in float32, and what saturates."""
    numbers = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    middles = (numbers[:-1] + numbers[1:]) / 2
    edges = torch.tensor([448.0, 464.0, 465.0, 1e6, torch.inf, torch.nan, 2**-10, 2**-10 + 2**-33, 2**-20, 0.0])
    tensor = torch.cat((numbers, middles, middles.nextafter(middles + 1), middles.nextafter(middles - 1), edges))
    tensor = torch.cat((tensor, -tensor))
    return torch.nn.functional.pad(tensor, (0, -len(tensor) % 128)).view(-1, 4, 32).to(dtype)


def same_bits(got, expected):
    both_nan = got.float().isnan() & expected.float().isnan()
    return bool(((got.view(torch.uint8) == expected.view(torch.uint8)) | both_nan).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "layout,block_size,config",
    [
        ("kv_first", 16, None),
        ("interleaved", 24, WriteConfig(tokens=4, block_elements=64, num_warps=1)),
        ("block_first", 1, None),
    ],
)
@pytest.mark.parametrize("k_scale,v_scale", [(1.0, 0.37), ([0.5, 1.0, 3.0, 1e-3], [2.0, 0.1, 1.0, 7.0])])
def test_writes_are_the_specification_bit_for_bit(dtype, layout, block_size, config, k_scale, v_scale):
    k = hard_numbers(dtype)
    scales = KVScales.of(k_scale, v_scale, 4)
    slots = torch.randperm(len(k) + 40)[: len(k)]
    slots[::5] = -1
    num_blocks = -(-(len(k) + 40) // block_size)
    mine, theirs = (poisoned_caches(layout, num_blocks, block_size, 4, 32, FP8, "cpu") for _ in range(2))
    write_kv(k, k.flip(0), *mine, slots, scales=scales, config=config)
    specified_write(k, k.flip(0), *theirs, slots, scales)
    for got, expected in zip(mine, theirs, strict=True):
        assert same_bits(got.contiguous(), expected.contiguous())
    kept = slots >= 0
    read = theirs[0][slots[kept] // block_size, slots[kept] % block_size]
    assert same_bits(read, quantized(k[kept], scales.k))


def test_what_is_read_is_within_a_sixteenth_of_what_was_written():
    """Three bits behind the point: half a step is a sixteenth of a number; below 2^-6, 2^-10 of the scale."""
    x = torch.randn(64, 4, 32) * torch.exp2(torch.randint(-8, 8, (64, 4, 32)).float())
    scales = KVScales.fitted(x, x)
    error = (dequantized(quantized(x, scales.k), scales.k) - x).abs()
    assert (error <= torch.maximum(x.abs() / 16, scales.k[:, None] * 2**-10) * 1.0001).all()


def test_the_kernel_of_hopper_does_not_take_fp8():
    case = Case([40], [8], 1, 4, 64, 16, torch.bfloat16)
    pool = Fp8Case(case)
    assert not supports_shapes(case.q, pool.k_cache, pool.v_cache, 16)
    with pytest.raises(AttentionInputError, match="hopper prefill: expected"):
        prefill(pool, HopperConfig())


POOL = Fp8Case(Case([20], head_size=32))
ONES = KVScales.of(1.0, 1.0, 1)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"scales": None}, "scales: expected KVScales for a cache of torch.float8_e4m3fn, got None"),
        ({"scales": KVScales.of(1.0, 1.0, 2)}, "k scales: expected shape"),
        ({"scales": KVScales(ONES.k, ONES.v.double())}, "v scales: expected float32, got float64"),
        ({"q": POOL.case.q.double()}, "q: expected float16 or bfloat16 or float32, got float64"),
        ({"k_cache": POOL.k_cache.float(), "v_cache": POOL.v_cache.float()}, "expected None for a cache of .*float32"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    case = POOL.case
    good = {"q": case.q, "k_cache": POOL.k_cache, "v_cache": POOL.v_cache, "block_table": POOL.block_table}
    good |= {"seq_lens": case.seq_lens, "scale": 1.0, "max_seq_len": 20, "scales": POOL.scales, "config": WHOLE}
    with pytest.raises(AttentionInputError, match=message):
        decode_attention(**good | change)


@pytest.mark.parametrize(
    "k,v,message",
    [
        ([1.0], [1.0, 1.0], "k scale: expected one number, or one a KV head \\(2\\), got 1"),
        (1.0, 0.0, "v scale: expected finite numbers above 0, got 0.0"),
        (float("nan"), 1.0, "k scale: expected finite numbers above 0, got nan"),
    ],
)
def test_scales_that_cannot_be_are_refused(k, v, message):
    with pytest.raises(AttentionInputError, match=message):
        KVScales.of(k, v, 2)
