"""Writing latents and turning queries on a CUDA device, at the sizes of DeepSeek's models.

    PAGELAB_GPU=1 python -m pytest tests/engine/model/kernels/test_gpu_latents.py

Compared with the specification in float64, in caches and buffers that are NaN wherever nobody writes.
"""

import pytest
import torch
import triton

from engine.model.kernels.triton_ops import TritonOps
from engine.model.ops import TorchOps
from tests.engine.model.kernels.close import assert_rounded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]
OPS, SPECIFIED = TritonOps(), TorchOps()
RANK, ROTARY, LONGEST = 512, 64, 8192
EPS = 1e-6


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def angles():
    turns = torch.arange(LONGEST, device="cuda")[:, None] * 1e4 ** -torch.linspace(0, 1, ROTARY // 2, device="cuda")
    return torch.cat((turns.cos(), turns.sin()), 1)


@pytest.mark.parametrize("num_tokens", [1, 7, 256, 8192])
@pytest.mark.parametrize(
    "dtype,query,between,block_size,interleaved",
    [
        (torch.bfloat16, 1536, 0, 64, True),
        (torch.float16, 0, 16 * 192, 16, True),
        (torch.float32, 1536, 0, 24, False),
        (torch.bfloat16, 0, 0, 1, False),
    ],
)
def test_write_latents(num_tokens, dtype, query, between, block_size, interleaved):
    num_blocks = num_tokens // block_size + 3
    cache = torch.full((num_blocks, block_size, RANK + ROTARY), torch.nan, dtype=dtype, device="cuda")
    wide, cos_sin = cache.double(), angles()
    slots = torch.randperm(num_blocks * block_size, device="cuda")[:num_tokens]
    slots[3::7] = -1
    positions = torch.randint(0, LONGEST, (num_tokens,), device="cuda")
    down, kv_norm = normal(num_tokens, query + between + RANK + ROTARY, dtype=dtype), normal(RANK, dtype=dtype)
    q_norm = normal(query, dtype=dtype) if query else None
    buffer = torch.full((num_tokens + 2, query), torch.nan, dtype=dtype, device="cuda")
    expected = torch.empty(num_tokens, query, dtype=torch.float64, device="cuda")
    SPECIFIED.write_latents(
        down.double(), cos_sin, positions, wide, slots, kv_norm.double(), eps=EPS, interleaved=interleaved,
        q_norm=None if q_norm is None else q_norm.double(), q_out=expected if query else None,
    )  # fmt: skip
    OPS.write_latents(
        down, cos_sin, positions, cache, slots, kv_norm, eps=EPS, interleaved=interleaved, q_norm=q_norm,
        q_out=buffer[:num_tokens] if query else None,
    )  # fmt: skip
    at = slots[slots >= 0] // block_size, slots[slots >= 0] % block_size
    assert_rounded(cache[at][:, :RANK], wide[at][:, :RANK])
    keys = wide[at][:, RANK:]
    assert_rounded(cache[at][:, RANK:], keys, keys.abs().amax(-1, keepdim=True))
    cache[at] = torch.nan
    assert cache.isnan().all()
    if query:
        assert_rounded(buffer[:num_tokens], expected)
    assert buffer[num_tokens:].isnan().all()


@pytest.mark.parametrize("num_tokens", [1, 7, 256, 8192])
@pytest.mark.parametrize(
    "dtype,num_heads,behind,interleaved",
    [(torch.bfloat16, 128, 0, True), (torch.float16, 16, RANK + ROTARY, True), (torch.float32, 16, 0, False)],
)
def test_rotate_queries(num_tokens, dtype, num_heads, behind, interleaved):
    rows, cos_sin = normal(num_tokens + 2, num_heads * 192 + behind, dtype=dtype), angles()
    before, positions = rows.clone(), torch.randint(0, LONGEST, (num_tokens,), device="cuda")
    q = rows[:num_tokens, : num_heads * 192].unflatten(1, (num_heads, 192))
    expected = SPECIFIED.rotate_queries(q.double(), cos_sin, positions, interleaved)[..., -ROTARY:]
    OPS.rotate_queries(q, cos_sin, positions, interleaved)
    assert_rounded(q[..., -ROTARY:], expected, expected.abs().amax(-1, keepdim=True))
    for changed in (rows, before):
        changed[:num_tokens, : num_heads * 192].unflatten(1, (num_heads, 192))[..., -ROTARY:] = 0
    assert torch.equal(rows, before)
