"""Lives of cached blocks: every one begins and ends once, and idle times add up to what the pool says it has idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.block_pool import BlockPool
from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim import integrals as at
from sim.ancestry import Ancestry
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.extra_metrics import RESIDENCY_METRICS
from sim.residency import Residency
from sim.simulate import Run, RunSpec, simulate
from workloads import Trace

BLOCK = 4
STEP = 7_000
"""Picoseconds."""


def talks(rows: list[tuple[int, list[int], int]]) -> Trace:
    """(arrival in ns, chained block ids of the prompt, output tokens)."""
    ids = [ids for _, ids, _ in rows]
    return Trace.build(
        [arrival for arrival, _, _ in rows],
        [BLOCK * len(one) for one in ids],
        [output for _, _, output in rows],
        block_offsets=np.cumsum([0, *map(len, ids)]),
        block_ids=[block_id for one in ids for block_id in one],
        block_size=BLOCK,
        block_scope="chained",
        block_partial="ceil",
    )


def run(
    trace: Trace, num_blocks: int, *, watched: bool = True, allocator: str = "paged", freed_to="front", **more
) -> Run:
    spec = RunSpec(
        allocator,
        PoolConfig(num_blocks, BLOCK, 256, freed_to=freed_to),
        SchedulerConfig(256, 8, 24),
        record_residency=watched,
        skip=not watched,
        **more,
    )
    done = simulate(spec, trace, CostExecutor(LinearModel(STEP, 0, 0, 0), ancestry=Ancestry(0, 0.5)))
    assert [check for check in done.checks if not check.holds] == []
    return done


@st.composite
def traces(draw):
    """Prompts that are paths of a small tree, so that many share their heads; or the same lengths, nothing shared."""
    nodes: dict[tuple[int, ...], int] = {}
    rows, arrival = [], 0
    for _ in range(draw(st.integers(1, 14))):
        arrival += draw(st.integers(0, 60))
        path = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
        ids = [nodes.setdefault(tuple(path[: d + 1]), len(nodes)) for d in range(len(path))]
        rows.append((arrival, ids, draw(st.integers(1, 12))))
    shared = talks(rows)
    if draw(st.booleans()):
        return shared
    return Trace.build(shared.arrival_ns, shared.num_prompt_tokens, shared.num_output_tokens)


@given(traces(), st.integers(9, 24), st.sampled_from([None, 1e-7, 4e-7]))
@settings(max_examples=80, deadline=None)
def test_lives_begin_and_end_once_and_idle_times_are_the_pools(trace, num_blocks, end_s):
    done = run(trace, num_blocks, end_s=end_s)
    lived = done.recorder.residency

    assert lived is not None
    assert "residency: idle times add up to the cached-free slots" in {check.name for check in done.checks}
    assert lived.num_stored == len(lived.lifetimes) + lived.num_taken_back + lived.num_cached
    assert all(0 <= idle <= life for idle, life in zip(lived.idle_times, lived.lifetimes, strict=True))
    assert len(lived.idle_times) <= done.allocator.stats().num_evictions
    if end_s is None:
        assert lived.num_cached == done.allocator.stats().num_cached_free


@given(traces(), st.integers(30, 60), st.sampled_from(["front", "back"]), st.integers(2, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_idle_times_are_the_pools_where_groups_share_and_beams_die(trace, num_blocks, freed_to, width, beams):
    """`run` looks at the checks; blocks that filled while memory was short, of a beam that died, too."""
    run(trace, num_blocks, freed_to=freed_to, num_samples=width, beam_search=beams)


@given(traces(), st.integers(9, 24))
@settings(max_examples=30, deadline=None)
def test_watching_changes_nothing(trace, num_blocks):
    watched, not_watched = run(trace, num_blocks), run(trace, num_blocks, watched=False)

    added = {key for key in watched.summary if key not in not_watched.summary}
    assert {metric.name for metric in RESIDENCY_METRICS} <= added
    assert {k: v for k, v in watched.summary.items() if k not in added} == not_watched.summary
    assert list(watched.rows) == list(not_watched.rows)


def test_one_block_by_hand():
    """Three requests of one block and a token each step: the second finds the first's block, the third evicts it."""
    pool = BlockPool(2)
    lived = Residency(pool)
    first = pool.take(1)
    pool.commit(first, ["a"])
    lived.drain(10)
    pool.release(first, 1)
    lived.drain(30)
    pool.touch(pool.find(["a"]))
    lived.drain(45)
    pool.release(list(first), 1)
    lived.drain(50)
    pool.take(2)
    lived.close(120)

    assert (list(lived.lifetimes), list(lived.idle_times), list(lived.gaps)) == ([110], [70], [15])
    assert (lived.num_stored, lived.num_hits, lived.num_cached) == (1, 1, 0)
    assert lived.idle_total == 15 + 70


def test_what_a_reset_clears_was_idle_until_then():
    pool = BlockPool(3)
    lived = Residency(pool)
    blocks = pool.take(2)
    pool.commit(blocks, ["a", "b"])
    lived.drain(5)
    pool.release(blocks, 2)
    lived.drain(8)
    assert pool.reset()
    lived.close(20)

    assert (lived.num_cleared, lived.num_cached, lived.idle_total) == (2, 0, 24)


def test_nobody_is_watched_late():
    pool = BlockPool(2)
    pool.commit(pool.take(1), ["a"])

    with pytest.raises(AssertionError, match="1 blocks were cached before"):
        Residency(pool)


def test_a_contiguous_pool_has_no_residency_but_the_same_columns():
    done = run(talks([(0, [0, 1], 3), (5, [0, 2], 2)]), 32, allocator="orca-max")

    assert done.recorder.residency is None
    assert {done.summary[metric.name] for metric in RESIDENCY_METRICS} == {None}


def test_a_missed_release_breaks_the_check(monkeypatch):
    trace = talks([(40 * i, [0, i + 1], 3) for i in range(8)])
    assert run(trace, 12).recorder.integrals.segments()[0][at.TIME] > 0
    tell = BlockPool._tell
    monkeypatch.setattr(
        BlockPool, "_tell", lambda self, kind, ids: tell(self, kind, ids[1:] if kind == "freed" else ids)
    )

    with pytest.raises(AssertionError, match="residency"):
        run(trace, 12)
