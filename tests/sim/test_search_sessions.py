"""Conversations whose answers are searched for: the next turn repeats the best beam, and finds all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.ancestry import Ancestry
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from tests.sim.cases import US, Case
from tests.sim.check import check_shared
from tests.sim.test_skipping import random_cases
from workloads import Trace

LIMITS = SchedulerConfig(256)


def talks(num_talks: int, num_turns: int, prefix: int, message: int, answer: int) -> Trace:
    """Conversations that begin with one text, each with its own text after it."""
    rows = [(talk, turn) for talk in range(num_talks) for turn in range(num_turns)]
    prompts = [prefix + (turn + 1) * message + turn * answer for _, turn in rows]
    runs = [
        part for (talk, _), prompt in zip(rows, prompts, strict=True) for part in (0, prefix, talk + 1, prompt - prefix)
    ]
    later = [turn > 0 for _, turn in rows]
    return Trace.build(
        [0] * len(rows),
        prompts,
        [answer] * len(rows),
        session=[talk for talk, _ in rows],
        parent=[row - 1 if after else -1 for row, after in enumerate(later)],
        delay_ns=[1_000 if after else -1 for after in later],
        block_ids=runs,
        block_offsets=[4 * row for row in range(len(rows) + 1)],
        block_size=1,
        block_scope="runs",
        block_partial="floor",
    )


def hits(trace: Trace, spec: RunSpec, seed: int) -> int:
    run = simulate(spec, trace, lambda pool: CostExecutor(LinearModel(US, 0, 0, 0), ancestry=Ancestry(seed, 0.5)))
    assert [row.status for row in run.rows] == ["finished"] * len(trace)
    return run.prefix.hits


@pytest.mark.parametrize("size", [1, 3, 4, 16])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_search_is_found_again_as_samples_are(size, width):
    """All that was computed, in whole blocks, whichever beams lived on; the last token of an answer never is."""
    trace = talks(3, 3, prefix=5, message=6, answer=13)
    samples = RunSpec("paged", PoolConfig(500, size, 256), LIMITS, num_samples=width)
    expected = hits(trace, samples, 0)
    after = [
        int(prompt) - 6 - 1 for prompt, parent in zip(trace.num_prompt_tokens, trace.parent, strict=True) if parent >= 0
    ]
    assert expected >= sum(tokens // size * size for tokens in after)
    for seed in range(5):
        assert hits(trace, replace(samples, beam_search=True), seed) == expected


@given(seed=st.integers(0, 2**32 - 1), capacity=st.integers(24, 80), size=st.sampled_from((1, 2, 4)))
@random_cases(25)
def test_searches_of_sessions_are_the_same_stepped_skipped_cut_and_shadowed(seed, capacity, size):
    """Pools in which some are preempted, too."""
    trace = talks(3, 3, prefix=seed % 5 + 1, message=seed % 3 + 1, answer=seed % 7 + 1)
    pool = PoolConfig(max(capacity // size, -(-70 // size)), size, 64, host_blocks=seed % 2 * 40)
    limits = SchedulerConfig(64, max_num_batched_tokens=64, preemption="swap" if seed % 2 else "recompute")
    spec = RunSpec("paged", pool, limits, num_samples=seed % 3 + 1, beam_search=True)
    check_shared(Case(seed, spec, trace, LinearModel(US, 0, 0, 0), None))
