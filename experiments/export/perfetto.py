"""A timeline for ui.perfetto.dev and chrome://tracing: what each request did, and what the pool was used for.

The JSON trace event format: `ts` in microseconds of simulated time, `B` and `E` around a slice, `C` for counters, `M`
for names. A run is two processes. In the first, requests share lanes, each in the lowest one that is free when it
arrives; a request is a slice from arrival to end, with its phases inside. The second has counters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from experiments.export.runs import StoredRun

STATES: Final = ("live", "reserved", "internal", "external", "free")
Event = dict[str, Any]
Away = Sequence[tuple[float, float | None, bool]]


class Phase(NamedTuple):
    """Part of a request's life, in seconds."""

    name: str
    """queued, prefill, decode, preempted or swapped. After a preemption by recomputation, what was lost is computed
    again inside the phase that follows."""
    start_s: float
    stop_s: float


def phases_of(row: Any, away: Away, end_s: float) -> list[Phase]:
    """The parts of a request's time in the system, without gaps; none for one that was turned away. `row` is of the
    table of requests; `end_s` stands for ends that never came."""
    if row.status in ("rejected", "failed") or row.arrival_s != row.arrival_s:
        return []
    stop = row.finish_s if row.finish_s == row.finish_s else max(end_s, row.arrival_s)
    if row.first_scheduled_s != row.first_scheduled_s:
        return [Phase("queued", row.arrival_s, stop)]
    first = row.first_token_s if row.first_token_s == row.first_token_s else stop
    phases, cursor = [Phase("queued", row.arrival_s, row.first_scheduled_s)], row.first_scheduled_s
    for gone, back, swapped in (*away, (stop, stop, False)):
        phases += [
            Phase("prefill", cursor, min(max(first, cursor), gone)),
            Phase("decode", min(max(first, cursor), gone), gone),
        ]
        cursor = stop if back is None else back
        phases.append(Phase("swapped" if swapped else "preempted", gone, cursor))
    return [phase for phase in phases if phase.start_s < phase.stop_s]


def trace_of(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """The JSON object."""
    events: list[Event] = []
    names: list[Event] = []
    for index, run in enumerate(runs):
        lanes, pool = 2 * index + 1, 2 * index + 2
        names += _process(lanes, f"requests: {run.label}") + _process(pool, f"KV memory: {run.label}")
        slices = list(_lanes(run, lanes))
        names += [_meta("thread_name", lanes, lane, f"lane {lane}") for lane in sorted({e["tid"] for e in slices})]
        events += slices + list(_counters(run, pool))
    events.sort(key=lambda event: event["ts"])  # stable: what begins and ends at one time stays in its lane's order
    about = {"clock": "simulated time", "model": runs[0].model if runs else ""}
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about}


def _meta(what: str, pid: int, tid: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _process(pid: int, name: str) -> list[Event]:
    order = {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": pid}}
    return [_meta("process_name", pid, 0, name), order]


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def _lanes(run: StoredRun, pid: int) -> Iterator[Event]:
    """The slices of all requests, lane by lane in order of time."""
    away, free, busy, used = run.away(), list[int](), list[tuple[float, int]](), 0
    rows: Iterable[Any] = run.requests.sort_values("arrival_s", kind="stable").itertuples(index=False)
    for row in rows:
        phases = phases_of(row, away.get(int(row.request_id), ()), run.end_s)
        if not phases:
            continue
        start, stop = _us(phases[0].start_s), _us(phases[-1].stop_s)
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            used += 1
            lane = used
        heapq.heappush(busy, (stop, lane))
        told = {"status": row.status, "prompt_tokens": row.num_prompt_tokens, "output_tokens": row.num_output_tokens}
        told |= {"preemptions": row.num_preemptions, "prefix_hit_tokens": row.num_hit_tokens}
        at = {"pid": pid, "tid": lane}
        yield {"name": f"request {row.request_id}", "cat": "request", "ph": "B", "ts": start, **at, "args": told}
        for phase in phases:
            yield {"name": phase.name, "cat": "phase", "ph": "B", "ts": _us(phase.start_s), **at}
            yield {"name": phase.name, "cat": "phase", "ph": "E", "ts": _us(phase.stop_s), **at}
        yield {"name": f"request {row.request_id}", "cat": "request", "ph": "E", "ts": stop, **at}


def _counters(run: StoredRun, pid: int) -> Iterator[Event]:
    """Slots by what they are used for, and requests, as means over the timeline's bins."""
    capacity = float(run.row["capacity_tokens"])
    for row in run.timeline.to_dict("records"):
        slots = {state: round(row[f"kv_{state}_frac"] * capacity, 3) for state in STATES}
        people = {"running": row["mean_batch_size"], "waiting": row["mean_num_waiting"]}
        for name, values in (("KV slots", slots), ("requests", people)):
            yield {"name": name, "ph": "C", "ts": _us(row["time_s"]), "pid": pid, "tid": 0, "args": values}
