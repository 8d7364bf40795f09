"""Blocks larger than any sequence, up to absurd ones: they run in the memory of those who run, or are refused."""

from __future__ import annotations

import pytest

from engine.core import decode_set

LARGE = 10**9
ALLOCATORS = ("paged", "orca-max", "orca-pow2", "orca-oracle", "contiguous-oracle-best-fit", "contiguous-limit-buddy")
TIMES = ("mean_ttft_s", "mean_tpot_s", "mean_batch_size", "output_tok_per_s", "num_preemptions", "num_finished")


def runs_of(pagelab, strict_object, *words):
    done = pagelab(*words, "--json")
    assert done.code == 0, done.err
    return strict_object(done.out)["runs"]


@pytest.mark.parametrize("allocator", [*ALLOCATORS, "contiguous-chunk({size})-first-fit"])
def test_a_block_that_holds_any_sequence_may_be_of_any_size(pagelab, strict_object, trace_file, allocator):
    """Also beyond the sizes that have a bucket a phase."""
    found = []
    for size in (512, decode_set.MOST_LISTED + 1, LARGE):
        name = allocator.format(size=size)
        words = ("--trace", trace_file, "--max-model-len", 300, "--num-blocks", 6, "--block-size", size, "-a", name)
        (run,) = runs_of(pagelab, strict_object, "run", *words)
        found.append({name: run[name] for name in TIMES})
    assert found[0]["mean_batch_size"] > 1
    assert found == [found[0]] * 3


@pytest.mark.parametrize("allocator", ["paged", "orca-pow2", "contiguous-chunk(32)-first-fit"])
def test_sparse_buckets_change_no_number(pagelab, strict_object, trace_file, allocator, monkeypatch):
    words = ("--trace", trace_file, "--max-model-len", 300, "--kv-tokens", 1024, "--block-size", 16, "-a", allocator)
    listed = runs_of(pagelab, strict_object, "run", *words)
    monkeypatch.setattr(decode_set, "MOST_LISTED", 0)
    assert runs_of(pagelab, strict_object, "run", *words) == listed


def test_every_token_is_checked_in_blocks_of_any_size(pagelab, strict_object, trace_file):
    words = ("--trace", trace_file, "--max-model-len", 300, "--num-blocks", 6, "--block-size", LARGE)
    (run,) = runs_of(pagelab, strict_object, "run", *words, "--executor", "shadow")
    assert run["num_finished"] == 40


@pytest.mark.parametrize("words", [("compare",), ("run",), ("run", "--kv-tokens", LARGE - 1)])
def test_a_block_that_no_pool_has_room_for_is_refused(pagelab, trace_file, words):
    done = pagelab(*words, "--trace", trace_file, "--block-size", LARGE)
    assert done.code == 2
    assert f"not one block of {LARGE} tokens fits into a capacity of" in done.err


def test_capacity_and_alloc_refuse_it_too(pagelab):
    done = pagelab("capacity", "-m", "llama-3-8b", "--gpu", "a100-80g", "--block-size", LARGE)
    assert (done.code, f"asked for a block of {LARGE} tokens" in done.err) == (2, True)
    done = pagelab("bench", "alloc", "--block-size", LARGE)
    assert done.code == 2
    assert "block_sizes: not one block of 1,000,000,000 tokens fits into a pool of 16,384 tokens" in done.err


def test_a_sweep_names_the_point_that_cannot_be_and_runs_the_others(pagelab, trace_file):
    done = pagelab("sweep", "--trace", trace_file, "--axis", f"kv.block_size=16,{LARGE}", "-o", "swept")
    assert done.code == 3
    assert f"kv.block_size={LARGE}: not one block of {LARGE} tokens fits" in done.err


def test_the_real_engine_says_what_it_would_take(pagelab, trace_file, tiny_model):
    model = ("-m", tiny_model, "--weights-seed", 0, "--backend", "cpu", "--block-size", LARGE)
    for words in (
        ("run", "--trace", trace_file, "--max-model-len", 300, "--num-blocks", 6, *model),
        ("generate", "1,2", "--token-ids", *model),
        ("generate", "1,2", "--token-ids", "--num-blocks", 6, *model),
    ):
        done = pagelab(*words)
        assert done.code == 2, done.err
        assert "0 blocks fit; ask for no more, or for a smaller block_size or model" in done.err
