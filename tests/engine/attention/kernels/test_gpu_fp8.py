"""FP8 caches on a CUDA device: attention within 5e-3 of float32 over what is stored, and writes bit for bit.

    PAGELAB_GPU=1 python -m pytest -n 8 tests/engine/attention/kernels/test_gpu_fp8.py

The kernels that the interpreter runs move bits; these are the device's own conversions, and Triton's pipelines.
"""

import json

import pytest
import torch
import triton

from engine.attention.checks import FP8
from engine.attention.kernels.launch import mixed_attention, prefill_contiguous, shared_prefix_attention, write_kv
from engine.attention.kernels.shared_memory import fitting
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape, MixedConfig, decode_bytes
from engine.attention.kv_scales import KVScales, as_bytes
from engine.attention.reference import write_kv as specified_write
from engine.attention.shared_prefix import SharedPrefixes
from engine.model.ops import TorchOps
from tests.engine.attention.kernels import test_fp8 as fp8
from tests.engine.attention.kernels.fp8_pools import Fp8Case
from tests.engine.attention.kernels.pairwise import pairwise
from tests.engine.attention.kernels.pools import Case, poisoned_caches
from tests.engine.attention.kernels.test_gpu_grid import DECODE_CUTS, PREFILL_CUTS, assert_within_bound, edges, named

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]
FACTORS = {
    "block_size": (1, 16, 24, 64, 256),
    "head_size": (64, 80, 128, 256),
    "group": (1, 4, 5, 16),
    "dtype": (torch.float16, torch.bfloat16),
    "layout": ("kv_first", "block_first", "interleaved"),
}
DECODE = pairwise(FACTORS | {"cut": ("rule", "split", "whole", "contiguous", "deep")})
PREFILL = pairwise(FACTORS | {"cut": ("rule", "tma", "pointers", "contiguous")})
DEEP = DecodeConfig(block_n=128, num_warps=8, num_stages=5, programs=528, min_piece_tokens=128)


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    """Workers share the device."""
    yield
    torch.cuda.empty_cache()


def pool_of(row, lengths, queries=()):
    factors = {name: value for name, value in row.items() if name != "cut"}
    return Fp8Case(Case(lengths, queries, num_kv_heads=2, device="cuda", **factors))


def deep(row):
    """As deep as there is room for: five stages of 128 keys of 256 bytes are more than an H200 has."""
    shape = DecodeShape(20, 2, row["group"], row["head_size"], 1, 16_384, row["block_size"], 132)
    return fitting(DEEP, lambda one: decode_bytes(one, shape), shape.capability)


@pytest.mark.parametrize("row", DECODE, ids=named)
def test_decode(row):
    pool = pool_of(row, [0, *edges(row["block_size"], longest=16_384)])
    config = deep(row) if row["cut"] == "deep" else DECODE_CUTS.get(row["cut"])
    out = (fp8.twin if row["cut"] == "contiguous" else fp8.decode)(pool, config)
    assert_within_bound(pool.case, out, pool.case.expected(dtype=torch.float32))


@pytest.mark.parametrize("row", PREFILL, ids=named)
def test_prefill(row):
    lengths = edges(row["block_size"], longest=2049)
    pool = pool_of(row, [*lengths, 16_384, 0], [*lengths, 33, 1])
    case = pool.case
    if row["cut"] == "contiguous":
        (k, v), starts = pool.rows
        out = prefill_contiguous(
            case.q, k, v, starts, case.query_start_loc, case.seq_lens, scale=case.scale, scales=pool.scales,
            max_query_len=case.max_query_len, max_seq_len=case.max_seq_len,
        )  # fmt: skip
    else:
        out = fp8.prefill(pool, PREFILL_CUTS.get(row["cut"]))
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize("window,soft_cap", [(100, 0.0), (0, 20.0), (1000, 20.0)])
def test_window_and_soft_cap(window, soft_cap):
    for queries in ((), [1, 50, 100, 2, 700]):
        case = Case([1, 99, 100, 101, 3000], queries, 2, dtype=torch.bfloat16, head_size=128, device="cuda")
        pool = Fp8Case(case, window=window)
        run = fp8.prefill if queries else fp8.decode
        out = run(pool, None, window=window, soft_cap=soft_cap)
        assert_within_bound(case, out, case.expected(window, soft_cap, torch.float32))


@pytest.mark.parametrize("size", [1e-4, 1e5])
def test_a_query_beyond_float16(size):
    case = Case([700, 40], (), 2, dtype=torch.bfloat16, head_size=128, device="cuda")
    case.q *= size
    case.scale /= size
    pool = Fp8Case(case)
    for run in (fp8.decode, fp8.prefill):
        assert_within_bound(case, run(pool, None), case.expected(dtype=torch.float32))


@pytest.mark.parametrize("overlap", ["none", "prefill_first", "decode_first"])
def test_mixed_batches(overlap):
    case = Case([4096, 1, 0, 70, 2048, 8704], [1, 1, 1, 1, 2048, 512], 2, 4, 128, 16, torch.bfloat16, device="cuda")
    pool = Fp8Case(case)
    out = mixed_attention(
        case.q, pool.k_cache, pool.v_cache, pool.block_table, case.query_start_loc, case.seq_lens, num_decodes=4,
        scale=case.scale, max_query_len=2048, max_seq_len=8704, scales=pool.scales, config=MixedConfig(overlap=overlap),
    )  # fmt: skip
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize("num_seqs", [3, 64])
def test_a_shared_prefix(num_seqs):
    case = Case([2048 + 7 * row for row in range(num_seqs)], (), 2, 4, 128, 16, torch.bfloat16, device="cuda")
    for name in ("keys", "values"):
        first, *others = getattr(case, name)
        setattr(case, name, [first, *(torch.cat((first[:1024], other[1024:])) for other in others)])
    pool = Fp8Case(case)
    table = pool.block_table.clone()
    table[1:, :64] = table[0, :64]
    members = torch.randperm(num_seqs).to(torch.int32).cuda()
    shared = SharedPrefixes(members, torch.tensor([[0, num_seqs, 1024]], dtype=torch.int32, device="cuda"))
    out = shared_prefix_attention(
        case.q, pool.k_cache, pool.v_cache, table, case.seq_lens, shared, scale=case.scale,
        max_seq_len=case.max_seq_len, scales=pool.scales,
    )  # fmt: skip
    assert_within_bound(case, out, case.expected(dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout,block_size", [("kv_first", 16), ("interleaved", 24), ("block_first", 1)])
@pytest.mark.parametrize("k_scale,v_scale", [(1.0, 0.37), ([0.5, 1.0, 3.0, 1e-3], [2.0, 0.1, 1.0, 7.0])])
def test_writes_are_the_specification_bit_for_bit(dtype, layout, block_size, k_scale, v_scale):
    k = fp8.hard_numbers(dtype)
    slots = torch.randperm(len(k) + 40)[: len(k)]
    slots[::5] = -1
    num_blocks = -(-(len(k) + 40) // block_size)
    mine = poisoned_caches(layout, num_blocks, block_size, 4, 32, FP8, "cuda")
    theirs = poisoned_caches(layout, num_blocks, block_size, 4, 32, FP8, "cpu")
    on_device = k.cuda(), k.flip(0).cuda(), *mine, slots.cuda()
    write_kv(*on_device, scales=KVScales.of(k_scale, v_scale, 4, "cuda"))
    specified_write(k, k.flip(0), *theirs, slots, KVScales.of(k_scale, v_scale, 4))
    for got, expected in zip(mine, theirs, strict=True):
        assert fp8.same_bits(got.contiguous().cpu(), expected.contiguous())


@pytest.mark.parametrize("layout,block_size,normed", [("kv_first", 16, False), ("interleaved", 24, True)])
def test_the_models_own_write(layout, block_size, normed):
    """Rotated keys may be rounded the other way, a code up or down; values are the specification's."""
    from engine.model.kernels.triton_ops import TritonOps

    heads, kv_heads, size, tokens = 16, 4, 128, 300
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size, device="cuda").to(torch.bfloat16)
    angles = torch.arange(512, device="cuda")[:, None] * 100.0 ** (-torch.arange(0, size, 2, device="cuda") / size)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    positions, slots = (torch.randperm(512, device="cuda")[:tokens] for _ in range(2))
    slots[::7] = -1
    norm = torch.randn(size, device="cuda").to(torch.bfloat16) if normed else None
    options = {"num_heads": heads, "num_kv_heads": kv_heads, "q_norm": norm, "k_norm": norm, "eps": 1e-6}
    options["scales"] = KVScales.of([0.01, 0.02, 0.005, 1.0], [0.01, 0.1, 0.003, 0.02], kv_heads, "cuda")
    found = []
    for ops in (TritonOps(), TorchOps()):
        caches = poisoned_caches(layout, 512 // block_size + 1, block_size, kv_heads, size, FP8, "cuda")
        ops.rotate_and_write(qkv.clone(), cos_sin, positions, *caches, slots, **options)
        found.append([as_bytes(cache.contiguous()).int() for cache in caches])
    (k, v), (specified_k, specified_v) = found
    assert torch.equal(v, specified_v)
    off = (k - specified_k).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() < 0.01


@pytest.mark.parametrize("kernel", ["paged", "contiguous"])
@pytest.mark.parametrize("scales", ["unit", "per-head"])
def test_an_engine_captured_and_not_is_near_the_one_without_fp8(tmp_path, kernel, scales):
    """Graphs see scales that were fitted after they were captured. Logits: of the same forced prefix, so that one
    choice does not decide the next."""
    from engine.llm import LLM
    from engine.sampling_params import SamplingParams
    from tests.engine.worker.test_gpu_engine import SHAPE

    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    torch.manual_seed(0)
    prompts = [torch.randint(0, 32_000, (length,)).tolist() for length in (200, 1, 57, 400)]
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 1024, "num_blocks": 200}
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    allocator = "paged" if kernel == "paged" else "orca-max"
    found = {}
    for name, more in {
        "wide": {},
        "graphs": {"kv_cache_dtype": "fp8", "kv_scales": scales},
        "commands": {"kv_cache_dtype": "fp8", "kv_scales": scales, "graphs": False},
    }.items():
        llm = LLM(str(tmp_path), device="cuda", weights_seed=0, allocator=allocator, kernel=kernel, **limits, **more)
        rows = []
        llm.executor._watch = lambda requests, logits, rows=rows: rows.append(logits.float().clone())
        tokens = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]
        found[name] = tokens, rows
        assert llm.engine.block_bytes(16) == 4 * 2 * 16 * 8 * 64 * (2 if name == "wide" else 1)
        llm.engine.release()
        del llm
        torch.cuda.empty_cache()
    assert found["graphs"][0] == found["commands"][0]
    first, wide = found["graphs"][1][0], found["wide"][1][0]  # of the prompts' last tokens
    assert (first - wide).norm() / wide.norm() < 0.1
