"""The host beside a device that is measured: what it costs the device to wait for it depends on the core that runs.

Steps of a few milliseconds wait some tenths of one for the host. On a machine that is shared, or whose cores lie at
different distances from the device, that differed by a factor of two between runs of one process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PROBES: Final = 5
"""Of a core, of which the shortest counts."""
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")


def probe_s() -> float:
    """Seconds of a fixed piece of Python, about a millisecond: how fast the host is, right now and where this runs."""
    times = []
    for _ in range(PROBES):
        began = time.perf_counter()
        places: dict[int, int] = {}
        for index in range(6000):
            places[index & 255] = index + len(places)
        times.append(time.perf_counter() - began)
    return min(times)


@contextmanager
def pinned(found: dict[str, Any]) -> Iterator[None]:
    """The calling thread stays on one core, the fastest of those near the device; `found` says which, out of how many,
    and how fast they were. Threads and processes that begin meanwhile stay there, too: begin them before.

    Does nothing, and says so, where the system does not let threads choose their cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        found["pinned"] = False
        yield
        return
    allowed = os.sched_getaffinity(0)
    near = near_device() & allowed
    try:
        times = {core: _probed(core) for core in sorted(near or allowed)}
        core = min(times, key=times.__getitem__)
        os.sched_setaffinity(0, {core})
        found |= {"pinned": True, "core": core, "num_cores": len(times), "near_device": bool(near)}
        values = list(times.values())
        found["probe_s"] = {"least": min(values), "median": statistics.median(values), "most": max(values)}
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _probed(core: int) -> float:
    os.sched_setaffinity(0, {core})
    return probe_s()


def near_device() -> set[int]:
    """Cores of the first device's side of the machine; none where nothing is known of it."""
    command = ["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        place = names[0].strip().lower().removeprefix("0000")  # eight digits of the domain there, four in the file
        return cores_of((PCI_DEVICES / place / "local_cpulist").read_text("ascii"))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return set()


def cores_of(text: str) -> set[int]:
    """Of a list as Linux writes it: `0-3,8`. ValueError for anything else."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, dash, last = part.partition("-")
            found |= set(range(int(first), int(last if dash else first) + 1))
    return found
