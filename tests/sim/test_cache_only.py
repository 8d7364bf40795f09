"""Laws of the bare prefix caches: what no policy can beat, what a larger cache cannot lose, and the smallest cases."""

from __future__ import annotations

import os
from itertools import accumulate, combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cache_only import NEVER, POLICIES, Paged, Prompts, check_capacity, hit_frac, hit_tokens, prompts_of
from workloads import Trace, load_trace

BLOCK = 4
STACKS = ("lru", "optimal")
BARE = ("fifo", "lru", "optimal")


@st.composite
def chained(draw, most_requests=24, most_depth=4, width=3):
    """Prompts that are paths of a tree, each of whole blocks: node = the path that leads to it."""
    paths = draw(
        st.lists(
            st.lists(st.integers(0, width - 1), min_size=1, max_size=most_depth), min_size=1, max_size=most_requests
        )
    )
    nodes: dict[tuple[int, ...], int] = {}
    keys = [[nodes.setdefault(tuple(path[: d + 1]), len(nodes)) for d in range(len(path))] for path in paths]
    return Prompts(keys, [BLOCK * len(path) for path in paths], BLOCK)


def found(prompts: Prompts, policy: str, capacity: int) -> list[int]:
    return list(hit_tokens(prompts, POLICIES[policy](prompts, capacity)))


def seen_before(prompts: Prompts) -> list[int]:
    """What a cache without a bound finds."""
    seen: set[int] = set()
    tokens = []
    for keys, most in zip(prompts.keys, prompts.num_tokens, strict=True):
        known = [key in seen for key in keys]
        tokens.append(min(prompts.block_size * (known.index(False) if False in known else len(keys)), most))
        seen.update(keys)
    return tokens


def best_by_trying(prompts: Prompts, capacity: int) -> int:
    """Most blocks that can be found at all: every set that a cache could hold after each request."""
    states = {frozenset[int](): 0}
    for keys in prompts.keys:
        after: dict[frozenset[int], int] = {}
        for cached, before in states.items():
            hits = next((depth for depth, key in enumerate(keys) if key not in cached), len(keys))
            at_hand = cached | set(keys)
            for kept in combinations(sorted(at_hand), min(capacity, len(at_hand))):
                state = frozenset(kept)
                after[state] = max(after.get(state, 0), before + hits)
        states = after
    return max(states.values())


@given(chained(most_requests=6, most_depth=3, width=2), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_the_optimum_is_the_best_of_all_that_can_be_tried(prompts, capacity):
    assert sum(found(prompts, "optimal", capacity)) == BLOCK * best_by_trying(prompts, capacity)


@given(chained(), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_nothing_finds_more_than_the_optimum(prompts, capacity):
    best = sum(found(prompts, "optimal", capacity))

    assert all(sum(found(prompts, policy, capacity)) <= best for policy in POLICIES)


@given(chained(), st.sampled_from(STACKS))
@settings(max_examples=200, deadline=None)
def test_a_larger_cache_finds_no_less(prompts, policy):
    by_size = [sum(found(prompts, policy, capacity)) for capacity in range(1, 16)]

    assert all(smaller <= larger for smaller, larger in pairwise(by_size))


@given(chained())
@settings(max_examples=200, deadline=None)
def test_lru_is_a_stack_prompt_by_prompt(prompts):
    small, large = found(prompts, "lru", 3), found(prompts, "lru", 5)

    assert all(a <= b for a, b in zip(small, large, strict=True))


@given(chained(), st.sampled_from(BARE))
@settings(max_examples=200, deadline=None)
def test_a_cache_that_holds_everything_finds_all_that_was_there_before(prompts, policy):
    assert found(prompts, policy, 200) == seen_before(prompts)


@given(chained())
@settings(max_examples=200, deadline=None)
def test_vllm_finds_the_same_but_never_the_last_token(prompts):
    whole = [
        min(tokens, (most - 1) // BLOCK * BLOCK)
        for tokens, most in zip(seen_before(prompts), prompts.num_tokens, strict=True)
    ]

    assert found(prompts, "vllm", 200) == whole


def test_a_partly_filled_last_block_counts_for_what_it_holds_and_is_nothing_to_vllm():
    prompts = Prompts([[0, 1], [0, 1]], [6, 6], BLOCK)

    assert found(prompts, "lru", 8) == [0, 6]
    assert found(prompts, "vllm", 8) == [0, 4]


def test_lru_keeps_the_head_of_a_chain_longer_than_its_tail_and_fifo_the_other_way_round():
    prompts = Prompts([[0, 1, 2], [9], [0, 1, 2]], [12, 4, 12], BLOCK)

    assert found(prompts, "lru", 3) == [0, 0, 8]  # 9 took the place of 2
    assert found(prompts, "fifo", 3) == [0, 0, 0]  # and here of 0, without which 1 and 2 are out of reach


def test_the_first_requests_only_warm_the_cache():
    prompts = Prompts([[0], [0], [1], [0]], [4, 4, 4, 4], BLOCK)

    assert hit_frac(prompts, POLICIES["lru"](prompts, 9)) == 0.5
    assert hit_frac(prompts, POLICIES["lru"](prompts, 9), warm_requests=2) == 0.5
    assert hit_frac(prompts, POLICIES["lru"](prompts, 9), warm_requests=3) == 1.0
    assert hit_frac(prompts, POLICIES["lru"](prompts, 9), warm_requests=4) is None


def test_prompts_larger_than_vllms_pool_are_counted_and_leave_nothing():
    prompts = Prompts([[0, 1, 2], [0, 1], [0, 1]], [12, 8, 8], BLOCK)
    cache = Paged(prompts, 2)

    assert list(hit_tokens(prompts, cache)) == [0, 0, 4]
    assert cache.num_refused == 1
    cache.allocator.check()


def test_ids_that_name_single_blocks_are_chained_and_failed_requests_ask_for_nothing():
    trace = Trace.build(
        [0, 1, 2], [8, 8, 4], [1, 1, 0], block_offsets=[0, 2, 4, 5], block_ids=[7, 8, 8, 8, 7],
        block_size=4, block_scope="content", block_partial="ceil",
    )  # fmt: skip
    prompts = prompts_of(trace)

    assert len(prompts) == 2
    assert prompts.keys[0][1] not in prompts.keys[1]
    assert prompts.longest_blocks == 2
    assert len(prompts) < NEVER


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(2, 4), st.integers(1, 30)), min_size=1),
    st.integers(1, 7),
)
@settings(max_examples=100, deadline=None)
def test_runs_of_texts_are_found_block_by_block_as_their_tokens_are(rows, size):
    """Against tokens written out: a prompt finds the full blocks that begin some prompt before it."""
    shown = [
        [(first, at) for at in range(head)] + [(then, at) for at in range(tail)] for first, head, then, tail in rows
    ]
    trace = Trace.build(
        list(range(len(rows))), [len(prompt) for prompt in shown], [1] * len(rows), block_size=1, block_scope="runs",
        block_ids=[part for row in rows for part in (row if row[1] else row[2:])], block_partial="floor",
        block_offsets=[0, *accumulate(4 if row[1] else 2 for row in rows)],
    )  # fmt: skip
    seen: set[tuple] = set()
    expected = []
    for prompt in shown:
        heads = [tuple(prompt[:stop]) for stop in range(size, len(prompt) + 1, size)]
        known = [head in seen for head in heads]
        expected.append(size * (known.index(False) if False in known else len(heads)))
        seen.update(heads)
    prompts = prompts_of(trace, size)

    assert prompts.block_size == size
    assert found(prompts, "lru", 10_000) == expected
    assert all(vllm <= most for vllm, most in zip(found(prompts, "vllm", 10_000), expected, strict=True))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no block ids"):
        prompts_of(Trace.build([0], [8], [1]))
    with pytest.raises(ValueError, match="at least one block, got 0"):
        check_capacity(0)


REAL = Path(os.environ.get("PAGELAB_DATA", "")) / "mooncake/conversation_trace.jsonl.gz"
MEASURED = {  # kvcache-simulator 0.1.3 on the same file: last half, %
    ("fifo", 1_756): 5.2, ("fifo", 7_027): 14.9, ("fifo", 56_216): 35.6,
    ("lru", 1_756): 5.4, ("lru", 7_027): 16.4, ("lru", 56_216): 38.1,
    ("optimal", 1_756): 25.3, ("optimal", 7_027): 39.0, ("optimal", 56_216): 39.8,
}  # fmt: skip


@pytest.mark.skipif("PAGELAB_DATA" not in os.environ, reason="PAGELAB_DATA names no folder")
def test_the_public_conversation_trace_gives_the_rates_of_another_simulator():
    prompts = prompts_of(load_trace(REAL).trace)
    half = len(prompts) // 2
    rates = {
        (policy, size): 100 * (hit_frac(prompts, POLICIES[policy](prompts, size), warm_requests=half) or 0.0)
        for policy in POLICIES
        for size in (1_756, 7_027, 56_216)
    }

    assert all(abs(rates[key] - expected) <= 0.1 for key, expected in MEASURED.items()), rates
    assert rates["vllm", 7_027] == pytest.approx(17.19, abs=0.005)
