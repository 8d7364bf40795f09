"""Small cases for a memory checker; exits with 1 if a result is wrong.

    PAGELAB_GPU=1 compute-sanitizer --tool memcheck python -m tests.engine.attention.kernels.memcheck

Every tensor is an allocation of its own, so that the checker sees an access that leaves one.
"""

import os
import sys

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

from engine.attention.kernels import launch
from engine.attention.kernels.tuning import DecodeConfig, PrefillConfig
from tests.engine.attention.kernels.pools import Case, assert_close

SPLIT = DecodeConfig(block_n=64, num_warps=4, num_stages=3, programs=64, min_piece_tokens=64)
TMA = PrefillConfig(block_m=64, block_n=32, num_warps=4, num_stages=2, use_tma=True)


def decode_split() -> None:
    case = Case([1, 63, 300, 0], head_size=128, dtype=torch.bfloat16, device="cuda")
    k, v, table = case.paged()
    out = launch.decode_attention(
        case.q, k, v, table, case.seq_lens, scale=case.scale, max_seq_len=300, config=SPLIT
    )  # fmt: skip
    assert_close(out, case.expected())


def decode_odd_blocks_and_twin() -> None:
    case = Case([25, 130], (), 2, 5, 80, 24, torch.float16, "interleaved", "cuda")
    k, v, table = case.paged()
    options = {"scale": case.scale, "max_seq_len": 130}
    assert_close(launch.decode_attention(case.q, k, v, table, case.seq_lens, **options), case.expected())
    k, v, starts = case.contiguous(gap=0)
    assert_close(launch.decode_contiguous(case.q, k, v, starts, case.seq_lens, **options), case.expected())


def prefill_pointers() -> None:
    case = Case([130, 65], [130, 7], 2, 4, 96, 16, torch.bfloat16, "block_first", "cuda")
    k, v, table = case.paged()
    out = launch.prefill_attention(
        case.q, k, v, table, case.query_start_loc, case.seq_lens, scale=case.scale, max_query_len=130, max_seq_len=130
    )
    assert_close(out, case.expected())


def prefill_tma_and_twin() -> None:
    case = Case([130, 65], [40, 65], 2, 4, 128, 64, torch.bfloat16, "interleaved", "cuda")
    k, v, table = case.paged()
    options = {"scale": case.scale, "max_query_len": 65, "max_seq_len": 130, "config": TMA}
    tables = case.query_start_loc, case.seq_lens
    assert_close(launch.prefill_attention(case.q, k, v, table, *tables, **options), case.expected())
    k, v, starts = case.contiguous(gap=0)
    assert_close(launch.prefill_contiguous(case.q, k, v, starts, *tables, **options), case.expected())


def mixed_with_window_and_cap() -> None:
    case = Case([200, 33, 90], [1, 1, 40], 1, 8, 128, 16, torch.bfloat16, "kv_first", "cuda")
    k, v, table = case.paged(window=50)
    out = launch.mixed_attention(
        case.q, k, v, table, case.query_start_loc, case.seq_lens, num_decodes=2, scale=case.scale, max_query_len=40,
        max_seq_len=200, window=50, soft_cap=10.0,
    )  # fmt: skip
    assert_close(out, case.expected(50, 10.0))


def write_and_copy() -> None:
    case = Case([40], device="cuda", head_size=80, block_size=8, num_kv_heads=3, dtype=torch.float16)
    k_cache, v_cache, _ = case.paged()
    k = torch.randn(5, 3, 80, device="cuda").half()
    slots = torch.tensor([0, -1, 9, k_cache.shape[0] * 8 - 1, 20], device="cuda")
    launch.write_kv(k, -k, k_cache, v_cache, slots)
    assert torch.equal(k_cache[-1, 7], k[3])
    assert torch.equal(v_cache[2, 4], -k[4])
    expected = k_cache[[0, 1]].clone()
    launch.copy_blocks([k_cache], torch.tensor([[0, 1], [1, 2]]))
    assert torch.equal(k_cache[[1, 2]].view(torch.int16), expected.view(torch.int16))


def prefill_of_hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        return
    from engine.attention.kernels.launch_hopper import HopperConfig

    for block_size in (16, 64):
        case = Case([300, 65, 0], [140, 65, 0], 2, 4, 128, block_size, torch.bfloat16, "kv_first", "cuda")
        k, v, table = case.paged()
        out = launch.prefill_attention(
            case.q, k, v, table, case.query_start_loc, case.seq_lens, scale=case.scale, max_query_len=140,
            max_seq_len=300, config=HopperConfig(),
        )  # fmt: skip
        assert_close(out, case.expected())


CASES = (
    decode_split,
    decode_odd_blocks_and_twin,
    prefill_pointers,
    prefill_tma_and_twin,
    prefill_of_hopper,
    mixed_with_window_and_cap,
    write_and_copy,
)

if __name__ == "__main__":
    for case in CASES:
        case()
        torch.cuda.synchronize()
        sys.stdout.write(f"{case.__name__}: right\n")
