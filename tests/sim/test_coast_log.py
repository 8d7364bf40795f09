"""Runs logged as the counters stand at their end give the same sums as the same runs, step by step."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from sim import integrals as at
from sim.integrals import Integrals

SIZE = 4


@st.composite
def coasts(draw: st.DrawFn) -> tuple[int, tuple[int, ...], list[int], list[int]]:
    """Duration, run, blocks taken in each step, slots begun in each step after the first."""
    taken = draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
    steps = len(taken)
    begun = draw(st.lists(st.integers(0, 3), min_size=steps - 1, max_size=steps - 1)) if draw(st.booleans()) else []
    first, slope = draw(st.integers(1, 10**13)), draw(st.integers(0, 10**9))
    seqs, tokens, referenced = draw(st.integers(1, 300)), draw(st.integers(1, 10**6)), draw(st.integers(50, 10**5))
    evicted = draw(st.integers(0, sum(taken)))
    others = draw(st.tuples(*[st.integers(0, 1000)] * 5))
    internal, extra, asked, true_total, largest = others
    spare = 0 if evicted else draw(st.integers(0, 1000))
    run = first, slope, steps, seqs, tokens, referenced, internal, extra, asked, true_total, spare, evicted, largest
    return steps * first + slope * (steps * (steps - 1) // 2), run, taken, begun


@given(st.lists(coasts(), min_size=1, max_size=12), st.booleans())
def test_a_coast_is_its_steps(runs, caches):
    made = Integrals([], block_size=SIZE, caches=caches)
    wanted = Integrals([], block_size=SIZE, caches=caches)
    starts = accumulate((run[0] for run in runs), initial=0)
    for start, (_, run, taken, begun) in zip(starts, runs, strict=False):
        whole = (made.segment, *run)
        made.coasts.add(whole, taken, begun)
        state, growth = made.coasts.expand(whole, taken, begun)
        first, slope, steps = run[:3]
        wanted.add_run(start, [first + slope * step for step in range(steps)], state, growth)
    assert made.segments() == wanted.segments()
    assert made.segments()[0][at.STEPS] == sum(len(taken) for _, _, taken, _ in runs)


@given(coasts())
def test_what_the_last_step_holds_is_what_the_counters_say(coast):
    _, run, taken, begun = coast
    made = Integrals([], block_size=SIZE, caches=True)
    state, growth = made.coasts.expand((0, *run), taken, begun)
    referenced, spare = run[5], run[10]
    assert state[at.USED] + SIZE * sum(growth.used) == SIZE * referenced
    assert state[at.SPARE] - SIZE * sum(growth.unspared) == SIZE * spare
