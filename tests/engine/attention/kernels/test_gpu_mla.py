"""Attention over latents on a CUDA device within 5e-3 of a float32 reference, every kernel, with poisoned pools.

PAGELAB_GPU=1 python -m pytest -n 8 tests/engine/attention/kernels/test_gpu_mla.py
"""

import pytest
import torch
import triton

from engine.attention import AttentionLayer, LayerConfig, get_backend
from engine.attention.kernels.launch import mla_decode, mla_prefill, mla_write
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.tuning_mla import MLADecodeConfig
from engine.attention.reference_mla import UpProjections
from tests.engine.attention.kernels.latents import LatentCase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]

BOUND = 5e-3
LENGTHS = (1, 63, 64, 65, 0, 128, 129, 1000, 5000)
CONFIGS = {
    "rule": None,
    "narrow": MLADecodeConfig(16, DecodeConfig(32, 4, 3, programs=264, min_piece_tokens=128)),
    "narrow-tma": MLADecodeConfig(16, DecodeConfig(32, 4, 3, programs=264, min_piece_tokens=128), use_tma=True),
    "wide": MLADecodeConfig(64, DecodeConfig(64, 8, 2, programs=132, min_piece_tokens=128)),
    "pair": MLADecodeConfig(64, DecodeConfig(64, 4, 2, programs=132, min_piece_tokens=128), kernel="pair"),
    "pair-whole": MLADecodeConfig(64, DecodeConfig(64, 4, 2, programs=1, min_piece_tokens=128), kernel="pair"),
}


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    """Workers share the device: what one test cached, another may need."""
    yield
    torch.cuda.empty_cache()


def case_of(lengths, query_lens=(), num_heads=16, block_size=64, dtype=torch.bfloat16, **more):
    return LatentCase(lengths, query_lens, num_heads, 512, 64, block_size, dtype, "cuda", **more)


def assert_within_bound(case, out):
    """Relative error of every sequence by itself; zero where zero is expected."""
    expected = case.expected()
    firsts = case.query_start_loc.tolist()
    for row, length in enumerate(case.lengths):
        got, wanted = (x[firsts[row] : firsts[row + 1]].double().cpu() for x in (out, expected))
        error = (got - wanted).norm() / wanted.norm().clamp(min=1e-6)
        assert error <= BOUND, f"sequence {row} of {length} tokens: relative error {error:.2e}"


def decode(case, config, **options):
    cache, table = case.pool()
    options = {"rank": 512, "scale": case.scale, "max_seq_len": case.max_seq_len, "config": config} | options
    return mla_decode(case.q, cache, table, case.seq_lens, **options)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_heads,block_size", [(16, 64), (128, 64), (5, 16), (100, 24), (64, 256), (128, 8)])
def test_decode(name, num_heads, block_size):
    case = case_of(LENGTHS, (), num_heads, block_size)
    assert_within_bound(case, decode(case, CONFIGS[name]))


@pytest.mark.parametrize("name", ["rule", "narrow", "pair"])
def test_decode_in_half_precision_with_strides_of_its_own(name):
    case = case_of(LENGTHS, (), 128, 64, torch.float16, gap=64)
    assert_within_bound(case, decode(case, CONFIGS[name]))


@pytest.mark.parametrize("name", ["narrow", "pair"])
def test_addresses_beyond_two_to_the_31(name):
    """Blocks of 64 x 576 elements: the last of 80,000 starts 2.9e9 elements behind the first."""
    case = case_of([200, 70], block_gap=8_000)
    assert_within_bound(case, decode(case, CONFIGS[name]))


@pytest.mark.parametrize("name", ["narrow", "pair"])
def test_a_captured_step_is_replayed_with_other_lengths(name):
    case = case_of([900, 3000, 0, 17], (), 128)
    cache, table = case.pool()
    lengths, out = case.seq_lens.clamp(max=1), case.q.new_empty(4, 128, 512)

    def step():
        mla_decode(
            case.q, cache, table, lengths, rank=512, scale=case.scale, max_seq_len=3000, out=out, config=CONFIGS[name]
        )

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    lengths.copy_(case.seq_lens)
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_within_bound(case, out)


@pytest.mark.parametrize("num_heads,block_size", [(16, 64), (128, 64), (5, 16), (128, 24)])
def test_chunks(num_heads, block_size):
    case = case_of([300, 64, 900, 70], [300, 1, 37, 0], num_heads, block_size)
    cache, table = case.pool()
    out = mla_prefill(
        case.q, cache, table, case.query_start_loc, case.seq_lens, rank=512, scale=case.scale, max_query_len=300,
        max_seq_len=900,
    )  # fmt: skip
    assert_within_bound(case, out)


@pytest.mark.parametrize("block_size", [64, 24])
def test_a_write(block_size):
    cache = torch.full((40, block_size, 576), torch.nan, dtype=torch.bfloat16, device="cuda")
    held, slots = cache.clone(), torch.randperm(40 * block_size, device="cuda")[:300]
    slots[::7] = -1
    latents = torch.randn(300, 1, 576, device="cuda").bfloat16()
    kept = slots >= 0
    held.view(-1, 576)[slots[kept]] = latents[kept, 0]
    mla_write(latents[..., :512], latents[..., 512:], cache, slots)
    assert torch.equal(cache.view(torch.int16), held.view(torch.int16))


@pytest.mark.parametrize("num_heads", [16, 128])
def test_a_mixed_step_of_the_backend_is_the_references(num_heads):
    """Projections, write, decodes and chunks together, bfloat16 against float64."""
    torch.manual_seed(0)
    config = LayerConfig(num_heads, 1, 576, 192**-0.5, kv_lora_rank=512)
    names, outs = ("triton-mla", "reference-mla"), []
    q = torch.randn(30, num_heads, 192).bfloat16()
    latents = torch.randn(30, 1, 576).bfloat16()
    up = [torch.randn(num_heads, 512, 128).bfloat16() / 16 for _ in range(2)]
    for name, device, dtype in zip(names, ("cuda", "cpu"), (torch.bfloat16, torch.float64), strict=True):
        backend = get_backend(name)
        cache = torch.full((6, 64, 576), torch.nan, dtype=dtype, device=device)
        metadata = backend.get_builder_cls()(64, torch.device(device)).build([1, 29], [1, 29], [[3], [5]])
        given = [x.to(device=device, dtype=dtype) for x in (q, latents[..., :512], latents[..., 512:])]
        layer = AttentionLayer(backend, config, cache, up=UpProjections(*(x.to(device, dtype) for x in up)))
        outs.append(layer(*given, metadata).double().cpu())
    assert (outs[0] - outs[1]).norm() / outs[1].norm() < 1e-2
