"""Every kernel on a CUDA device within 5e-3 of a float32 reference, in pairs of everything that changes an address.

    PAGELAB_GPU=1 python -m pytest -n 8 --dist loadgroup tests/engine/attention/kernels/test_gpu_grid.py

Each batch holds all the lengths at once: 1, a block and a tile with their neighbours, and 64k. Pools are poisoned.
"""

import pytest
import torch
import triton

from engine.attention.kernels.launch import (
    copy_blocks,
    decode_attention,
    decode_contiguous,
    mixed_attention,
    prefill_attention,
    prefill_contiguous,
    write_kv,
)
from engine.attention.kernels.tuning import DecodeConfig, MixedConfig, PrefillConfig
from tests.engine.attention.kernels.pairwise import pairwise
from tests.engine.attention.kernels.pools import Case, poisoned_caches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]

BOUND = 5e-3
TILE = 64
FACTORS = {
    "block_size": (1, 8, 16, 24, 32, 64, 128, 256),
    "head_size": (64, 80, 96, 128, 256),
    "group": (1, 4, 5, 8, 16),
    "dtype": (torch.float16, torch.bfloat16),
    "layout": ("kv_first", "block_first", "interleaved"),
}
DECODE = pairwise(FACTORS | {"cut": ("rule", "split", "whole", "contiguous")})
PREFILL = pairwise(FACTORS | {"cut": ("rule", "tma", "pointers", "contiguous")})
HOPPER = pairwise(
    {
        "block_size": (8, 16, 24, 32, 48, 64, 128, 256),
        "group": (1, 4, 5, 8, 16),
        "dtype": FACTORS["dtype"],
        "layout": FACTORS["layout"],
        "cut": ("paged", "contiguous"),
        "block_n": (64, 128),
        "dynamic": (False, True),
        "ping_pong": (False, True),
    }
)
DECODE_CUTS = {
    "split": DecodeConfig(block_n=64, num_warps=4, num_stages=3, programs=528, min_piece_tokens=128),
    "whole": DecodeConfig(block_n=64, num_warps=4, num_stages=3, programs=1, min_piece_tokens=64),
}
PREFILL_CUTS = {
    "tma": PrefillConfig(block_m=64, block_n=32, num_warps=4, num_stages=2, use_tma=True),
    "pointers": PrefillConfig(block_m=64, block_n=32, num_warps=4, num_stages=2, use_tma=False),
}


def hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    """Workers share the device: what one test cached, another may need."""
    yield
    torch.cuda.empty_cache()


def named(row):
    return "-".join(str(value).removeprefix("torch.") for value in row.values())


def edges(block_size, *, longest=65_536):
    around = {1, longest, longest - 1}
    for size in (block_size, TILE, 4 * TILE):
        around |= {size - 1, size, size + 1}
    return sorted(around - {0})


def of_row(row, lengths, query_lens=(), **more):
    factors = {name: value for name, value in row.items() if name != "cut"}
    return Case(lengths, query_lens, num_kv_heads=2, device="cuda", **factors, **more)


def assert_within_bound(case, out, expected):
    """Relative error of every sequence by itself, in the Frobenius norm; zero where zero is expected."""
    for row, queries in enumerate(case.query_lens):
        first = int(case.query_start_loc[row])
        got, wanted = (x[first : first + queries].float() for x in (out, expected))
        error = (got - wanted).norm() / wanted.norm().clamp(min=1e-6)
        assert error <= BOUND, f"sequence {row} of {case.lengths[row]} tokens: relative error {error:.2e}"


def decode(case, config, run="paged", **options):
    options |= {"scale": case.scale, "max_seq_len": case.max_seq_len, "config": config}
    if run == "contiguous":
        k, v, starts = case.contiguous()
        return decode_contiguous(case.q, k, v, starts, case.seq_lens, **options)
    k_cache, v_cache, block_table = case.paged(options.get("window", 0))
    return decode_attention(case.q, k_cache, v_cache, block_table, case.seq_lens, **options)


def prefill(case, config, run="paged", **options):
    options |= {"scale": case.scale, "max_seq_len": case.max_seq_len, "max_query_len": case.max_query_len}
    options["config"] = config
    if run == "contiguous":
        k, v, starts = case.contiguous()
        return prefill_contiguous(case.q, k, v, starts, case.query_start_loc, case.seq_lens, **options)
    k_cache, v_cache, block_table = case.paged(options.get("window", 0))
    return prefill_attention(case.q, k_cache, v_cache, block_table, case.query_start_loc, case.seq_lens, **options)


@pytest.mark.parametrize("row", DECODE, ids=named)
def test_decode(row):
    case = of_row(row, [0, *edges(row["block_size"])])
    out = decode(case, DECODE_CUTS.get(row["cut"]), row["cut"])
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize("row", PREFILL, ids=named)
def test_prefill(row):
    lengths = edges(row["block_size"], longest=4097)
    whole_prompts = [*lengths, 65_536, 0]
    queries = [*lengths, 33, 1]
    case = of_row(row, whole_prompts, queries)
    out = prefill(case, PREFILL_CUTS.get(row["cut"]), row["cut"])
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.skipif(not hopper(), reason="not compute capability 9")
@pytest.mark.parametrize("row", HOPPER, ids=named)
def test_prefill_of_hopper(row):
    from engine.attention.kernels.launch_hopper import HopperConfig

    switches = {name: row[name] for name in ("block_n", "dynamic", "ping_pong")}
    row = {name: value for name, value in row.items() if name not in switches} | {"head_size": 128}
    lengths = edges(row["block_size"], longest=4097)
    case = of_row(row, [*lengths, 65_536, 0], [*lengths, 33, 1])
    config = HopperConfig(stages=2 if switches["block_n"] == 128 else 4, **switches)
    out = prefill(case, config, row["cut"])
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize("run", ["paged", "contiguous"])
@pytest.mark.parametrize("window,soft_cap", [(100, 0.0), (0, 20.0), (1000, 20.0)])
def test_window_and_soft_cap(run, window, soft_cap):
    lengths = [1, 99, 100, 101, 3000]
    case = Case(lengths, dtype=torch.bfloat16, head_size=128, device="cuda")
    out = decode(case, None, run, window=window, soft_cap=soft_cap)
    assert_within_bound(case, out, case.expected(window, soft_cap, torch.float32))
    case = Case(lengths, [1, 50, 100, 2, 700], dtype=torch.bfloat16, head_size=128, device="cuda")
    out = prefill(case, None, run, window=window, soft_cap=soft_cap)
    assert_within_bound(case, out, case.expected(window, soft_cap, torch.float32))


@pytest.mark.parametrize("overlap", ["none", "prefill_first", "decode_first"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block_size,layout", [(16, "kv_first"), (64, "block_first"), (128, "interleaved")])
def test_mixed_batches(overlap, dtype, block_size, layout):
    lengths, queries = [4096, 1, 0, 70, 2048, 8704], [1, 1, 1, 1, 2048, 512]
    case = Case(lengths, queries, 2, 4, 128, block_size, dtype, layout, "cuda")
    k_cache, v_cache, block_table = case.paged()
    out = mixed_attention(
        case.q, k_cache, v_cache, block_table, case.query_start_loc, case.seq_lens, num_decodes=4, scale=case.scale,
        max_query_len=2048, max_seq_len=8704, config=MixedConfig(overlap=overlap),
    )  # fmt: skip
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.xdist_group("large")
@pytest.mark.parametrize("layout", ["kv_first", "block_first", "interleaved"])
@pytest.mark.parametrize("block_size", [16, 64])
def test_blocks_further_than_two_to_the_31_elements(layout, block_size):
    """Block index x stride passes 2^31: half of the blocks lie beyond it."""
    lengths, kv_heads, head_size = [500, 300, 700], 8, 128
    used = sum(-(-length // block_size) for length in lengths) + 3
    gap = 2 * 2**31 // (block_size * kv_heads * head_size * used)
    case = Case(lengths, (), kv_heads, 4, head_size, block_size, torch.bfloat16, layout, "cuda", block_gap=gap)
    k_cache, v_cache, block_table = case.paged()
    assert int(block_table[:, 0].max()) >= 0
    assert k_cache.stride(0) * (k_cache.shape[0] - 1) > 2**31
    options = {"scale": case.scale, "max_seq_len": case.max_seq_len}
    expected = case.expected(dtype=torch.float32)
    assert_within_bound(
        case, decode_attention(case.q, k_cache, v_cache, block_table, case.seq_lens, **options), expected
    )
    out = prefill_attention(
        case.q, k_cache, v_cache, block_table, case.query_start_loc, case.seq_lens, max_query_len=1, **options
    )
    assert_within_bound(case, out, expected)
    slots = torch.tensor([(k_cache.shape[0] - 1) * block_size + 3, 5], device="cuda")
    k = torch.randn(2, kv_heads, head_size, device="cuda").to(torch.bfloat16)
    write_kv(k, -k, k_cache, v_cache, slots)
    assert torch.equal(k_cache[-1, 3], k[0])
    assert torch.equal(v_cache[-1, 3], -k[0])
    copy_blocks([k_cache], torch.tensor([[k_cache.shape[0] - 1, 1]]))
    assert torch.equal(k_cache[1, 3], k[0])


def test_a_captured_step_is_replayed_with_other_lengths():
    """The grid depends on bounds only, so the graph of a decode serves every batch below them."""
    case = Case([900, 3000, 0, 17], dtype=torch.bfloat16, head_size=128, device="cuda")
    k_cache, v_cache, block_table = case.paged()
    lengths = case.seq_lens.clamp(max=1)
    out = torch.empty_like(case.q)

    def step():
        decode_attention(case.q, k_cache, v_cache, block_table, lengths, scale=case.scale, max_seq_len=3000, out=out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    lengths.copy_(case.seq_lens)
    graph.replay()
    torch.cuda.synchronize()
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize("overlap", ["none", "prefill_first", "decode_first"])
def test_a_mixed_step_is_captured(overlap):
    case = Case([4096, 600, 900], [1, 1, 300], dtype=torch.bfloat16, head_size=128, device="cuda")
    k_cache, v_cache, block_table = case.paged()
    out = torch.zeros_like(case.q)

    def step():
        mixed_attention(
            case.q, k_cache, v_cache, block_table, case.query_start_loc, case.seq_lens, num_decodes=2,
            scale=case.scale, max_query_len=300, max_seq_len=4096, out=out, config=MixedConfig(overlap=overlap),
        )  # fmt: skip

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize(
    "layout,dtype,block_size,num_kv_heads,head_size,num_tokens",
    [
        ("kv_first", torch.bfloat16, 16, 8, 128, 2048),
        ("block_first", torch.float16, 1, 40, 128, 300),
        ("interleaved", torch.bfloat16, 24, 5, 80, 1000),
        ("kv_first", torch.float16, 256, 3, 96, 7),
    ],
)
def test_kv_write(layout, dtype, block_size, num_kv_heads, head_size, num_tokens):
    num_blocks = num_tokens // block_size + 5
    mine = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, dtype, "cuda")
    theirs = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, dtype, "cuda")
    slots = torch.randperm(num_blocks * block_size, device="cuda")[:num_tokens]
    slots[::7] = -1
    qkv = torch.randn(num_tokens, 3, num_kv_heads, head_size, device="cuda").to(dtype)
    kept = slots >= 0
    at = slots[kept] // block_size, slots[kept] % block_size
    theirs[0][at], theirs[1][at] = qkv[kept, 1], qkv[kept, 2]
    write_kv(qkv[:, 1], qkv[:, 2], *mine, slots)
    for got, expected in zip(mine, theirs, strict=True):
        assert torch.equal(got.contiguous().view(torch.int16), expected.contiguous().view(torch.int16))


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("shape,axis", [((2, 64, 16, 8, 128), 1), ((64, 16, 16, 80), 0)])
def test_block_copies(where, shape, axis):
    cache = torch.randn(shape, device="cuda").to(torch.bfloat16)
    expected = cache.clone()
    pairs = torch.tensor([[0, 1], [1, 2], [2, 0], [5, 60], [5, 61]], device=where)
    expected.index_copy_(axis, pairs[:, 1].cuda(), cache.index_select(axis, pairs[:, 0].cuda()))
    copy_blocks([cache], pairs, block_axis=axis)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("layout", ["kv_first", "block_first", "interleaved"])
@pytest.mark.parametrize("num_kv_heads,head_size", [(8, 128), (3, 80), (1, 64)])
def test_copies_of_disjoint_pairs(layout, num_kv_heads, head_size):
    """K and V as views of one cache, whose other blocks stay as they were."""
    k_cache, v_cache = poisoned_caches(layout, 64, 16, num_kv_heads, head_size, torch.bfloat16, "cuda")
    for cache in (k_cache, v_cache):
        cache.copy_(torch.randn(cache.shape, device="cuda"))
    pairs = torch.randperm(64, device="cuda")[:48].view(24, 2)
    expected = [cache.clone() for cache in (k_cache, v_cache)]
    for copy in expected:
        copy[pairs[:, 1]] = copy[pairs[:, 0]]
    copy_blocks([k_cache, v_cache], pairs, disjoint=True)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])
