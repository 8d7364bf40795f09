"""KV memory without a pool: a tensor a request, through PyTorch's CUDA caching allocator (the chapter's section 4.3.5).

`python -m experiments.bench.caching_allocator` reads the events of a run from standard input, replays them on the
device as fast as the host can, and prints what became of them. It is a process of its own, so that the allocator's
setting and its limit touch nobody else. Sizes and order matter, contents do not: no tensor is ever written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from experiments.bench.timing import quantile

SETTINGS: Final = {"default": "", "expandable segments": "expandable_segments:True"}
"""Of the caching allocator: what PYTORCH_CUDA_ALLOC_CONF says."""
MOST_S: Final = 120


class Event(NamedTuple):
    """A request gets its memory (`num_bytes` > 0) or gives it back (0), `after_ps` after the event before."""

    request: int
    num_bytes: int
    after_ps: int


class Memory(Protocol):
    """Whoever hands out tensors."""

    def take(self, num_bytes: int) -> Any:
        """Something that holds so many bytes, or None."""

    def give(self, held: Any) -> None:
        """Takes it back: nobody else refers to it."""

    def stats(self) -> dict[str, int]:
        """Counters by name: those of `COUNTERS`."""


LEVELS: Final = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "num_segments")
"""Counters whose means over the run's own time and whose peaks are kept."""
TOTALS: Final = ("num_alloc_retries", "num_ooms", "num_cuda_mallocs", "num_cuda_frees")
COUNTERS: Final = (*LEVELS, *TOTALS)


def replay(events: Sequence[Event], memory: Memory, clock: Callable[[], int] = time.perf_counter_ns) -> dict[str, Any]:
    """Allocates and frees in order. Requests whose allocation fails hold nothing; means are weighted by the time from
    one event to the next in the run that the events are from."""
    held: dict[int, Any] = {}
    times: dict[str, list[int]] = {"take": [], "failed": [], "give": []}
    sums, peaks = dict.fromkeys((*LEVELS, "num_held"), 0), dict.fromkeys((*LEVELS, "num_held"), 0)
    before, elapsed = memory.stats(), 0
    now = before
    for request, num_bytes, after_ps in events:
        elapsed += after_ps
        for name, value in _levels(now, held):
            sums[name] += value * after_ps
        start = clock()
        if num_bytes:
            tensor = memory.take(num_bytes)
            times["failed" if tensor is None else "take"].append(clock() - start)
            if tensor is not None:
                held[request] = tensor
            del tensor
        elif request in held:
            memory.give(held.pop(request))
            times["give"].append(clock() - start)
        now = memory.stats()
        for name, value in _levels(now, held):
            peaks[name] = max(peaks[name], value)
    return {
        **{f"mean_{name}": value / elapsed if elapsed else 0.0 for name, value in sums.items()},
        **{f"peak_{name}": value for name, value in peaks.items()},
        **{name: now[name] - before[name] for name in TOTALS},
        "num_taken": len(times["take"]),
        "num_failed": len(times["failed"]),
        **{key: value for kind in times for key, value in _seconds(kind, times[kind]).items()},
    }


def _levels(stats: dict[str, int], held: dict[int, Any]) -> list[tuple[str, int]]:
    return [*((name, stats[name]) for name in LEVELS), ("num_held", len(held))]


def _seconds(kind: str, times_ns: Sequence[int]) -> dict[str, float | None]:
    ascending = [value * 1e-9 for value in sorted(times_ns)]
    shares = {"median": 0.5, "p99": 0.99}
    made = {f"{kind}_{name}_s": quantile(ascending, share) if ascending else None for name, share in shares.items()}
    return {**made, f"{kind}_mean_s": sum(ascending) / len(ascending) if ascending else None}


class CudaMemory:
    """Uninitialised tensors on the current CUDA device, at most so many bytes reserved in all."""

    def __init__(self, limit_bytes: int) -> None:
        import torch

        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        if limit_bytes > total:
            raise ValueError(f"limit_bytes: the device has {total:,} bytes, got {limit_bytes:,}")
        torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
        self._torch = torch
        torch.zeros(1, device="cuda")  # the context is there, and the statistics begin
        torch.cuda.empty_cache()

    def take(self, num_bytes: int) -> Any:
        """A tensor, or None where the caching allocator finds no room."""
        torch = self._torch
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            return None

    def give(self, held: Any) -> None:
        """The last reference goes with the call."""

    def stats(self) -> dict[str, int]:
        """Of torch's own statistics."""
        found = self._torch.cuda.memory_stats()
        names = {
            "allocated_bytes": "allocated_bytes.all.current",
            "reserved_bytes": "reserved_bytes.all.current",
            "active_bytes": "active_bytes.all.current",
            "inactive_split_bytes": "inactive_split_bytes.all.current",
            "num_segments": "segment.all.current",
            "num_alloc_retries": "num_alloc_retries",
            "num_ooms": "num_ooms",
            "num_cuda_mallocs": "num_device_alloc",
            "num_cuda_frees": "num_device_free",
        }
        return {name: int(found.get(theirs, 0)) for name, theirs in names.items()}


class ExactFit:
    """Memory in which everything that is not used can be: what any allocator of whole tensors could do at best."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._used = limit_bytes, 0

    def take(self, num_bytes: int) -> int | None:
        """So many bytes, or None."""
        if self._used + num_bytes > self._limit:
            return None
        self._used += num_bytes
        return num_bytes

    def give(self, held: int) -> None:
        """They are free again."""
        self._used -= held

    def stats(self) -> dict[str, int]:
        """What is used is all that is reserved."""
        used = dict.fromkeys(("allocated_bytes", "active_bytes", "reserved_bytes"), self._used)
        return {**dict.fromkeys(COUNTERS, 0), **used}


def in_own_process(events: Sequence[Event], limit_bytes: int, setting: str) -> dict[str, Any]:
    """`replay` on the CUDA device in a fresh process under a setting of the caching allocator. RuntimeError with what
    it said, if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOC_CONF"}
    environment["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[setting]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.bench.caching_allocator"],
        input=json.dumps({"limit_bytes": limit_bytes, "events": events}),
        capture_output=True,
        text=True,
        env=environment,
        timeout=MOST_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the replay through the caching allocator ({setting}) failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Events as JSON on stdin, numbers as JSON on stdout."""
    asked = json.load(sys.stdin)
    events = [Event(*event) for event in asked["events"]]
    print(json.dumps(replay(events, CudaMemory(asked["limit_bytes"])), allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
