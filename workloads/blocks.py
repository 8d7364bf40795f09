"""Runs of texts as block ids, for formats that know nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from workloads.columns import Trace


def in_blocks(trace: Trace, block_size: int) -> Trace:
    """Chained ids of `block_size` tokens, numbered as they are first met; a trace without runs as it is.

    Equal ids are equal prefixes. A last block that is not full has an id of its own where no row has just that prompt,
    so the turn that goes on from there does not share it.
    """
    if trace.block_scope != "runs":
        return trace
    numbers: dict[tuple[tuple[int, ...], int], int] = {}
    rows = [_ids(trace.block_ids_of(row).tolist(), block_size, numbers) for row in range(len(trace))]
    return replace(
        trace,
        block_ids=np.array([one for row in rows for one in row], np.int64),
        block_offsets=np.array([0, *accumulate(map(len, rows))], np.int64),
        block_size=block_size,
        block_scope="chained",
        block_partial="ceil",
    )


def _ids(runs: list[int], block_size: int, numbers: dict[tuple[tuple[int, ...], int], int]) -> list[int]:
    """An id is known by the runs before its last token, the text of that token, and its place."""
    ends, found = list(accumulate(runs[1::2])), list[int]()
    run = 0
    for start in range(0, ends[-1] if ends else 0, block_size):
        stop = min(start + block_size, ends[-1])
        while ends[run] < stop:
            run += 1
        found.append(numbers.setdefault((tuple(runs[: 2 * run + 1]), stop), len(numbers)))
    return found
