"""The model's and the worker's kernels on a CUDA device, at the shapes of real models.

    PAGELAB_GPU=1 python -m pytest tests/engine/model/kernels/test_gpu_model_kernels.py

Compared with the specification in float64, in caches and buffers that are NaN wherever nobody writes.
"""

import pytest
import torch
import triton

from engine.model.kernels.sample import sample_fused
from engine.model.kernels.triton_ops import TritonOps
from engine.model.ops import TorchOps
from engine.model.sampling import gumbel, mask_filtered, sample, uniforms
from engine.worker.kernels.launch import launch_scatter
from engine.worker.kernels.prepare import prepare_decode
from engine.worker.kernels.scatter import scatter_int32
from tests.engine.attention.kernels.pools import poisoned_caches
from tests.engine.model.kernels.close import assert_rounded
from tests.engine.model.kernels.drawn import (
    drawn_by_triton,
    gumbel_by_triton,
    gumbel_in_float64,
    tokens_drawn,
    uniform_numbers,
)
from tests.engine.model.sampled import chi_square, params

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]

OPS, SPECIFIED = TritonOps(), TorchOps()
HALVES = [torch.bfloat16, torch.float16]
ROWS = [1, 7, 256, 8192]


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    """Workers share the device."""
    yield
    torch.cuda.empty_cache()


def normal(*shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def before_canaries(values):
    """A buffer with two more rows, NaN, and its first rows, which hold the values."""
    buffer = values.new_full((len(values) + 2, *values.shape[1:]), torch.nan)
    buffer[: len(values)] = values
    return buffer, buffer[: len(values)]


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("columns", [576, 2048, 4096, 5120, 8192])
@pytest.mark.parametrize("num_tokens", ROWS)
def test_norm(num_tokens, columns, dtype):
    x, weight = normal(num_tokens, columns, dtype=dtype, scale=2), normal(columns, dtype=dtype)
    buffer, out = before_canaries(torch.zeros_like(x))
    OPS.norm(x, weight, 1e-5, out)
    assert_rounded(out, SPECIFIED.norm(x.double(), weight.double(), 1e-5))
    total = x.double() + x.flip(0).double()
    kept, residual = before_canaries(x.flip(0))
    OPS.add_norm(x, residual, weight, 1e-5, out)
    assert_rounded(residual, total, x.abs().double() + x.flip(0).abs().double())
    assert_rounded(out, SPECIFIED.norm(residual.double(), weight.double(), 1e-5))
    assert buffer[num_tokens:].isnan().all()
    assert kept[num_tokens:].isnan().all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("columns", [1536, 8192, 14_336])
@pytest.mark.parametrize("num_tokens", ROWS)
def test_gate(num_tokens, columns, dtype):
    gate_up = normal(num_tokens, 2 * columns, dtype=dtype, scale=3)
    buffer, out = before_canaries(gate_up.new_zeros(num_tokens, columns))
    OPS.gate(gate_up, out)
    # The device's exp and division are a few float32 roundings from the specification's.
    assert_rounded(out, SPECIFIED.gate(gate_up.double()))
    assert buffer[num_tokens:].isnan().all()


@pytest.mark.parametrize("num_tokens", ROWS)
@pytest.mark.parametrize(
    "layout,dtype,block_size,num_heads,num_kv_heads,head_size,normed,rotated",
    [
        ("kv_first", torch.bfloat16, 16, 32, 8, 128, False, True),
        ("block_first", torch.float16, 1, 9, 3, 64, False, True),
        ("interleaved", torch.bfloat16, 24, 16, 8, 128, True, True),
        ("interleaved", torch.float16, 256, 32, 32, 80, False, False),
        ("kv_first", torch.bfloat16, 24, 40, 40, 80, True, True),
        ("block_first", torch.float32, 16, 8, 1, 256, True, False),
    ],
)
def test_rotate_and_write(num_tokens, layout, dtype, block_size, num_heads, num_kv_heads, head_size, normed, rotated):
    num_blocks = num_tokens // block_size + 3
    caches = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, dtype, "cuda")
    wide = [cache.double() for cache in caches]
    slots = torch.randperm(num_blocks * block_size, device="cuda")[:num_tokens]
    slots[3::7] = -1
    positions = torch.randint(0, 8192, (num_tokens,), device="cuda")
    angles = torch.arange(8192, device="cuda")[:, None] * 1e4 ** -torch.linspace(0, 1, head_size // 2, device="cuda")
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1) if rotated else None
    buffer, qkv = before_canaries(normal(num_tokens, (num_heads + 2 * num_kv_heads) * head_size, dtype=dtype))
    norms = [normal(head_size, dtype=dtype) for _ in range(2)] if normed else [None, None]
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "eps": 1e-6}
    wide_norms = [None if norm is None else norm.double() for norm in norms]
    expected = SPECIFIED.rotate_and_write(
        qkv.double(), cos_sin, positions, *wide, slots, **sizes, q_norm=wide_norms[0], k_norm=wide_norms[1]
    )
    q = OPS.rotate_and_write(qkv, cos_sin, positions, *caches, slots, **sizes, q_norm=norms[0], k_norm=norms[1])
    assert_rounded(q, expected, expected.abs().amax(-1, keepdim=True))
    assert buffer[num_tokens:].isnan().all()
    for cache, other in zip(caches, wide, strict=True):
        written = ~other.isnan()
        assert torch.equal(~cache.isnan(), written)
        assert_rounded(
            cache[written], other[written], other.nan_to_num().abs().amax(-1, keepdim=True).expand_as(other)[written]
        )


@pytest.mark.parametrize("layout", ["kv_first", "block_first", "interleaved"])
def test_blocks_further_than_two_to_the_31_elements(layout):
    num_kv_heads, head_size, block_size = 8, 128, 16
    num_blocks = 2 * 2**31 // (block_size * num_kv_heads * head_size) + 2
    k_cache, v_cache = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, torch.bfloat16, "cuda")
    assert k_cache.stride(0) * (num_blocks - 1) > 2**31
    slots = torch.tensor([(num_blocks - 1) * block_size + 3, 5], device="cuda")
    qkv = normal(2, (4 + 16) * head_size)
    positions = torch.zeros(2, dtype=torch.int64, device="cuda")
    OPS.rotate_and_write(qkv, None, positions, k_cache, v_cache, slots, num_heads=4, num_kv_heads=8)
    heads = qkv.view(2, 20, head_size)
    for at, token in (((-1, 3), 0), ((0, 5), 1)):
        assert torch.equal(k_cache[at], heads[token, 4:12])
        assert torch.equal(v_cache[at], heads[token, 12:])


@pytest.mark.parametrize(
    "num_rows,batch,block_size", [(0, 1, 16), (1, 1, 1), (200, 256, 16), (256, 256, 24), (7, 512, 256)]
)
def test_prepare(num_rows, batch, block_size):
    generator = torch.Generator().manual_seed(num_rows)
    width = 40
    table = torch.randint(0, 2**31 - 1, (600, width), generator=generator, dtype=torch.int32)
    record = {
        "last_tokens": torch.randint(0, 128_000, (600,), generator=generator, dtype=torch.int32),
        "seq_lens": torch.randint(0, width * block_size, (600,), generator=generator, dtype=torch.int32),
        "block_table": table,
        "num_rows": torch.tensor([num_rows, 9], dtype=torch.int32),
    }
    record["seq_lens"][num_rows:] = 2**31 - 1
    made = []
    for device in ("cuda", "cpu"):
        given = {name: tensor.to(device, copy=True) for name, tensor in record.items()}
        outputs = {name: torch.full((batch + 2,), -9, device=device) for name in ("ids", "positions", "slots")}
        outputs["step_lens"] = torch.full((batch + 2,), -9, dtype=torch.int32, device=device)
        prepare_decode(**given, **{name: tensor[:batch] for name, tensor in outputs.items()}, block_size=block_size)
        made.append([*outputs.values(), *given.values()])
    for on_device, specified in zip(*made, strict=True):
        assert torch.equal(on_device.cpu(), specified)


def test_scatter():
    for way in (launch_scatter, scatter_int32):
        target = torch.zeros(300_000, dtype=torch.int32, device="cuda")
        pairs = torch.stack((torch.randperm(300_000), torch.arange(300_000) + 1)).int().cuda()
        way(target, pairs, 70_001)
        expected = torch.zeros_like(target)
        expected[pairs[0, :70_001].long()] = pairs[1, :70_001]
        assert torch.equal(target, expected)


def test_random_numbers_are_the_specified_bits_on_the_device_too():
    seeds = torch.tensor([0, 1, -3, 2**62, -(2**63), 2**63 - 1], device="cuda")
    positions = torch.tensor([0, 1, 77, 8191, 131_071, 2**31], device="cuda")
    four, one = drawn_by_triton(seeds, positions, 4096)
    for specified in (uniforms(seeds, positions, 4 * 4096), uniforms(seeds.cpu(), positions.cpu(), 4 * 4096).cuda()):
        assert torch.equal(four.view(torch.int32), specified.view(torch.int32))
        assert torch.equal(one.view(torch.int32), specified[:, ::4].contiguous().view(torch.int32))


@pytest.mark.parametrize("approximate", [False, True])
def test_noise_is_right_from_end_to_end_of_the_unit_interval(approximate):
    """The device's approximate logarithm is off by 2^-22 where it matters least."""
    uniform = uniform_numbers(100_000).cuda()
    noise = gumbel_by_triton(uniform, approximate=approximate)
    assert (noise - gumbel_in_float64(uniform)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize(
    "num_seqs,vocab_size", [(1, 128_256), (7, 50_257), (64, 262_144), (256, 128_256), (512, 49_152)]
)
def test_sampled_tokens_have_the_best_scores(num_seqs, vocab_size, dtype):
    """Where logarithms differ in their last digits two scores may change places, if they are that close."""
    logits = normal(num_seqs, vocab_size, dtype=dtype, scale=3)
    logits[:, ::5], logits[:, 7::31] = -torch.inf, torch.nan
    rows = params(torch.tensor([0.0, 1.0, 0.6, 2.0]).repeat(num_seqs // 4 + 1)[:num_seqs], device="cuda")
    positions = torch.arange(num_seqs, device="cuda") * 3
    tokens = tokens_drawn(logits, rows, positions).long()
    specified = sample(logits, rows, positions).long()
    assert (tokens != specified).sum() <= max(1, num_seqs // 100)
    greedy = rows.temperature == 0
    assert torch.equal(tokens[greedy], specified[greedy])
    noise = gumbel(uniforms(rows.seeds, positions, vocab_size))
    scores = logits.float() / rows.temperature.clamp(min=1e-5)[:, None] + noise
    reached, best = (scores.gather(1, at[:, None])[~greedy] for at in (tokens, specified))
    assert torch.isfinite(reached).all()
    assert (best - reached <= 1e-4 * best.abs().clamp(min=1)).all()


def test_sampled_tokens_have_the_probabilities_of_the_softmax():
    """Also in the tails: an approximate logarithm would show there first."""
    logits = torch.linspace(0, -14, 2000, device="cuda").expand(512, -1).contiguous()
    rows = params(torch.full((512,), 0.9), device="cuda")
    draws = [tokens_drawn(logits, rows, torch.full((512,), at, device="cuda")) for at in range(2000)]
    tokens = torch.cat(draws).long() // 50
    probabilities = (logits[0] / 0.9).double().softmax(0).view(40, 50).sum(1)
    grouped = torch.cat((probabilities[:24], probabilities[24:].sum()[None]))
    assert len(tokens) * grouped.min() > 5
    assert chi_square(tokens.clamp(max=24), grouped) < 1


def test_filters_come_before_the_fused_sampler():
    logits = normal(64, 32_000, dtype=torch.float32, scale=2)
    rows = params(torch.full((64,), 0.8), top_k=50, top_p=0.9, device="cuda")
    positions = torch.arange(64, device="cuda")
    tokens = tokens_drawn(mask_filtered(logits, rows), rows, positions)
    assert (tokens != sample(logits, rows, positions)).sum() <= 1
    assert (mask_filtered(logits, rows).gather(1, tokens[:, None].long()) > -torch.inf).all()


def test_a_captured_step_waits_for_nothing_and_is_replayed_with_other_values():
    """A layer without its matrix products, between preparation and sampling, over fixed buffers."""
    batch, block_size, vocab_size = 8, 16, 5000
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(400, generator=generator)[: batch * 40].view(batch, 40).int().cuda()
    state = {name: torch.zeros(batch, dtype=torch.int32, device="cuda") for name in ("last", "lens", "count", "step")}
    ids, positions, slots = (torch.zeros(batch, dtype=torch.int64, device="cuda") for _ in range(3))
    embedding, weight, lm_head = normal(vocab_size, 512), normal(512), normal(512, vocab_size, scale=0.05)
    to_qkv, to_gate = normal(512, (4 + 4) * 64, scale=0.05), normal(256, 1024, scale=0.05)
    angles = torch.arange(700, device="cuda")[:, None] * 1e4 ** -torch.linspace(0, 1, 32, device="cuda")
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    rows = params(torch.tensor([0.0, 1.0] * 4), device="cuda")

    def step(ops, cache):
        prepare_decode(
            state["last"], state["lens"], table, state["count"], ids, positions, slots, state["step"], block_size
        )
        residual = embedding[ids]
        qkv = ops.norm(residual, weight, 1e-5) @ to_qkv
        q = ops.rotate_and_write(qkv, cos_sin, positions, cache[0], cache[1], slots, num_heads=4, num_kv_heads=2)
        inner = ops.gate(q.reshape(batch, 256) @ to_gate)
        logits = ops.add_norm(inner, residual, weight, 1e-5) @ lm_head
        sample_fused(logits, rows, positions, state["last"])
        return logits

    caches = [torch.full((2, 400, block_size, 2, 64), torch.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    step(OPS, caches[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(OPS, caches[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step(OPS, caches[0])
    for count in (5, 8, 0, 3):
        state["count"].fill_(count)
        state["last"].copy_(torch.arange(batch) * 7 + count)
        state["lens"].copy_(torch.arange(batch) * 70 + count)
        before = {name: tensor.clone() for name, tensor in state.items()}
        graph.replay()
        got = logits.clone(), *(tensor.clone() for tensor in (state["last"], state["lens"], slots))
        for name, tensor in before.items():
            state[name].copy_(tensor)
        expected = step(SPECIFIED, caches[1])
        assert (got[0] - expected).abs().max() <= 0.05 * expected.abs().max()
        assert torch.equal(got[2], state["lens"])
        assert torch.equal(got[3], slots)
        assert torch.equal(got[2] - before["lens"], (torch.arange(batch, device="cuda") < count).int())
        assert ((got[1] >= 0) & (got[1] < vocab_size)).all()
        assert torch.equal(caches[0].isnan(), caches[1].isnan())
