"""Device time of a call: all calls of a measurement are captured in one CUDA graph, which is replayed and timed.

Calls that no graph can hold are issued one after another instead: what the host takes longer than the device is then in
their time, and their rows say so.

A graph keeps the host out of the gaps between launches; a call for each of several input sets keeps the caches out of
the numbers: between two reads of a byte at least `BETWEEN_REREADS_BYTES` pass (the L2 of an H200 holds 60 MiB), or 64
sets where that is less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

Call = Callable[[], Any]

BETWEEN_REREADS_BYTES: Final = 10**9
MAX_SETS: Final = 64
MIN_SETS: Final = 2
HUGE_SET_BYTES: Final = 20 * 10**9
"""A set this large evicts itself many times over: one is enough."""
MIN_REPLAYS: Final = 7
MAX_REPLAYS: Final = 40
MEASURING_S: Final = 0.025


class Timing(NamedTuple):
    """Seconds of one call, over the replays of one graph."""

    median_s: float
    p20_s: float
    p80_s: float
    num_calls: int
    """In the graph: input sets, one call each."""
    num_replays: int


class Issued(NamedTuple):
    """In the place of a graph: calls that a graph cannot hold."""

    calls: Sequence[Call]

    def replay(self) -> None:
        """Issues them again."""
        for call in self.calls:
            call()


class Stopwatch(Protocol):
    """What can capture calls and time their replay; a CUDA device, or a test's own."""

    def synchronize(self) -> None:
        """Returns when everything that was issued has run."""

    def capture(self, calls: Sequence[Call]) -> Any:
        """A graph of the calls, in order."""

    def replay_s(self, graph: Any, num_replays: int) -> list[float]:
        """Seconds of each of that many replays, back to back."""


def num_sets(bytes_of_set: int) -> int:
    """Input sets to rotate through, so that at least a gigabyte passes between two reads of a byte; at most 64."""
    if bytes_of_set <= 0:
        raise ValueError(f"an input set needs a positive number of bytes, got {bytes_of_set}")
    least = 1 if bytes_of_set >= HUGE_SET_BYTES else MIN_SETS
    return max(least, min(MAX_SETS, -(-BETWEEN_REREADS_BYTES // bytes_of_set)))


def measure(calls: Sequence[Call], stopwatch: Stopwatch, *, captured: bool = True) -> Timing:
    """Time of one call: median, 20th and 80th percentile over replays of a graph that holds each call once.

    Every call runs once before (compilation, handles, workspaces), and the graph twice, to see how many replays fill
    25 ms: at least 7, at most 40 are timed. Not `captured`: the calls are issued anew instead of replayed.
    """
    if not calls:
        raise ValueError("nothing to measure: got no calls")
    for call in calls:
        call()
    stopwatch.synchronize()
    graph = stopwatch.capture(calls) if captured else Issued(calls)
    estimate_s = stopwatch.replay_s(graph, 2)[-1]
    num_replays = max(MIN_REPLAYS, min(MAX_REPLAYS, int(MEASURING_S / max(estimate_s, 1e-9))))
    each_s = sorted(seconds / len(calls) for seconds in stopwatch.replay_s(graph, num_replays))
    median_s, p20_s, p80_s = (quantile(each_s, share) for share in (0.5, 0.2, 0.8))
    return Timing(median_s, p20_s, p80_s, len(calls), num_replays)


def quantile(ascending: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics."""
    place = share * (len(ascending) - 1)
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])


class CudaStopwatch:
    """CUDA events around graph replays on the current device."""

    def synchronize(self) -> None:
        """Waits for the device."""
        import torch

        torch.cuda.synchronize()

    def capture(self, calls: Sequence[Call]) -> Any:
        """One CUDA graph; what the calls allocate belongs to it."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph

    def replay_s(self, graph: Any, num_replays: int) -> list[float]:
        """Events before and after each replay; read after all of them have run."""
        import torch

        event: Any = torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(num_replays)]
        for before, after in pairs:
            before.record()
            graph.replay()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e-3 for before, after in pairs]
