"""The grid: it fits the pool, reaches its ends, and is the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from experiments.calibrate.clocks import summed_up
from experiments.calibrate.grid import MOST_BETWEEN, Limits, decode_points, mixed_points

LIMITS = [
    Limits(256, 2048, 4096, 110_592, 16),
    Limits(256, 2048, 4096, 110_592, 256),
    Limits(256, 2048, 2048, 65_536, 128),
    Limits(16, 256, 512, 4096, 1),
    Limits(4, 96, 2048, 4096, 16),
    Limits(1, 64, 64, 256, 16),
    Limits(256, 2048, 64, 4095, 256),
    Limits(256, 2048, 44, 65_536, 16),
    Limits(256, 512, 100, 54_999, 5_000),
]
STEPS = 24


@pytest.mark.parametrize("steps_a_point", [1, 6, 20, 60])
@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: f"{limits.max_num_seqs} of {limits.block_size}")
def test_every_point_fits_the_pool_and_the_model(limits, steps_a_point):
    buckets = [size for size in (1, 4, 16, 64, 256) if size <= limits.max_num_seqs]
    decodes = decode_points(buckets, limits, STEPS, 6, 3)
    assert {len(point.contexts) for point in decodes} <= set(buckets)
    for point in decodes:
        assert min(point.contexts) >= 1
        assert max(point.contexts) + STEPS + 1 <= limits.max_model_len
        assert held(point.contexts, STEPS + 1, limits.block_size) <= limits.kv_tokens
    tokens = [size for size in (64, 128, 512, 2048) if size <= limits.max_num_batched_tokens]
    for mixed in mixed_points(tokens, limits, steps_a_point, 3):
        assert max(mixed.contexts, default=0) + mixed.growth < limits.max_model_len or not mixed.contexts
        for one in mixed.steps:
            decoding = held(mixed.contexts, mixed.growth, limits.block_size)
            assert decoding + held(map(sum, one.chunks), 0, limits.block_size) <= limits.kv_tokens
            assert 1 <= len(one.chunks) <= limits.max_num_seqs - len(mixed.contexts)
            assert all(
                new >= 1 and context >= 0 and context + new < limits.max_model_len for context, new in one.chunks
            )
            assert len(mixed.contexts) + sum(new for _, new in one.chunks) <= limits.max_num_batched_tokens


def held(contexts: Iterable[int], growth: int, block_size: int) -> int:
    """Token slots of the blocks that they hold in the end."""
    return sum(-(-(context + growth) // block_size) * block_size for context in contexts)


def test_steps_with_chunks_reach_a_full_pool_too():
    limits = LIMITS[0]
    most = max(sum(p.contexts) + sum(map(sum, p.steps[0].chunks)) for p in mixed_points([512], limits, 6, 0))
    assert most > 0.75 * limits.kv_tokens


def test_curves_reach_from_short_contexts_to_a_full_pool():
    limits = LIMITS[0]
    for bucket in (16, 64, 256):
        totals = [sum(p.contexts) for p in decode_points([bucket], limits, STEPS, 6, 0)]
        assert len(totals) == 6
        assert min(totals) <= 10 * bucket
        room = min(limits.kv_tokens - bucket * (STEPS + 2), bucket * (limits.max_model_len - STEPS - 2))
        assert max(totals) > 0.95 * room


@pytest.mark.parametrize("block_size", [1, 16, 64, 256])
def test_curves_reach_as_far_as_sequences_get_whose_last_blocks_are_half_empty(block_size):
    """Large blocks leave much of the pool empty, but not of every sequence a whole block."""
    limits = Limits(256, 2048, 4096, 110_592, block_size)
    totals = [sum(point.contexts) for point in decode_points([256], limits, STEPS, 6, 0)]
    half_empty = limits.kv_tokens - 256 * (block_size // 2 + STEPS)
    assert max(totals) > 0.95 * half_empty
    assert len(set(totals)) == 6


def test_the_more_decode_the_fewer_steps_lie_between_two_with_chunks():
    points = {(p.name.split("-")[1], len(p.contexts)): p.between for p in mixed_points([64, 2048], LIMITS[0], 6, 0)}
    assert points["2048", 16] == MOST_BETWEEN
    assert points["2048", 240] == 8
    assert points["64", 16] == 4
    assert points["2048", 0] == 0


def test_batches_are_ragged():
    point = next(p for p in decode_points([64], LIMITS[0], STEPS, 6, 0) if 200 * 64 < sum(p.contexts) < 600 * 64)
    mean = sum(point.contexts) / 64
    assert max(point.contexts) > 2.5 * mean


def test_the_same_seed_is_the_same_grid_and_another_is_another():
    one, again, other = (mixed_points([128, 512], LIMITS[0], 4, seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_clocks_are_summed_up_and_a_torn_line_counts_as_none():
    found = summed_up("1980, 600.5, 50\n1755, 650.0, 55\n1900, [N/A], 51\n18")
    assert found["sm_clock_mhz"] == {"least": 1755.0, "median": 1867.5, "most": 1980.0}
    assert found["num_samples"] == 2
    assert summed_up("") == {}
