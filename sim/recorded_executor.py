"""The executor that plays back the step times of a real run, so that the simulator reproduces that run exactly.

It answers one recorded duration a step and takes nothing for granted: a batch that is not the recorded one is an error,
not a number. Where requests stop is the cost model's executor's business, as everywhere in the simulator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sim.cost import PS_PER_S, LinearModel
from sim.cost_executor import CostExecutor

if TYPE_CHECKING:
    from engine.core.batch import Batch, StepResult
    from engine.core.decode_set import DecodeSet

PREFIX = "recorded:"
"""Spelling of a recording among step models."""
COLUMNS = ("duration_s", "num_decodes", "num_chunk_tokens")
EXACT_PS = 1 << 50
"""Durations below this (18 minutes) come back from a table in seconds to the picosecond."""


class RecordingMismatch(ValueError):  # noqa: N818
    """The run that is simulated is not the one that was recorded; the message says where they part."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A real run's steps: what each lasted, and what was in it."""

    durations_ps: tuple[int, ...]
    num_decodes: tuple[int, ...]
    num_chunk_tokens: tuple[int, ...]
    source: str = "recording"
    """Name of the file."""

    def coefficients(self) -> dict[str, int | str]:
        """For the manifest: how many steps, how long they are together, and a hash of all of it."""
        rows = zip(self.durations_ps, self.num_decodes, self.num_chunk_tokens, strict=True)
        digest = hashlib.sha256("\n".join(f"{d} {n} {c}" for d, n, c in rows).encode()).hexdigest()
        return {
            "kind": "recorded",
            "source": self.source,
            "num_steps": len(self.durations_ps),
            "total_ps": sum(self.durations_ps),
            "sha256": digest,
        }


def read_recording(path: Path) -> Recording:
    """A `steps.parquet` (or .csv) of a real run; ValueError for another table."""
    import pandas as pd

    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such table of recorded steps") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as a table of recorded steps: {error}") from error
    lacking = [name for name in COLUMNS if name not in frame]
    if lacking:
        raise ValueError(
            f"{path}: a recording of steps needs columns {', '.join(COLUMNS)}, lacks {', '.join(lacking)}: "
            "name the steps.parquet of a cell that ran on --backend cpu or gpu"
        )
    for name in COLUMNS:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            found = str(frame[name].iloc[0])[:40]
            raise ValueError(f"{path}: column {name} of a recording holds numbers, got {found!r}")
    durations = _picoseconds(frame["duration_s"].tolist(), path)
    decodes, chunks = (_counts(frame[name].tolist(), name, path) for name in COLUMNS[1:])
    return Recording(durations, decodes, chunks, path.name)


def _counts(values: Sequence[float], name: str, path: Path) -> tuple[int, ...]:
    for row, value in enumerate(values, 1):
        if not (value >= 0 and value == int(value)):
            raise ValueError(f"{path}: step {row} has {name}={value}, expected a whole number of 0 or more")
    return tuple(int(value) for value in values)


def _picoseconds(seconds: Sequence[float], path: Path) -> tuple[int, ...]:
    for row, value in enumerate(seconds, 1):
        if not 0.0 < value * PS_PER_S < EXACT_PS:
            longest = f"less than {EXACT_PS / PS_PER_S:.0f} s"
            raise ValueError(f"{path}: step {row} lasts {value} s, expected more than 0 and {longest}")
    return tuple(round(value * PS_PER_S) for value in seconds)


class RecordedExecutor:
    """One recorded duration a step; stops of a `CostExecutor`, which knows the true lengths."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._cost = CostExecutor(LinearModel(1, 0, 0, 0))
        self._step = 0

    @property
    def num_left(self) -> int:
        """Recorded steps that have not been played: 0 at the end of the run that was recorded."""
        return len(self._recording.durations_ps) - self._step

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """A step at a time: each has a duration of its own."""
        return 1

    def submit(self, batch: Batch) -> StepResult:
        """The next step. RecordingMismatch where there is none, or where it held something else."""
        step, recording = self._step, self._recording
        if step >= len(recording.durations_ps):
            raise RecordingMismatch(
                f"{recording.source} has {step} steps and the run goes on: it was recorded with another trace, pool, "
                "allocator or scheduler, or was cut earlier"
            )
        got = len(batch.decodes.members), sum(chunk.num_new_tokens for chunk in batch.chunks)
        expected = recording.num_decodes[step], recording.num_chunk_tokens[step]
        if got != expected:
            raise RecordingMismatch(
                f"step {step + 1} of {recording.source} had {expected[0]} decodes and {expected[1]} tokens of prompts, "
                f"here it has {got[0]} and {got[1]}: the run was recorded with another trace, pool, allocator or "
                "scheduler"
            )
        self._step = step + 1
        duration = recording.durations_ps[step]
        return self._cost.submit(batch)._replace(duration=duration, first=duration)
