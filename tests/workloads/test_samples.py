"""Samples as requests of their own: equal prompts up to the last token, different answers."""

import numpy as np
import pytest

from engine.core.registry import PoolConfig
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, SchedulerConfig, simulate
from workloads import Trace, session_trace, synthetic_trace
from workloads.samples import as_requests


def hits(trace, block_size=16):
    """Prompt tokens that each row found in an empty, large prefix cache; requests of a step are served in order."""
    pool = PoolConfig(4096, block_size, 4096)
    spec = RunSpec("paged", pool, SchedulerConfig(4096, max_num_batched_tokens=4096))
    run = simulate(spec, trace, CostExecutor(LinearModel(10**9, 0, 0, 0)))
    return [row.num_hit_tokens for row in run.rows]


def test_every_row_comes_so_often_at_the_same_time():
    trace = synthetic_trace("poisson", "uniform:1-90,1-9", 30, 3, rate_per_s=8.0)

    made = as_requests(trace, 3)

    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"):
        assert getattr(made, name).tolist() == np.repeat(getattr(trace, name), 3).tolist()
    assert as_requests(trace, 1).num_prompt_tokens.tolist() == trace.num_prompt_tokens.tolist()


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_later_samples_find_the_whole_blocks_of_the_prompt_but_its_last_token(block_size):
    prompts = [1, 2, 16, 17, 33, 48]
    trace = Trace.build(np.arange(6) * 10**9, prompts, [4] * 6, limit_tokens=[4] * 6)

    found = hits(as_requests(trace, 3), block_size)

    whole = [(prompt - 1) // block_size * block_size for prompt in prompts]
    assert found == [tokens for one in whole for tokens in (0, one, one)]


def test_answers_are_nobody_elses():
    """The same prompt again after its samples have answered finds the prompt alone."""
    trace = Trace.build([0, 10**12], [33, 65], [40, 1], limit_tokens=[40, 1])
    made = as_requests(trace, 2)
    last = made.block_ids_of(1).tolist()
    ids = [*made.block_ids_of(0).tolist(), *last, *[last[0], 32, last[2], 33], *[last[0], 32, last[2], 33]]
    offsets = np.cumsum([0, 4, 4, 4, 4])

    again = Trace.build(
        made.arrival_ns,
        made.num_prompt_tokens,
        made.num_output_tokens,
        limit_tokens=made.limit_tokens,
        block_ids=ids,
        block_offsets=offsets,
        block_size=1,
        block_scope="runs",
        block_partial="floor",
    )

    # The second pair goes on with the text of sample 1 alone: its answer is found, sample 0's is not.
    assert hits(again)[:2] == [0, 32]
    assert hits(again)[2] == 64
    assert hits(made)[2] == 0


def test_block_ids_of_a_trace_are_kept():
    trace = Trace.build(
        [0],
        [40],
        [2],
        block_ids=[7, 8, 9],
        block_offsets=[0, 3],
        block_size=16,
        block_scope="content",
        block_partial="ceil",
        limit_tokens=[2],
    )

    made = as_requests(trace, 2)

    assert made.block_ids.tolist() == [7, 8, 9, 7, 8, 9]
    assert hits(made) == [0, 32]


def test_what_has_no_samples_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        as_requests(synthetic_trace("poisson", "fixed:8,8", 3, 0, rate_per_s=1.0), 0)
    with pytest.raises(ValueError, match="conversation"):
        as_requests(session_trace("chat", num_requests=20), 2)
    with pytest.raises(ValueError, match="texts"):
        as_requests(session_trace("few-shot", num_requests=20), 2)
