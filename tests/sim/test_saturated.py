"""When a run is called saturated: a queue at the last arrival, of those that came, never of those that were to come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.metrics import PS
from sim.simulate import Run
from tests.sim.test_replay_laws import run
from workloads import Trace

NS = 10**9


def trace_of(count: int, gap_ns: int) -> Trace:
    return Trace.build([gap_ns * place for place in range(count)], [16] * count, [8] * count)


def waited_at_the_last_arrival(one: Run) -> tuple[int, int]:
    """Requests that waited then, and that had come, by the rows alone; nobody is preempted."""
    end = round(one.spec.end_s * PS) if one.spec.end_s else None
    come = [row for row in one.rows if end is None or row.arrival < end]
    then = max(row.arrival for row in come)
    return sum(not 0 <= row.first_scheduled <= then for row in come), len(come)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 400),
    gap_ns=st.sampled_from([200, 2_000, 20_000, 200_000]),
    share=st.one_of(st.none(), st.floats(0.01, 1.5)),
    seqs=st.sampled_from([1, 4, 64]),
)
def test_it_is_what_the_rows_say_of_those_that_came_before_a_cut(count, gap_ns, share, seqs):
    trace = trace_of(count, gap_ns)
    end_s = None if share is None else max(share * count * gap_ns, 1) / NS
    one = run(trace, blocks=256, allocator="orca-oracle", max_model_len=1024, max_num_seqs=seqs, end_s=end_s)
    waited, come = waited_at_the_last_arrival(one)

    assert one.summary["saturated"] is (waited > max(10, 0.01 * come))


@pytest.mark.parametrize("gap_ns, saturated", [(200, True), (200_000, False)])
def test_a_cut_says_what_the_trace_up_to_it_would_say(gap_ns, saturated):
    whole, end_s = trace_of(2_000, gap_ns), 1_000 * gap_ns / NS
    cut = run(whole, end_s=end_s)

    assert cut.summary["num_unfinished"] >= 1_000
    assert cut.summary["saturated"] is run(whole.slice(0, 1_000), end_s=end_s).summary["saturated"] is saturated
