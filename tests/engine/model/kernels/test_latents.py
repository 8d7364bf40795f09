"""Writing latents and turning queries in Triton's interpreter: the specification in float64, and poisoned buffers."""

import pytest
import torch

from engine.model.kernels.triton_ops import TritonOps
from engine.model.ops import TorchOps
from tests.engine.model.kernels.close import assert_rounded
from tests.engine.model.kernels.test_rotary import MAX_POSITION, largest, normal, table

OPS, SPECIFIED = TritonOps(), TorchOps()
EPS = 1e-6


def step(num_blocks, block_size, tokens=3):
    """Positions, and distinct slots outside the first block, the second of them -1."""
    generator = torch.Generator().manual_seed(3)
    slots = torch.randperm((num_blocks - 1) * block_size, generator=generator)[:tokens] + block_size
    slots[1] = -1
    return torch.randint(0, MAX_POSITION, (tokens,), generator=generator), slots


@pytest.mark.parametrize(
    "dtype,block_size,rank,rotary,query,between,interleaved",
    [
        (torch.float32, 16, 32, 8, 24, 0, True),
        (torch.bfloat16, 64, 512, 64, 192, 0, True),
        (torch.float16, 1, 48, 12, 0, 40, True),
        (torch.float32, 24, 40, 6, 20, 4, False),
        (torch.bfloat16, 16, 64, 64, 0, 0, False),
    ],
)
def test_latents_land_in_their_slots_only(dtype, block_size, rank, rotary, query, between, interleaved):
    num_blocks = 8 if block_size == 1 else 3
    kept = torch.full((num_blocks, block_size, rank + rotary + 8), torch.nan, dtype=dtype)
    cache, wide = kept[..., : rank + rotary], kept.double()[..., : rank + rotary]
    positions, slots = step(num_blocks, block_size)
    down = normal(3, query + between + rank + rotary, dtype=dtype)
    given, cos_sin, kv_norm = down.clone(), table(rotary), normal(rank, dtype=dtype, seed=1)
    q_norm = normal(query, dtype=dtype, seed=2) if query else None
    buffer = torch.full((4, query), torch.nan, dtype=dtype) if query else None
    expected = torch.empty(3, query, dtype=torch.float64) if query else None
    SPECIFIED.write_latents(
        down.double(), cos_sin, positions, wide, slots, kv_norm.double(), eps=EPS, interleaved=interleaved,
        q_norm=None if q_norm is None else q_norm.double(), q_out=expected,
    )  # fmt: skip
    OPS.write_latents(
        down, cos_sin, positions, cache, slots, kv_norm, eps=EPS, interleaved=interleaved, q_norm=q_norm,
        q_out=None if buffer is None else buffer[:3],
    )  # fmt: skip
    assert torch.equal(down, given)
    at = slots[slots >= 0] // block_size, slots[slots >= 0] % block_size
    assert_rounded(cache[at][:, :rank], wide[at][:, :rank])
    assert_rounded(cache[at][:, rank:], wide[at][:, rank:], largest(wide[at][:, rank:]))
    cache[at] = torch.nan
    assert kept.isnan().all()
    if buffer is not None:
        assert_rounded(buffer[:3], expected)
        assert buffer[3:].isnan().all()


@pytest.mark.parametrize(
    "dtype,num_heads,head_size,rotary,interleaved,behind",
    [
        (torch.float32, 4, 24, 8, True, 40),
        (torch.bfloat16, 16, 192, 64, True, 0),
        (torch.float16, 5, 18, 12, True, 0),
        (torch.float32, 3, 14, 6, False, 10),
        (torch.bfloat16, 33, 64, 64, False, 0),
    ],
)
def test_only_the_tails_of_heads_turn(dtype, num_heads, head_size, rotary, interleaved, behind):
    rows, positions = normal(3, num_heads * head_size + behind, dtype=dtype), torch.tensor([5, 0, 31])
    before = rows.clone()
    q = rows[:2, : num_heads * head_size].unflatten(1, (num_heads, head_size))
    expected = SPECIFIED.rotate_queries(q.double(), table(rotary), positions[:2], interleaved)
    assert OPS.rotate_queries(q, table(rotary), positions[:2], interleaved) is q
    turned = slice(head_size - rotary, None)
    assert_rounded(q[..., turned], expected[..., turned], largest(expected[..., turned]))
    rest = rows.clone()
    rest[:2, : num_heads * head_size].unflatten(1, (num_heads, head_size))[..., turned] = 0
    before[:2, : num_heads * head_size].unflatten(1, (num_heads, head_size))[..., turned] = 0
    assert torch.equal(rest, before)


def test_no_tokens_launch_nothing():
    none = torch.zeros(0, dtype=torch.int64)
    cache = torch.ones(1, 4, 12)
    OPS.write_latents(torch.zeros(0, 12), table(4), none, cache, none, torch.ones(8), eps=EPS, interleaved=True)
    assert (cache == 1).all()
    assert OPS.rotate_queries(torch.zeros(0, 2, 6), table(4), none, False).shape == (0, 2, 6)


def arguments():
    return {
        "down": torch.ones(2, 20),
        "cos_sin": table(4),
        "positions": torch.tensor([1, 2]),
        "kv_cache": torch.full((2, 4, 12), torch.nan),
        "slots": torch.tensor([1, 2]),
        "kv_norm": torch.ones(8),
        "q_norm": torch.ones(6),
        "q_out": torch.ones(2, 6),
    }


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda a: {"down": a["down"].double()}, "down: expected float16"),
        (lambda a: {"down": torch.ones(2, 40)[:, ::2]}, r"down: expected contiguous.*strides \[40, 2\]"),
        (lambda a: {"down": torch.ones(2, 17)}, "down: expected at least 6 .* 8 .* 4 columns .*got 17"),
        (lambda a: {"kv_cache": a["kv_cache"].half()}, "kv_cache: expected a view .* of down's type and device"),
        (lambda a: {"kv_cache": a["kv_cache"][0]}, r"kv_cache: expected a view \[NB, BS, 12\]"),
        (lambda a: {"kv_cache": torch.ones(2, 4, 24)[..., ::2]}, "kv_cache: expected a view .* the last stride 1"),
        (lambda a: {"cos_sin": a["cos_sin"].half()}, "cos_sin: expected contiguous float32"),
        (lambda a: {"cos_sin": torch.ones(4, 3), "kv_cache": torch.ones(2, 4, 11)}, "cos_sin: expected .*an even P"),
        (lambda a: {"positions": a["positions"].int()}, "positions: expected contiguous int64"),
        (lambda a: {"slots": a["slots"][:1]}, r"slots: expected contiguous int64 \[2\]"),
        (lambda a: {"q_out": None}, "q_norm and q_out: expected both or none"),
        (lambda a: {"q_out": torch.ones(2, 5)}, r"q_out: expected contiguous float32 \[2, 6\]"),
        (lambda a: {"kv_norm": a["kv_norm"].half()}, r"kv_norm: expected contiguous float32 \[8\]"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(change, message):
    given = arguments()
    with pytest.raises(ValueError, match=message):
        OPS.write_latents(**given | change(given), eps=EPS, interleaved=True)
    assert given["kv_cache"].isnan().all()
    assert (given["q_out"] == 1).all()


@pytest.mark.parametrize(
    "q,message",
    [
        (torch.ones(2, 3, 8).double(), "q: expected float16"),
        (torch.ones(2, 8, 3).transpose(1, 2), "q: expected .* heads side by side"),
        (torch.ones(2, 3, 2), "D of at least 4"),
        (torch.ones(3, 3, 8), r"positions: expected contiguous int64 \[3\]"),
    ],
)
def test_wrong_queries_are_refused(q, message):
    with pytest.raises(ValueError, match=message):
        OPS.rotate_queries(q, table(4), torch.tensor([1, 2]), True)
