"""Ranks in simulated time: they divide the bytes of a token, and change no decision of any allocator."""

from __future__ import annotations

import pytest

ALLOCATORS = ("paged", "orca-max", "orca-pow2", "orca-oracle", "contiguous-chunk(64)-best-fit")
MODEL = ("-m", "llama-3-70b", "--max-model-len", 300, "--step-model", "linear:0.02,0.0001,0.000001,0.0001")
HEADS = 8
"""KV heads of the model: more ranks repeat them."""


def runs_of(pagelab, strict_object, trace, *words):
    done = pagelab("run", "--trace", trace, *MODEL, *words, "--json")
    assert done.code == 0, done.err
    said = strict_object(done.out)
    return said["capacity"]["bytes_per_token"], [{**run, "cell": None} for run in said["runs"]]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_same_tokens_over_any_ranks_are_the_same_run(pagelab, strict_object, trace_file, allocator):
    words = ("-a", allocator, "--kv-tokens", 1024)
    alone, expected = runs_of(pagelab, strict_object, trace_file, *words)
    for ranks in (2, HEADS, 2 * HEADS):
        of_a_rank, found = runs_of(pagelab, strict_object, trace_file, *words, "--tp", ranks)
        assert of_a_rank == alone // min(ranks, HEADS)
        assert found == expected
    assert expected[0]["mean_batch_size"] > 1


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_ranks_bytes_hold_twice_the_tokens_over_two(pagelab, strict_object, trace_file, allocator):
    alone, _ = runs_of(pagelab, strict_object, trace_file, "--kv-tokens", 1024)
    _, double = runs_of(pagelab, strict_object, trace_file, "-a", allocator, "--kv-bytes", 2048 * alone)
    _, found = runs_of(pagelab, strict_object, trace_file, "-a", allocator, "--kv-bytes", 1024 * alone, "--tp", 2)
    assert found == double
