"""What a real run adds to the replay's own numbers: its step times, beside the state of every step, and their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.metrics import PS, ratio
from sim.reconcile import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from engine.core.allocator import KVAllocator
    from engine.core.executor import Executor
    from engine.worker.engine import Engine
    from engine.worker.executor import ModelExecutor
    from engine.worker.step_clock import StepTime
    from experiments.series import AttentionKernel
    from sim.simulate import Run


class EngineRun:
    """The engine's executor over the allocator of one replay, and what it measured in it."""

    def __init__(self, engine: Engine, kernel: AttentionKernel) -> None:
        self.engine = engine
        self._kernel = kernel
        self._executor: ModelExecutor | None = None

    def __call__(self, allocator: KVAllocator) -> Executor:
        """Allocates the KV cache of that allocator and warms up; the replay begins after that."""
        self._executor = self.engine.executor(allocator, kernel=self._kernel)
        return self._executor

    @property
    def steps(self) -> Sequence[StepTime]:
        """One a step, in order."""
        assert self._executor is not None, "the replay has not begun"
        return self._executor.steps

    def summary(self, run: Run, replay_wall_s: float) -> dict[str, Any]:
        """Columns that only real runs have; `sim.metrics.ENGINE_METRICS` says what they mean."""
        steps = self.steps
        emitted = sum(row.num_output_tokens for row in run.rows)
        return {
            "num_steps": len(steps),
            "num_graph_steps": sum(step.graph for step in steps),
            "device_s": sum(step.device_ps for step in steps) / PS,
            "mean_host_gap_s": _mean_s([step.gap_ps for step in steps]),
            "mean_host_s": _mean_s([step.host_ps for step in steps]),
            "replay_wall_s": replay_wall_s,
            "wall_output_tok_per_s": emitted / replay_wall_s if replay_wall_s else None,
        }

    def frame(self, run: Run) -> pd.DataFrame:
        """The `steps` table: the replay's state of each step, and what was measured in it."""
        steps = self.steps
        columns: dict[str, Any] = {
            "device_s": [step.device_ps / PS for step in steps],
            "host_s": [step.host_ps / PS for step in steps],
            "host_gap_s": [step.gap_ps / PS for step in steps],
            "num_decodes": [step.num_decodes for step in steps],
            "num_chunk_tokens": [step.num_chunk_tokens for step in steps],
            "num_kv_tokens": [step.num_kv_tokens for step in steps],
            "num_attended_pairs": [step.num_attended_pairs for step in steps],
            "longest_chunk_tokens": [step.longest_chunk_tokens for step in steps],
            "graph": [step.graph for step in steps],
        }
        return run.steps().assign(**columns)

    def checks(self, run: Run) -> list[Check]:
        """The engine ran the batches that were decided, and its clock was the replay's."""
        recorded, steps = run.recorder.steps or [], self.steps
        clock = [row[1] for row in recorded]
        tokens = [row[2] for row in recorded]
        ran = [step.num_decodes + step.num_chunk_tokens for step in steps]
        return [
            _same("engine: its step times are the replay's clock", [step.duration_ps for step in steps], clock),
            _same("engine: tokens computed in each step = tokens scheduled", ran, tokens),
        ]


def _mean_s(values: Sequence[int]) -> float | None:
    mean = ratio(sum(values), len(values))
    return None if mean is None else mean / PS


def _same(name: str, left: Sequence[int], right: Sequence[int]) -> Check:
    """Of two long lists: their lengths, and the first place where they differ."""
    if len(left) != len(right):
        return Check(name, False, f"{len(left)} steps", f"{len(right)} steps")
    differing = next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)
    if differing is None:
        return Check(name, True, f"{len(left)} steps", f"{len(right)} steps")
    return Check(name, False, f"step {differing + 1}: {left[differing]}", f"step {differing + 1}: {right[differing]}")
