"""How long a step took: the time between the ends of consecutive steps on the device, exposed host time included.

After idling a step counts from its own start. A second number is the device's alone, from the step's first command to
its last. On a CPU both are wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

PS_PER_NS = 1_000
PS_PER_MS = 1_000_000_000


class StepTime(NamedTuple):
    """One step of a run, as measured."""

    duration_ps: int
    """From the end of the step before (from its own start after idling) to its end."""
    device_ps: int
    """From its first command on the device to its end."""
    host_ps: int
    """Host time from the call to the moment at which everything was launched."""
    num_decodes: int
    num_chunk_tokens: int
    graph: bool
    """Replayed as a CUDA graph."""
    num_kv_tokens: int = 0
    """Tokens attended to: context and new ones, summed over sequences."""
    num_attended_pairs: int = 0
    """Sum over new tokens of the tokens that each attends to, itself included."""
    longest_chunk_tokens: int = 0
    """Context and new tokens of the longest sequence that has several new ones; 0 if none has."""

    @property
    def gap_ps(self) -> int:
        """Time that the device waited for the host before the step."""
        return max(self.duration_ps - self.device_ps, 0)


class HostClock:
    """Steps that run in the calling thread."""

    def __init__(self) -> None:
        self._start = 0
        self._end: int | None = None

    def rest(self) -> None:
        """Nothing runs: the next step counts from its own start."""
        self._end = None

    def start(self) -> None:
        """Right before a step's first command, when everything that it is told is ready."""
        self._start = time.perf_counter_ns()

    def launched(self) -> None:
        """After its last command."""

    def wait(self) -> tuple[int, int]:
        """Ends the step: (duration, device time) in picoseconds, at least 1."""
        end = time.perf_counter_ns()
        since = self._start if self._end is None else self._end
        self._end = end
        return max(end - since, 1) * PS_PER_NS, max(end - self._start, 1) * PS_PER_NS


class DeviceClock:
    """Steps on a CUDA device, by events on the current stream."""

    def __init__(self, wait_for: Callable[[torch.cuda.Event], None] = torch.cuda.Event.synchronize) -> None:
        self._wait_for = wait_for
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]
        """Of the step's start and end, and of the end before."""
        self._rested = True

    def rest(self) -> None:
        """Nothing runs: the next step counts from its own start."""
        self._rested = True

    def start(self) -> None:
        """Right before a step's first command, when everything that it is told is ready."""
        self._events[0].record()

    def launched(self) -> None:
        """After its last command."""
        self._events[1].record()

    def wait(self) -> tuple[int, int]:
        """Waits for the step: (duration, device time) in picoseconds."""
        start, end, before = self._events
        self._wait_for(end)
        device = max(round(start.elapsed_time(end) * PS_PER_MS), 1)
        duration = device if self._rested else max(round(before.elapsed_time(end) * PS_PER_MS), 1)
        self._rested = False
        self._events = [start, before, end]
        return duration, device
