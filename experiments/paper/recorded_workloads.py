"""Small workloads on which decisions of vLLM 0.33 were recorded: their lengths, what they share, and the totals.

The full recordings, step by step, are in `tests/data/oracle`; a test compares these rows with them. vLLM's scheduler
was run synchronously, with forced outputs and no clock: a step is the unit of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from sim import metrics
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import Trace

BLOCK: Final = 16
LONGEST: Final = 2048
STEP_PS: Final = 1_000
"""A step lasts the trace's unit, a nanosecond, whatever is in it."""
GATE: Final = """0/181/11 1/28/9 2/52/13 3/58/4/1/1 5/89/66/1/1 8/97/1 9/138/5 10/181/70 11/16/27 13/8/1 15/1/33
    17/106/5 22/65/5 22/7/4 22/60/21 22/24/2 23/69/19/1/1 24/41/17/1/1 24/181/16 25/181/4 25/181/41/2/1 29/82/15
    29/39/2 29/181/7/1/1"""
WATERMARK: Final = """1/3/2 3/28/1 4/64/124 7/24/183 8/29/65 9/27/25 10/67/11/4/1 11/78/6 12/36/40 13/37/6 13/87/9/4/1
    14/42/103 16/30/102 16/25/89/4/1 18/7/82 23/48/74 23/61/124 24/16/21 25/25/151 27/78/103/4/1 28/145/2/4/1 28/13/83
    29/13/45 29/40/50"""
STORM: Final = """0/9/82 0/21/27 0/12/56 0/10/15 0/1/1 0/26/117 0/12/66 0/8/105 0/13/195 0/11/45 0/10/121 1/1/38 1/1/37
    1/5/27 1/9/47 1/17/1 1/12/73 1/2/26 1/1/8 1/12/17 1/5/34 1/5/29 1/18/47 1/12/15 1/13/96 2/5/76 2/15/32 2/5/31
    2/15/30 2/11/17 2/8/35 2/2/93 2/19/72 2/15/1 2/4/87 2/4/23 2/19/17 2/7/69 2/11/131 2/4/195"""


class Row(NamedTuple):
    """One request."""

    arrival_step: int
    num_prompt_tokens: int
    num_output_tokens: int
    same_as: int = 0
    """Index of an earlier request with which it shares the first `num_shared_blocks` blocks of its prompt."""
    num_shared_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Requests, and the pool and limits that they were given."""

    text: str
    """A word a request: the fields of `Row`, shared blocks where there are any."""
    num_blocks: int
    """That requests can hold."""
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def rows(self) -> list[Row]:
        """In order of arrival."""
        return [Row(*map(int, word.split("/"))) for word in self.text.split()]


class Pressure(NamedTuple):
    """What a run cost."""

    num_steps: int
    num_preemptions: int
    num_scheduled_tokens: int
    """Over all admissions."""
    num_useful_tokens: int
    """What had to be computed once: prompt + output - 1 of each request, cached or not."""

    @property
    def ratio(self) -> float:
        """Scheduled / useful."""
        return self.num_scheduled_tokens / self.num_useful_tokens


WORKLOADS: Final = {
    "gate": Recorded(GATE, 19, 8, 32),
    "watermark": Recorded(WATERMARK, 23, 8, 64),
    "tight": Recorded(STORM, 13, 16, 64),
}


def trace_of(recorded: Recorded) -> Trace:
    """The requests as a trace whose nanoseconds are steps; block ids name the prompts' shared blocks."""
    rows, ids = recorded.rows, list[list[int]]()
    for index, row in enumerate(rows):
        held = ids[row.same_as][: row.num_shared_blocks] if row.num_shared_blocks else []
        own = range(-(-row.num_prompt_tokens // BLOCK) - len(held))
        ids.append([*held, *((index + 1) * LONGEST + block for block in own)])
    offsets = [0]
    for one in ids:
        offsets.append(offsets[-1] + len(one))
    return Trace.build(
        [row.arrival_step for row in rows],
        [row.num_prompt_tokens for row in rows],
        [row.num_output_tokens for row in rows],
        block_offsets=offsets,
        block_ids=[block_id for one in ids for block_id in one],
        block_size=BLOCK,
        block_scope="chained",
        block_partial="ceil",
    )


def replayed(recorded: Recorded, *, caching: bool, gate: bool = True, watermark: float = 0.0) -> Pressure:
    """The simulator's totals. AssertionError if its numbers contradict each other."""
    pool = PoolConfig(recorded.num_blocks, BLOCK, LONGEST, enable_caching=caching, watermark=watermark)
    limits = SchedulerConfig(LONGEST, recorded.max_num_seqs, recorded.max_num_batched_tokens, full_sequence_gate=gate)
    done = simulate(RunSpec("paged", pool, limits), trace_of(recorded), CostExecutor(LinearModel(STEP_PS, 0, 0, 0)))
    broken = [check for check in done.checks if not check.holds]
    assert not broken, f"{recorded}: {broken}"
    steps, rest = divmod(done.makespan, STEP_PS)
    assert not rest, f"a run of whole steps ends at {done.makespan} ps"
    counted = metrics.counts(done.rows)
    return Pressure(steps, counted["num_preemptions"], counted["num_computed_tokens"], metrics.useful_tokens(done.rows))
