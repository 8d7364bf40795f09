"""The KV write in Triton's interpreter: bits where slots say, and nowhere else."""

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels.kv_write import write_kv
from engine.attention.kernels.tuning import WriteConfig
from tests.engine.attention.kernels.pools import poisoned_caches


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def written_by_hand(k, v, k_cache, v_cache, slots):
    block_size = k_cache.shape[1]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[token]
            v_cache[slot // block_size, slot % block_size] = v[token]


@pytest.mark.parametrize(
    "layout,dtype,block_size,num_kv_heads,head_size,config",
    [
        ("kv_first", torch.float32, 16, 2, 64, None),
        ("block_first", torch.float16, 1, 1, 80, None),
        ("interleaved", torch.bfloat16, 8, 5, 96, WriteConfig(tokens=1, block_elements=128, num_warps=1)),
        ("kv_first", torch.bfloat16, 24, 3, 80, WriteConfig(tokens=4, block_elements=256, num_warps=2)),
        ("block_first", torch.float32, 256, 1, 256, WriteConfig(tokens=2, block_elements=64, num_warps=1)),
        ("interleaved", torch.float16, 32, 2, 128, WriteConfig(tokens=8, block_elements=256, num_warps=4)),
    ],
)
def test_every_token_lands_in_its_slot_and_nothing_else_changes(
    layout, dtype, block_size, num_kv_heads, head_size, config
):
    generator = torch.Generator().manual_seed(1)
    num_blocks = 40 // block_size + 4
    mine = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, dtype, "cpu")
    theirs = poisoned_caches(layout, num_blocks, block_size, num_kv_heads, head_size, dtype, "cpu")
    slots = (
        torch.randperm((num_blocks - 2) * block_size, generator=generator)[:7] + block_size
    )  # outer blocks: canaries
    slots[2] = slots[5] = -1
    qkv = torch.randn(len(slots), 3, num_kv_heads, head_size, generator=generator).to(dtype)  # as one projection gives
    k, v = qkv[:, 1], qkv[:, 2]
    k[0, 0, 3] = torch.inf
    written_by_hand(k, v, *theirs, slots)
    write_kv(k, v, *mine, slots, config=config)
    for got, expected in zip(mine, theirs, strict=True):
        assert torch.equal(bits(got), bits(expected))


def test_a_step_without_tokens_writes_nothing():
    k_cache, v_cache = poisoned_caches("kv_first", 2, 16, 1, 64, torch.float32, "cpu")
    write_kv(torch.zeros(0, 1, 64), torch.zeros(0, 1, 64), k_cache, v_cache, torch.zeros(0, dtype=torch.int64))
    assert k_cache.isnan().all()
    assert v_cache.isnan().all()


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda a: a | {"slot_mapping": a["slot_mapping"].int()}, "slot_mapping: expected int64, got int32"),
        (lambda a: a | {"slot_mapping": a["slot_mapping"][:2]}, "slot_mapping: expected shape"),
        (lambda a: a | {"k": a["k"].half()}, "k: expected float32, got float16"),
        (lambda a: a | {"v": a["v"][:, :, :32]}, "v: expected shape"),
        (lambda a: a | {"v_cache": a["v_cache"].transpose(0, 1).contiguous().transpose(0, 1)}, "strides of k"),
        (lambda a: a | {"k_cache": a["k_cache"].transpose(2, 3)}, "expected"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(change, message):
    k_cache, v_cache = poisoned_caches("kv_first", 4, 16, 2, 64, torch.float32, "cpu")
    k = torch.zeros(3, 2, 64)
    good = {"k": k, "v": k, "k_cache": k_cache, "v_cache": v_cache, "slot_mapping": torch.tensor([1, 2, 3])}
    with pytest.raises(AttentionInputError, match=message):
        write_kv(**change(good))
    assert k_cache.isnan().all()
    assert v_cache.isnan().all()
