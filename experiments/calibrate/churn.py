"""Sequences that come and go, through the replay that serves traces: what steps cost among others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments.calibrate.rows import CHURN, HELD, StepRow
from sim.simulate import RunSpec, Simulation
from workloads import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.core.allocator import KVAllocator
    from engine.worker.engine import Engine
    from engine.worker.executor import ModelExecutor
    from engine.worker.step_clock import StepTime
    from experiments.calibrate.grid import Limits
    from experiments.series import AttentionKernel

SHORT, LONG = (16, 16), (512, 400)
"""Tokens of prompt and output are drawn evenly between these."""
PLACES: Final = (1 / 16, 1 / 4, 5 / 8, 1)
"""Sequences at a time, of the most that there can be. How many there are decides how often a step has chunks."""


def churn_trace(num_places: int, rounds: int, limits: Limits, seed: int) -> Trace:
    """Everybody is there at the start and waits outside; each place serves so many requests, one after the other."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    count = max(rounds * num_places, 8)
    prompts, outputs = (
        rng.integers(low, min(high, limits.max_model_len // 4) + 1, count)
        for low, high in zip(SHORT, LONG, strict=True)
    )
    return Trace.build([0] * count, prompts.tolist(), outputs.tolist(), name=CHURN)


def churn_rows(
    engine: Engine, limits: Limits, allocator: str, kernel: AttentionKernel, rounds: int, seed: int
) -> list[StepRow]:
    """Rows of closed loops of few to as many sequences as there can be."""
    made: list[ModelExecutor] = []

    def executor(pool: KVAllocator) -> ModelExecutor:
        made.append(engine.executor(pool, kernel=kernel))
        return made[-1]

    rows = []
    spec = RunSpec(
        allocator,
        PoolConfig(limits.kv_tokens // limits.block_size, limits.block_size, limits.max_model_len),
        SchedulerConfig(limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens),
        record_steps=True,
    )
    for places in dict.fromkeys(max(int(share * limits.max_num_seqs), 1) for share in PLACES):
        for loop, name in enumerate((f"{CHURN}-{places}", f"{CHURN}-{places}{HELD}")):
            trace = churn_trace(places, rounds, limits, 2 * seed + loop)
            simulation = Simulation(replace(spec, max_concurrency=places), trace, executor)
            simulation.replay()
            running = simulation.run().steps()["num_running"].tolist()
            rows += rows_of(name, made[-1].steps, running)
    return rows


def rows_of(run: str, steps: Sequence[StepTime], num_running: Sequence[int]) -> list[StepRow]:
    """The steps of a replay; rows have changed behind a step with chunks, and where somebody left."""
    from experiments.calibrate.probe import row_of

    assert len(steps) == len(num_running), (run, len(steps), len(num_running))
    rows = []
    for index, (step, running) in enumerate(zip(steps, num_running, strict=True)):
        before = steps[index - 1] if index else None
        changed = before is None or before.num_chunk_tokens > 0 or running != num_running[index - 1]
        rows.append(row_of(run, step, running, int(changed)))
    return rows
