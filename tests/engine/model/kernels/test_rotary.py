"""Rotation, head norm and KV write in Triton's interpreter: the specification in float64, and poisoned caches."""

import pytest
import torch

from engine.model.kernels.triton_ops import TritonOps
from engine.model.ops import TorchOps
from tests.engine.attention.kernels.pools import poisoned_caches
from tests.engine.model.kernels.close import assert_rounded, bits

OPS, SPECIFIED = TritonOps(), TorchOps()
MAX_POSITION = 40
EPS = 1e-6


def table(head_size, theta=100.0):
    angles = torch.arange(MAX_POSITION)[:, None] * theta ** (-torch.arange(0, head_size, 2) / head_size)
    return torch.cat((angles.cos(), angles.sin()), 1)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def heads_of(qkv, num_heads, num_kv_heads):
    return qkv.unflatten(1, (num_heads + 2 * num_kv_heads, -1)).split([num_heads, num_kv_heads, num_kv_heads], 1)


def step(num_blocks, block_size, tokens=4):
    """Positions, and distinct slots outside the first block, the second of them -1."""
    generator = torch.Generator().manual_seed(3)
    slots = torch.randperm((num_blocks - 1) * block_size, generator=generator)[:tokens] + block_size
    slots[1] = -1
    return torch.randint(0, MAX_POSITION, (tokens,), generator=generator), slots


@pytest.mark.parametrize(
    "layout,dtype,block_size,num_heads,num_kv_heads,head_size,normed,rotated",
    [
        ("kv_first", torch.float32, 16, 4, 2, 64, False, True),
        ("block_first", torch.float16, 1, 9, 3, 80, True, True),
        ("interleaved", torch.bfloat16, 24, 8, 1, 128, True, True),
        ("block_first", torch.bfloat16, 16, 3, 3, 64, False, True),
        ("interleaved", torch.float32, 1, 5, 5, 80, True, False),
        ("kv_first", torch.float16, 24, 2, 2, 128, False, False),
        ("interleaved", torch.float16, 16, 1, 1, 64, True, True),
        ("kv_first", torch.float32, 24, 15, 3, 80, True, True),
        ("block_first", torch.float32, 256, 6, 1, 16, False, True),
    ],
)
def test_queries_turn_in_place_and_keys_and_values_land_in_their_slots_only(
    layout, dtype, block_size, num_heads, num_kv_heads, head_size, normed, rotated
):
    num_blocks = 12 if block_size == 1 else 3
    caches = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, dtype, "cpu")
    wide = [cache.double() for cache in caches]
    positions, slots = step(num_blocks, block_size)
    qkv = normal(4, (num_heads + 2 * num_kv_heads) * head_size, dtype=dtype)
    cos_sin = table(head_size) if rotated else None
    norms = [normal(head_size, dtype=dtype, seed=seed) for seed in (1, 2)] if normed else [None, None]
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "eps": EPS}
    expected = SPECIFIED.rotate_and_write(
        qkv.double(), cos_sin, positions, *wide, slots, **heads,
        q_norm=norms[0] if norms[0] is None else norms[0].double(),
        k_norm=norms[1] if norms[1] is None else norms[1].double(),
    )  # fmt: skip
    buffer = torch.full((6, qkv.shape[1]), torch.nan, dtype=dtype)
    buffer[:4] = qkv
    q = OPS.rotate_and_write(buffer[:4], cos_sin, positions, *caches, slots, **heads, q_norm=norms[0], k_norm=norms[1])
    assert q.data_ptr() == buffer.data_ptr()
    assert_rounded(q, expected, largest(expected))
    assert buffer[4:].isnan().all()
    written = slots[slots >= 0]
    at = written // block_size, written % block_size
    for cache, other in zip(caches, wide, strict=True):
        assert_rounded(cache[at], other[at], largest(other[at]))
        cache[at] = torch.nan
        assert cache.isnan().all()
    keys, values = heads_of(buffer[:4], num_heads, num_kv_heads)[1:]
    assert torch.equal(keys, heads_of(qkv, num_heads, num_kv_heads)[1])
    assert torch.equal(values, heads_of(qkv, num_heads, num_kv_heads)[2])


def largest(heads):
    """Of each head: an element is the sum of two products, whose sizes its own does not show."""
    return heads.abs().amax(-1, keepdim=True)


def run(qkv, positions, num_heads=2, num_kv_heads=1, head_size=32, cos_sin="own", **more):
    """(q, k, v) as written, of distinct slots in a cache of one block."""
    cache = torch.full((2, 1, 16, num_kv_heads, head_size), torch.nan, dtype=qkv.dtype)
    slots = torch.arange(len(qkv))
    cos_sin = table(head_size) if isinstance(cos_sin, str) else cos_sin
    q = OPS.rotate_and_write(
        qkv.clone(), cos_sin, positions, cache[0], cache[1], slots, num_heads=num_heads, num_kv_heads=num_kv_heads,
        **more,
    )  # fmt: skip
    return q, cache[0, 0, : len(qkv)], cache[1, 0, : len(qkv)]


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # of a turned value, which is dropped
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("still", ["position 0", "no table"])
def test_nothing_turns_at_position_zero_or_without_a_table_and_values_keep_their_bits(dtype, still):
    qkv = normal(3, 4 * 32, dtype=dtype)
    qkv[0, 100] = torch.inf
    q, k, v = run(qkv, torch.zeros(3, dtype=torch.int64), cos_sin="own" if still == "position 0" else None)
    for got, given in zip((q, k, v), heads_of(qkv, 2, 1), strict=True):
        assert torch.equal(bits(got), bits(given))


def test_a_rotation_keeps_lengths_and_scores_depend_on_distance_only():
    token = normal(1, 4 * 32)
    positions = torch.tensor([0, 3, 7, 20, 23, 27])
    q, k, _ = run(token.repeat(6, 1), positions)
    assert_rounded(q.norm(dim=-1), heads_of(token, 2, 1)[0].double().norm(dim=-1).expand(6, 2))
    scores = torch.einsum("qhd,kd->hqk", q.double(), k[:, 0].double())
    assert (scores[:, :3, :3] - scores[:, 3:, 3:]).abs().max() < 1e-4
    assert (scores[:, 0, 1] - scores[:, 1, 0]).abs().min() > 1e-2, "the direction of the distance matters"


def test_the_head_norm_forgets_the_size_of_queries_and_keys_but_not_of_values():
    qkv, positions = normal(2, 4 * 32), torch.tensor([5, 6])
    weights = {"q_norm": normal(32, seed=1), "k_norm": normal(32, seed=2)}
    q, k, v = run(qkv, positions, **weights)
    larger_q, larger_k, larger_v = run(qkv * 4, positions, **weights)
    assert torch.equal(larger_q, q)
    assert torch.equal(larger_k, k)
    assert torch.equal(larger_v, v * 4)


def test_no_tokens_launch_nothing():
    q, k, v = run(torch.zeros(0, 4 * 32), torch.zeros(0, dtype=torch.int64))
    assert q.shape == (0, 2, 32)
    assert k.shape == v.shape == (0, 1, 32)


def arguments():
    k_cache, v_cache = poisoned_caches("kv_first", 2, 16, 1, 32, torch.float32, "cpu")
    return {
        "qkv": torch.ones(2, 4 * 32),
        "cos_sin": table(32),
        "positions": torch.tensor([1, 2]),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "slots": torch.tensor([1, 2]),
        "num_heads": 2,
        "num_kv_heads": 1,
    }


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda a: {"qkv": a["qkv"].half()}, "k_cache and v_cache: expected views .*of qkv's type.* for float16"),
        (lambda a: {"qkv": a["qkv"].double()}, "qkv: expected float16"),
        (lambda a: {"qkv": a["qkv"][:, :-1]}, r"qkv: expected contiguous float32 \[2, 128\]"),
        (lambda a: {"qkv": torch.ones(2, 256)[:, ::2]}, r"qkv: expected contiguous.*strides \[256, 2\]"),
        (lambda a: {"num_heads": 3}, r"qkv: expected contiguous float32 \[2, 160\]"),
        (lambda a: {"num_kv_heads": 2}, r"\[NB, BS, 2, an even D\]"),
        (lambda a: {"cos_sin": a["cos_sin"].half()}, "cos_sin: expected contiguous float32"),
        (lambda a: {"cos_sin": a["cos_sin"][:, :16]}, "cos_sin: expected contiguous float32"),
        (lambda a: {"positions": a["positions"].int()}, "positions: expected contiguous int64"),
        (lambda a: {"slots": a["slots"][:1]}, r"slots: expected contiguous int64 \[2\]"),
        (lambda a: {"q_norm": torch.ones(32)}, "q_norm and k_norm: expected both or none"),
        (lambda a: {"q_norm": torch.ones(32), "k_norm": torch.ones(16)}, r"k_norm: expected contiguous float32 \[32\]"),
        (lambda a: {"v_cache": a["v_cache"].transpose(0, 1).contiguous().transpose(0, 1)}, "of equal strides"),
        (lambda a: {"k_cache": a["k_cache"][0], "v_cache": a["v_cache"][0]}, "k_cache and v_cache: expected views"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_written(change, message):
    given = arguments()
    with pytest.raises(ValueError, match=message):
        OPS.rotate_and_write(**given | change(given))
    assert torch.equal(given["qkv"], torch.ones(2, 4 * 32))
    assert given["k_cache"].isnan().all()
    assert given["v_cache"].isnan().all()
