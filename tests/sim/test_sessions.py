"""Conversations in the replay: turns come to the picosecond, find what was said, and none is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.sessions import last_arrival_ps, loop_of, turns_of
from sim.simulate import Run, RunSpec, simulate
from workloads import Shape, Trace, session_trace

MODEL = LinearModel(20_000_000_001, 100_000_007, 1_003, 5_000_011)
LONGEST = 4096
SEEDS = st.integers(0, 2**32 - 1)


def chat(seed: int = 0, count: int = 60, **shape: Any) -> Trace:
    shaped = Shape(**{"turn_lengths": "uniform:1-60,1-40", "prefix_tokens": 37, "num_prefixes": 2, **shape})
    return session_trace("chat", seed, shaped, rate_per_s=2.0, num_requests=count)


def play(trace: Trace, size: int = 16, *, slots: int = 1 << 15, caching: bool = True, **spec: Any) -> Run:
    pool = PoolConfig(slots // size, size, max_model_len=LONGEST, enable_caching=caching)
    return simulate(RunSpec("paged", pool, SchedulerConfig(LONGEST), **spec), trace, CostExecutor(MODEL))


def holds(run: Run) -> bool:
    return all(check.holds for check in run.checks)


@given(seed=SEEDS, size=st.sampled_from([1, 3, 8, 16, 64]), think=st.sampled_from(["constant:0", "exponential:0.5"]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_turn_comes_its_delay_after_the_end_and_hits_all_whole_blocks_of_what_was_said(seed, size, think):
    trace = chat(seed, think_time=think)
    run = play(trace, size)
    assert holds(run)
    rows = list(run.rows)
    turns = turns_of(trace)
    assert len(rows) == len(trace)
    assert {row.status for row in rows} == {"finished"}
    assert len(turns) == int((trace.parent >= 0).sum()) > 0
    for index, (parent, delay) in turns.items():
        before, row = rows[parent], rows[index]
        assert row.arrival == before.finish + delay
        said = before.num_prompt_tokens + before.num_output_tokens - 1  # the last token's K and V are never computed
        assert row.num_hit_tokens == said // size * size
    for index in np.flatnonzero(trace.delay_ns < 0).tolist():
        assert rows[index].arrival == int(trace.arrival_ns[index]) * 1_000
        assert rows[index].num_hit_tokens in (0, 37 // size * size)


def test_a_system_prompt_is_found_by_every_conversation_after_the_first():
    trace = chat(turns="fixed:1", num_prefixes=1, count=30)
    run = play(trace.scale_time(100), 4)
    assert [row.num_hit_tokens for row in run.rows] == [0] + [36] * 29


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_without_caching_content_changes_nothing(seed):
    trace = chat(seed)
    columns = ("session", "parent", "delay_ns")
    bare = Trace.build(
        trace.arrival_ns,
        trace.num_prompt_tokens,
        trace.num_output_tokens,
        **{name: getattr(trace, name) for name in columns},
    )
    with_content, without = (play(one, slots=1 << 14, caching=False) for one in (trace, bare))
    assert with_content.rows == without.rows
    assert with_content.makespan == without.makespan


def inside(run: Run) -> int:
    """Most requests between their sending and their end."""
    events = [(row.arrival, 1) for row in run.rows] + [(row.finish, -1) for row in run.rows]
    count = most = 0
    for _, change in sorted(events):  # at one time those that leave go first
        count += change
        most = max(most, count)
    return most


@given(seed=SEEDS, most=st.integers(1, 6), turns=st.sampled_from(["fixed:1", "geometric:3"]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_cap_is_reached_and_never_passed(seed, most, turns):
    trace = chat(seed, turns=turns, think_time="exponential:0.1").scale_time(0.1)
    run = play(trace, max_concurrency=most)
    assert holds(run)
    assert inside(run) == most < inside(play(trace))
    rows = run.rows
    assert all(row.arrival >= int(stamp) * 1_000 for row, stamp in zip(rows, trace.arrival_ns, strict=True))
    delayed = [row.arrival >= rows[turn.parent].finish + turn.delay for row, turn in _with_turns(trace, run)]
    assert all(delayed)


def _with_turns(trace: Trace, run: Run) -> list[tuple[Any, Any]]:
    return [(run.rows[row], turn) for row, turn in turns_of(trace).items()]


def test_a_cap_of_one_serves_one_after_the_other():
    rows = sorted(play(chat(turns="fixed:1").scale_time(0.01), max_concurrency=1).rows, key=lambda row: row.arrival)
    assert all(after.arrival == before.finish for before, after in pairwise(rows[5:]))
    assert all(row.first_scheduled == row.arrival for row in rows)


def test_turns_of_a_rejected_request_are_rejected_and_counted():
    trace = Trace.build(
        [0, 0, 0, 0, 5],
        [10, 3000, 3, 3, 10],
        [2000, 2000, 3, 3, 4],
        parent=[-1, 0, 1, 2, -1],
        delay_ns=[-1, 0, 0, 7, -1],
    )
    run = play(trace)
    assert holds(run)
    assert [row.status for row in run.rows] == ["finished", "rejected", "rejected", "rejected", "finished"]
    truncated = play(trace, too_long="truncate")
    assert [row.status for row in truncated.rows] == ["finished", "truncated", "finished", "finished", "finished"]
    assert truncated.rows[3].arrival == truncated.rows[2].finish + 7_000


@given(seed=SEEDS, end_s=st.floats(0.01, 30), most=st.sampled_from([None, 2]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_cut_loses_no_turn(seed, end_s, most):
    trace = chat(seed)
    run = play(trace, slots=4096, end_s=end_s, max_concurrency=most)
    assert holds(run)
    assert [row.request_id for row in run.rows] == list(range(len(trace)))
    states = {row.status for row in run.rows}
    assert states <= {"finished", "unfinished"}
    assert run.makespan <= round(end_s * 10**12)
    for row, turn in _with_turns(trace, run):
        if row.first_scheduled >= 0:
            assert run.rows[turn.parent].status == "finished"


def test_the_last_arrival_that_is_possible_does_not_depend_on_service():
    trace = chat()
    earliest = last_arrival_ps(trace)
    assert earliest > int(trace.arrival_ns[-1]) * 1_000
    assert max(row.arrival for row in play(trace).rows) > earliest
    assert last_arrival_ps(trace.slice(0, 1)) == last_arrival_ps(Trace.build([], [], [])) == 0


@pytest.mark.parametrize(
    "turns, most, time, loop, saturated",
    [
        ("fixed:1", None, 1, "open", False),
        ("fixed:3", None, 1, "partly open", False),
        ("fixed:3", None, 0, "closed", None),
        ("fixed:1", 4, 1, "closed", None),
    ],
)
def test_what_kind_of_loop_it_is_is_known_and_saturation_only_said_where_it_means_something(
    turns, most, time, loop, saturated
):
    trace = chat(turns=turns)
    trace = trace if time else Trace.build(
        trace.arrival_ns * 0, trace.num_prompt_tokens, trace.num_output_tokens, parent=trace.parent,
        delay_ns=trace.delay_ns,
    )  # fmt: skip
    run = play(trace, max_concurrency=most)
    assert loop_of(trace, most) == run.loop == loop
    assert run.summary["saturated"] is saturated
