"""Traces from traces: rows selected, times rescaled, lengths shuffled. Nothing is changed in place."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workloads.stamps import MAX_NS, NS_PER_S, exact

if TYPE_CHECKING:
    from workloads.columns import Trace

Int64s = NDArray[np.int64]


def slice_rows(trace: Trace, start: int, stop: int) -> Trace:
    """Rows [start, stop); see `Trace.slice`."""
    if not 0 <= start <= stop <= len(trace):
        raise ValueError(f"slice: need 0 <= start <= stop <= {len(trace)}, got [{start}, {stop})")
    return _from_zero(select(trace, np.arange(start, stop)))


def window(trace: Trace, start_s: float, stop_s: float) -> Trace:
    """Rows of a half-open interval of time; see `Trace.window`."""
    if not 0 <= start_s < stop_s:
        raise ValueError(f"window: need 0 <= start_s < stop_s, got [{start_s}, {stop_s})")
    start_ns, stop_ns = round(exact(start_s) * NS_PER_S), round(exact(stop_s) * NS_PER_S)
    first, last = np.searchsorted(trace.arrival_ns, [start_ns, stop_ns], side="left")
    kept = select(trace, np.arange(first, last))
    return replace(kept, arrival_ns=kept.arrival_ns - start_ns)


def with_rate(trace: Trace, requests_per_s: float) -> Trace:
    """Gaps in proportion at another rate; see `Trace.with_rate`. Raises ValueError if there is no rate."""
    if not 0 < requests_per_s < float("inf"):
        raise ValueError(f"with_rate: need a positive finite rate, got {requests_per_s}")
    if len(trace) < 2 or trace.arrival_ns[-1] == trace.arrival_ns[0]:
        raise ValueError("with_rate: the trace has no span of time; give it arrivals first")
    first, last = int(trace.arrival_ns[0]), int(trace.arrival_ns[-1])
    span_ns = round(Fraction((len(trace) - 1) * NS_PER_S) / exact(requests_per_s))
    if span_ns == 0:
        raise ValueError(f"with_rate: {requests_per_s} requests/s leaves no nanosecond between first and last")
    ratio = Fraction(span_ns, last - first)
    # Idle time before the first arrival is stretched too, but apart: the span then is exact.
    idle_ns = _scaled(trace.arrival_ns[:1], ratio)
    return replace(trace, arrival_ns=idle_ns + _scaled(trace.arrival_ns - first, ratio))


def scale_time(trace: Trace, factor: float) -> Trace:
    """Arrivals and delays times `factor`; see `Trace.scale_time`."""
    if not 0 < factor < float("inf"):
        raise ValueError(f"scale_time: need a positive finite factor, got {factor}")
    ratio = exact(factor)
    delays = np.where(trace.delay_ns < 0, -1, _scaled(np.maximum(trace.delay_ns, 0), ratio))
    return replace(trace, arrival_ns=_scaled(trace.arrival_ns, ratio), delay_ns=delays)


def sample(trace: Trace, num_requests: int, seed: int, with_replacement: bool) -> Trace:
    """Rows drawn at random, kept in file order; see `Trace.sample`."""
    n = len(trace)
    if num_requests < 0 or (num_requests > 0 and n == 0) or (num_requests > n and not with_replacement):
        raise ValueError(
            f"sample: {num_requests} requests asked for, the trace holds {n}; "
            "ask for fewer, or repeat rows (replace=True, --repeat)"
        )
    drawn = np.random.default_rng(seed).choice(n, num_requests, replace=with_replacement) if n else np.arange(0)
    return _from_zero(select(trace, np.sort(drawn)))


def repeat(trace: Trace, num_requests: int) -> Trace:
    """The trace again and again; see `Trace.repeat`."""
    n = len(trace)
    if num_requests < 1 or n == 0:
        raise ValueError(f"repeat: need at least 1 request of a trace with rows, got {num_requests} of {n}")
    rounds, rows = np.divmod(np.arange(num_requests), n)
    span_ns = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    period_ns = span_ns + (span_ns // (n - 1) if n > 1 else 0)
    if int(trace.arrival_ns[-1]) + int(rounds[-1]) * period_ns > MAX_NS:
        raise ValueError(f"repeat: {int(rounds[-1]) + 1} rounds of {span_ns / NS_PER_S:g} s do not fit in int64")
    again = select(trace, rows, arrival_ns=trace.arrival_ns[rows] + rounds * period_ns)
    parent, session = trace.parent[rows], trace.session[rows]
    num_sessions = int(trace.session.max()) + 1
    return replace(
        again,
        parent=np.where(parent < 0, -1, parent + rounds * n),
        session=np.where(session < 0, -1, session + rounds * num_sessions),
        delay_ns=trace.delay_ns[rows],
    )


def shuffle_lengths(trace: Trace, seed: int) -> Trace:
    """The same arrivals with rows permuted; see `Trace.shuffle_lengths`."""
    if (trace.parent >= 0).any():
        raise ValueError("shuffle_lengths: the trace has turns that follow a parent; their order is not free")
    order = np.random.default_rng(seed).permutation(len(trace))
    return select(trace, order, arrival_ns=trace.arrival_ns)


def with_arrivals(trace: Trace, arrival_ns: Int64s) -> Trace:
    """Other times for the same rows; see `Trace.with_arrivals`."""
    if len(arrival_ns) != len(trace):
        raise ValueError(f"with_arrivals: need {len(trace)} arrivals, got {len(arrival_ns)}")
    return replace(trace, arrival_ns=arrival_ns, delay_ns=np.full(len(trace), -1))


def select(trace: Trace, rows: Int64s, arrival_ns: Int64s | None = None) -> Trace:
    """The given rows in the given order. O(rows + ids).

    A turn whose parent is not among them becomes a root and arrives at the time in `arrival_ns`. With
    repeated rows the first copy is the parent.
    """
    first_copy = np.full(len(trace) + 1, -1)  # the last entry answers parent -1
    first_copy[rows[::-1]] = np.arange(len(rows))[::-1]
    parent = first_copy[trace.parent[rows]]
    counts = np.diff(trace.block_offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    where = np.arange(offsets[-1]) + np.repeat(trace.block_offsets[:-1][rows] - offsets[:-1], counts)
    return replace(
        trace,
        arrival_ns=trace.arrival_ns[rows] if arrival_ns is None else arrival_ns,
        num_prompt_tokens=trace.num_prompt_tokens[rows],
        num_output_tokens=trace.num_output_tokens[rows],
        limit_tokens=trace.limit_tokens[rows],
        priority=trace.priority[rows],
        session=trace.session[rows],
        parent=parent,
        delay_ns=np.where(parent < 0, -1, trace.delay_ns[rows]),
        block_offsets=offsets,
        block_ids=trace.block_ids[where],
        source_row=trace.source_row[rows],
        status=trace.status[rows],
    )


def _scaled(times_ns: Int64s, ratio: Fraction) -> Int64s:
    """times x ratio rounded down, in unbounded integers: monotone, and exact where the result is whole."""
    products = times_ns.astype(object) * ratio.numerator // ratio.denominator
    try:
        return products.astype(np.int64)
    except OverflowError:
        raise ValueError(f"times scaled by {float(ratio):g} do not fit in int64 nanoseconds") from None


def _from_zero(trace: Trace) -> Trace:
    return replace(trace, arrival_ns=trace.arrival_ns - trace.arrival_ns[:1].sum())
