"""The yardstick of the benchmarks: skipping changes nothing but the number of turns."""

import pytest

from tests.benchmarks.yardstick import Yardstick
from workloads import synthetic_trace


@pytest.mark.parametrize("num_blocks,preempts", [(6912, False), (400, True)])
def test_skipping_equals_stepping(num_blocks: int, preempts: bool) -> None:
    trace = synthetic_trace(num_requests=300, rate_per_s=6.0)
    columns = (1_000 * trace.arrival_ns, trace.num_prompt_tokens, trace.num_output_tokens)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    skipped = Yardstick(rows, num_blocks).run()
    stepped = Yardstick(rows, num_blocks, skip=False).run()
    assert skipped._replace(num_turns=0) == stepped._replace(num_turns=0)
    assert (skipped.num_preemptions > 0) == preempts
    assert skipped.num_turns < stepped.num_turns / 2
    assert all(0 < first <= finish for first, finish in skipped.times)
