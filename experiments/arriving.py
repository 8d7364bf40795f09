"""The trace of a configuration: read or generated, cut, stretched, with what was noticed on the way."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.exits import UsageError
from experiments.settings import SESSION_KEYS

if TYPE_CHECKING:
    from experiments.settings import Workload
    from workloads import Trace

LENGTH_COLUMNS = ("input_len", "output_len")
LOOP_NOTES = {
    "closed": "arrivals: closed: requests come when others are done, so that a slower pool has fewer of them, no queue "
    "grows without end, and 'saturated' means nothing",
    "partly open": "arrivals: partly open: conversations begin by the clock, their turns come when the one before is "
    "done, so that a slower pool has later turns",
}


@dataclass(frozen=True, slots=True)
class Arriving:
    """One trace a seed, and where it comes from."""

    traces: Mapping[int, Trace]
    provenance: dict[str, Any]
    """For the manifest and the JSON object: name, hash, format, file name and the file's own hash."""
    notes: list[str] = field(default_factory=list)


Source = Callable[["Workload", int, int, "Trace | None"], Arriving]
"""`arrive`, or what remembers its answers."""


def arrive(workload: Workload, seed: int, num_runs: int, trace: Trace | None = None) -> Arriving:
    """Reads or generates, unless there is a `trace` already; ValueError where the workload cannot be had as asked."""
    if trace is not None:
        return _said(Arriving({seed: trace}, _provenance(trace, {})), workload)
    if workload.trace is not None:
        return _from_file(workload, seed, num_runs)
    drawn = {one: named(workload, one) for one in range(seed, seed + num_runs)}
    traces = {one: _shaped(trace, workload, stretch=False) for one, trace in drawn.items()}
    first = traces[seed]
    provenance = _provenance(first, {f"{name}_sha256": file_sha256(Path(p)) for name, p in workload.lengths.items()})
    if num_runs > 1:
        provenance["sha256_by_seed"] = {str(one): trace.sha256() for one, trace in traces.items()}
    return _said(Arriving(traces, provenance), workload)


def named(workload: Workload, seed: int) -> Trace:
    """A workload by name, drawn by `seed`; ValueError where it cannot be had as asked."""
    from workloads import SESSION_TRACES, Shape, named_trace, session_trace
    from workloads.named import GRIDS
    from workloads.named_sessions import SESSION_RECIPES

    name, rate = str(workload.name), workload.request_rate
    grid = GRIDS.get(name, SESSION_RECIPES[name].grid if name in SESSION_TRACES else "")
    if grid and rate is None:
        raise UsageError(f"{name} has no rate of its own: say --request-rate RATE (requests a second); {grid}")
    lengths = {key: read_lengths(Path(path)) for key, path in workload.lengths.items()}
    known = (SESSION_RECIPES[name].lengths,) if name in SESSION_TRACES else ("sharegpt", "alpaca")
    unknown = sorted(lengths.keys() - set(known))
    if unknown:
        raise UsageError(f"lengths: unknown name {unknown[0]!r}; known are {', '.join(known)}")
    shape = Shape(**{key: getattr(workload, key) for key in SESSION_KEYS})
    if name in SESSION_TRACES:
        count = workload.num_requests
        return session_trace(name, seed, shape, lengths or None, rate_per_s=rate, num_requests=count)
    also = [key for key in SESSION_KEYS if getattr(shape, key) is not None]
    if also:
        raise UsageError(f"{also[0]}: {name} has none; {', '.join(SESSION_TRACES)} have some of these")
    return named_trace(name, seed, lengths or None, rate_per_s=rate)


def _said(arriving: Arriving, workload: Workload) -> Arriving:
    """With a note, and a word in the provenance, where service decides when requests come."""
    from sim.sessions import loop_of

    loop = loop_of(next(iter(arriving.traces.values())), workload.max_concurrency)
    if loop == "open":
        return arriving
    return replace(
        arriving, provenance={**arriving.provenance, "arrivals": loop}, notes=[*arriving.notes, LOOP_NOTES[loop]]
    )


def _from_file(workload: Workload, seed: int, num_runs: int) -> Arriving:
    from workloads import load_trace

    if num_runs > 1:
        raise UsageError(
            f"num_runs={num_runs} repeats a seeded workload; a trace file has no seed: every repeat would be the same"
        )
    assert workload.trace is not None
    path = Path(workload.trace)
    loaded = load_trace(
        path,
        workload.trace_format,
        on_bad_row=workload.on_bad_row,
        block_size=workload.trace_block_size,
        recipe=workload.recipe,
        tokenizer=workload.tokenizer,
    )
    trace = _shaped(loaded.trace, workload, stretch=True)
    extra = {
        "file": path.name,
        "file_sha256": file_sha256(path),
        "num_read": loaded.num_read,
        "dropped": loaded.dropped,
    }
    notes = [note.replace(str(path), path.name) for note in loaded.notes]
    return _said(Arriving({seed: trace}, _provenance(trace, extra), notes), workload)


def _provenance(trace: Trace, extra: Mapping[str, Any]) -> dict[str, Any]:
    from workloads import describe

    wanted = ("num_failed", "span_s", "rate_per_s", "iat_cv", "prompt_mean", "output_mean", "best_prefix_hit_frac")
    known = describe(trace)
    return {
        "name": trace.name,
        "sha256": trace.sha256(),
        "num_requests": len(trace),
        **{key: known[key] for key in wanted},
        "block_size": trace.block_size,
        "source": dict(trace.source),
        **extra,
    }


def _shaped(trace: Trace, workload: Workload, *, stretch: bool) -> Trace:
    """The first requests, at the rate asked for, in scaled time."""
    if workload.num_requests is not None and stretch:
        trace = first_requests(trace, workload.num_requests, again=workload.repeat)
    elif workload.num_requests is not None and workload.num_requests < len(trace):
        trace = trace.slice(0, workload.num_requests)
    if stretch and workload.request_rate is not None:
        if len(trace) < 2 or not int(trace.arrival_ns[-1] - trace.arrival_ns[0]):
            raise UsageError("request_rate: the trace's arrivals have no span that could be stretched to a rate")
        trace = trace.with_rate(workload.request_rate)
    return trace if workload.time_scale is None else trace.scale_time(workload.time_scale)


def first_requests(trace: Trace, num_requests: int, *, again: bool) -> Trace:
    """The first so many of a file; UsageError where it holds fewer and nobody said to go round."""
    if num_requests <= len(trace):
        return trace.slice(0, num_requests)
    if not again:
        raise UsageError(
            f"num_requests: {num_requests:,} asked for, the trace holds {len(trace):,}; "
            "ask for fewer, or say --repeat to go round"
        )
    return trace.repeat(num_requests)


def file_sha256(path: Path) -> str:
    """Of the bytes on disk."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lengths(path: Path) -> tuple[Any, Any]:
    """Prompt and output tokens of a CSV (gzip or not) with columns input_len and output_len, in file order."""
    import numpy as np

    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        reader = csv.DictReader(file)
        if not set(LENGTH_COLUMNS) <= set(reader.fieldnames or ()):
            raise UsageError(
                f"{path}:1: a length list needs columns {', '.join(LENGTH_COLUMNS)}, got {reader.fieldnames}"
            )
        rows = []
        for row in reader:
            try:
                rows.append((int(row["input_len"]), int(row["output_len"])))
            except (TypeError, ValueError):
                raise UsageError(f"{path}:{reader.line_num}: not two integers: {row}") from None
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
