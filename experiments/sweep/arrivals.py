"""What arrives, remembered: the cells of a sweep replay few traces, and each is read or drawn once in a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.arriving import Arriving, arrive

if TYPE_CHECKING:
    from experiments.settings import Workload
    from experiments.sweep.cell import SweepCell
    from workloads import Trace

MOST_ROWS: Final = 4_000_000
"""Of all remembered traces; at some 50 bytes a row."""


class RememberedArrivals:
    """`arrive`, with its last answers at hand."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._num_rows = 0
        self._known: OrderedDict[tuple[str, int, int], Arriving] = OrderedDict()
        self.num_drawn = 0
        """How often a trace was read or drawn."""

    def __call__(self, workload: Workload, seed: int, num_runs: int, trace: Trace | None = None) -> Arriving:
        """As `experiments.arriving.arrive`; a trace that is handed over is not remembered."""
        if trace is not None:
            return arrive(workload, seed, num_runs, trace)
        key = (f"{workload.model_dump_json()} {_files(workload)}", seed, num_runs)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        self.num_drawn += 1
        found = self._known[key] = arrive(workload, seed, num_runs)
        self._num_rows += _rows(found)
        while self._num_rows > self._most_rows and len(self._known) > 1:
            self._num_rows -= _rows(self._known.popitem(last=False)[1])
        return found


def side_by_side(cells: Sequence[SweepCell], most_rows: int = MOST_ROWS) -> list[SweepCell]:
    """The cells as they are, or those of a trace together where more rows are replayed than are remembered: each would
    be read for every cell."""
    groups: dict[str, list[SweepCell]] = {}
    for cell in cells:
        groups.setdefault(cell.trace_sha256, []).append(cell)
    if sum(group[0].num_requests for group in groups.values()) <= most_rows:
        return list(cells)
    return [cell for group in groups.values() for cell in group]


def _files(workload: Workload) -> list[tuple[int, int]]:
    """Time and size of the files that it reads: one that has changed is read again."""
    paths = (Path(name) for name in (workload.trace, workload.tokenizer, *workload.lengths.values()) if name)
    return [(path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file()]


def _rows(arriving: Arriving) -> int:
    return sum(len(trace) for trace in arriving.traces.values())


@lru_cache(maxsize=1)
def of_this_process() -> RememberedArrivals:
    """Those that a worker keeps between its cells."""
    return RememberedArrivals()
