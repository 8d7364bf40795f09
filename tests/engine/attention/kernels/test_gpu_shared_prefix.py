"""Decode over shared prefixes on a CUDA device within 5e-3 of a float32 reference, eagerly and in a CUDA graph.

    PAGELAB_GPU=1 python -m pytest tests/engine/attention/kernels/test_gpu_shared_prefix.py

Pairs of everything that changes an address; pools are poisoned, and nothing that is shared is kept twice.
"""

import pytest
import torch
import triton

from engine.attention.kernels.launch import decode_attention, plan_shared, shared_prefix_attention
from engine.attention.kernels.launch_decode import shape_of
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.tuning_shared import SharedConfig
from tests.engine.attention.kernels.pairwise import pairwise
from tests.engine.attention.kernels.shared_cases import SharedCase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret, reason="no CUDA device, or not PAGELAB_GPU=1"
    ),
]
BOUND = 5e-3
SPLIT = DecodeConfig(64, 4, 3, programs=528, min_piece_tokens=128)
CONFIGS = {
    "rule": None,
    "one-after-the-other": SharedConfig(128, 64, 8, 3, programs=132, min_piece_tokens=256),
    "shared-first": SharedConfig(64, 64, 4, 3, programs=264, min_piece_tokens=128, own=SPLIT, overlap="shared_first"),
    "own-first": SharedConfig(64, 64, 4, 2, programs=528, min_piece_tokens=64, overlap="own_first"),
    "one-piece": SharedConfig(64, 32, 4, 2, programs=1, min_piece_tokens=64, own=SPLIT),
}
ROWS = pairwise(
    {
        "block_size": (1, 16, 24, 32, 64, 256),
        "head_size": (64, 80, 96, 128, 256),
        "group": (1, 4, 5, 8, 16),
        "dtype": (torch.float16, torch.bfloat16),
        "layout": ("kv_first", "block_first", "interleaved"),
        "config": tuple(CONFIGS),
    }
)


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    yield
    torch.cuda.empty_cache()


def case_of(row, seed=0):
    """Three groups, of which one has 33 members, and rows alone; own tokens from none to 4,097."""
    size, options = row["block_size"], {name: value for name, value in row.items() if name != "config"}
    if row["head_size"] > 128 and row["config"] not in ("rule", "one-piece"):
        options["head_size"] = 128  # tiles of 128 pairs or of 64 keys need more registers than there are
    long, short, one = -(-5000 // size), -(-700 // size), 1
    owns = [0, 1, 63, 64, 65, 4097, *range(2, 29)]
    groups = [(range(33), long), ((36, 34), short), ((33, 37, 39), one)]
    lengths = [long * size + own for own in owns] + [one * size + 5, short * size, 0, short * size + 999]
    lengths += [one * size + 1, 300, one * size + 64, 1]
    return SharedCase(groups, lengths, num_kv_heads=2, device="cuda", seed=seed, **options)


def attend(case, tensors, config, **options):
    return shared_prefix_attention(
        case.q, *tensors, case.seq_lens, case.shared(16), scale=case.scale, max_seq_len=case.max_seq_len,
        config=config, **options,
    )  # fmt: skip


def assert_within_bound(case, out, soft_cap=0.0):
    """Relative error of every sequence by itself."""
    expected = case.expected(soft_cap=soft_cap, dtype=torch.float32)
    for row, length in enumerate(case.lengths):
        error = (out[row].float() - expected[row]).norm() / expected[row].norm().clamp(min=1e-6)
        assert error <= BOUND, f"sequence {row} of {length} tokens: relative error {error:.2e}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(v).removeprefix("torch.") for v in row.values()))
def test_shared_prefixes(row):
    case = case_of(row)
    assert_within_bound(case, attend(case, case.paged(), CONFIGS[row["config"]]))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_soft_cap(config):
    case = case_of({"block_size": 16, "head_size": 128, "group": 4, "dtype": torch.bfloat16, "config": config})
    assert_within_bound(case, attend(case, case.paged(), CONFIGS[config], soft_cap=20.0), soft_cap=20.0)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_captured_call_is_replayed_with_other_rows_groups_and_lengths(config):
    """Plan and call in one graph, as in a decode step; then the contents of its tensors change, and nothing else."""
    first = case_of({"block_size": 16, "head_size": 128, "group": 4, "dtype": torch.bfloat16, "config": config})
    k_cache, v_cache, table = first.paged()
    lengths = [2000 + row for row in range(30)] + [first.max_seq_len, *range(1, 11)]
    second = SharedCase(
        [(range(1, 30, 2), 125), (range(0, 30, 2), 100)], lengths, num_kv_heads=2, head_size=128, dtype=torch.bfloat16,
        device="cuda", seed=1,
    )  # fmt: skip
    other = second.paged()
    pools = [torch.cat([mine, new]) for mine, new in zip((k_cache, v_cache), other[:2], strict=True)]
    moved = torch.where(other[2] < len(other[0]), other[2] + len(k_cache), other[2])
    width = max(table.shape[1], moved.shape[1])
    table, moved = (torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in (table, moved))
    prefixes, out = first.shared(16), torch.empty_like(first.q)
    lens, q, longest = first.seq_lens.clone(), first.q.clone(), max(first.max_seq_len, second.max_seq_len)

    def step():
        plan = plan_shared(lens, prefixes, shape_of(q, 2, longest, 16), CONFIGS[config])
        for _ in range(2):  # two layers of one step
            shared_prefix_attention(
                q, *pools, table, lens, prefixes, scale=first.scale, max_seq_len=longest, out=out, plan=plan
            )

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    out.fill_(torch.nan)
    graph.replay()
    assert_within_bound(first, out)
    now = second.shared(16)
    for target, source in (
        (lens, second.seq_lens), (q, second.q), (table, moved), (prefixes.members, now.members),
        (prefixes.groups, now.groups),
    ):  # fmt: skip
        target.copy_(source)
    out.fill_(torch.nan)
    graph.replay()
    assert_within_bound(second, out)


def test_the_goals_shape_is_right_and_agrees_with_plain_decode():
    case = SharedCase(
        [(range(64), 512)], [8192 + 512] * 64, num_kv_heads=8, group=4, head_size=128, dtype=torch.bfloat16,
        device="cuda",
    )  # fmt: skip
    k_cache, v_cache, table = case.paged(unread=False)
    out = attend(case, (k_cache, v_cache, table), None)
    assert_within_bound(case, out)
    plain = decode_attention(
        case.q, k_cache, v_cache, table, case.seq_lens, scale=case.scale, max_seq_len=case.max_seq_len
    )
    assert (out.float() - plain.float()).norm() / plain.float().norm() <= BOUND
