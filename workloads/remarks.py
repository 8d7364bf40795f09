"""What a reader of a trace's statistics should know first: shared stamps, a ramp-up at the head."""

from __future__ import annotations

from typing import Final

from workloads.columns import Trace
from workloads.stamps import NS_PER_S

FEWEST_ROWS: Final = 8
"""Below this a tenth of the rows is no group of rows."""


def remarks(trace: Trace) -> list[str]:
    """Sentences about the arrivals, none where there is nothing to say."""
    return [*_ties(trace), *_ramp_up(trace)]


def _ties(trace: Trace) -> list[str]:
    span_ns = int(trace.arrival_ns[-1]) if len(trace) else 0
    ties = int((trace.arrival_ns[1:] == trace.arrival_ns[:-1]).sum())
    if not span_ns or ties * 2 <= len(trace):
        return []
    step_s = span_ns / NS_PER_S / max(1, len(trace) - 1 - ties)
    said = f"{ties} of {len(trace)} rows share their stamp with the row before (a stamp every {step_s:.3g} s)"
    return [f"{said}: burstiness below that is an artefact of collection"]


def _ramp_up(trace: Trace) -> list[str]:
    """The head is the first tenth of the rows, two at least; it lasts until the row after it arrives."""
    n = len(trace)
    if n < FEWEST_ROWS:
        return []
    head = max(2, -(-n // 10))
    first, after, last = (int(trace.arrival_ns[i]) for i in (0, head, n - 1))
    if (after - first) * 2 <= last - first:
        return []
    share = f"{(after - first) / NS_PER_S:.6g} of {(last - first) / NS_PER_S:.6g} s"
    return [f"a ramp-up: the first {head} of {n} rows take {share}; cut them off before a rate is quoted"]
