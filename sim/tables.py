"""Tables of one run. Column names carry units; nothing here computes a metric that `sim.metrics` does not define.

pandas is imported where a frame is made: a summary alone, of which a sweep makes hundreds, needs none.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim import extra_metrics, metrics
from sim import integrals as at
from sim.emissions import peak_rate
from sim.int_log import Packed, packed
from sim.metrics import PS
from sim.rows import RequestRow
from sim.sharing_recorder import UNIT, SharingRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from sim.row_store import RowStore
    from sim.simulate import Run


def summary_of(run: Run) -> dict[str, Any]:
    """One row of `summary.csv`, in a fixed order of keys."""
    window, capacity = run.window, run.capacity_slots
    row = run.integrals_between(window.start, window.stop)
    finished = run.rows.column("finish")[run.rows.has_status("finished", "truncated")]
    in_window = int(((window.start <= finished) & (finished < window.stop)).sum())
    span_s = (window.stop - window.start) / PS
    backlog = run.backlog
    counts = metrics.counts(run.rows)
    counts["num_output_tokens"] *= run.spec.num_samples  # a row has those of one sequence
    prefix = run.prefix
    return {
        "allocator": run.spec.allocator,
        "block_size": run.allocator.block_size,
        "num_blocks": run.num_replicas * run.allocator.capacity_blocks,
        "capacity_tokens": capacity,
        **counts,
        **metrics.memory(row, capacity, reserves=run.reserves, caches=run.caches),
        "kv_tail_frac": metrics.ratio(row[at.USED] - row[at.TOKENS] + row[at.EXTRA], capacity * row[at.TIME])
        if run.pages
        else None,
        "external_fragmentation_index": _index(run, row),
        **_paper(run, row),
        "mean_batch_size": metrics.ratio(row[at.SEQS], row[at.TIME]),
        "iter_mean_batch_size": metrics.ratio(row[at.WIDTH + at.SEQS], row[at.STEPS]),
        "iter_kv_live_frac": metrics.memory(row, run.pool_slots, reserves=run.reserves, per_step=True)["kv_live_frac"],
        "mean_num_waiting": metrics.ratio(
            backlog.until(window.stop) - backlog.until(window.start), window.stop - window.start
        ),
        "request_throughput_per_s": in_window / span_s if span_s else None,
        "output_tok_per_s": row[at.EMITTED] / span_s if span_s else None,
        "peak_output_tok_per_s": peak_rate(run.emitted),
        **metrics.latencies(run.rows),
        "saturated": _saturated(run),
        "head_blocked_s": metrics.overlap(run.recorder.blocked, window.start, window.stop) / PS,
        "recomputed_frac": metrics.ratio(counts["num_recomputed_tokens"], counts["num_computed_tokens"]),
        "num_copied_blocks": run.recorder.num_copied_blocks,
        "prefix_query_tokens": prefix.queries,
        "prefix_hit_tokens": prefix.hits,
        "prefix_hit_frac": metrics.ratio(prefix.hits, prefix.queries),
        "prefix_preempted_query_tokens": prefix.preempted_queries,
        "prefix_preempted_hit_tokens": prefix.preempted_hits,
        "window_start_s": window.start / PS,
        "window_stop_s": window.stop / PS,
        "window_kind": window.kind,
        **_whole_run(run, len(finished)),
        **(extra_metrics.residency(run.recorder.residency) if run.spec.record_residency else {}),
        **_shared(run, row),
        **(_sharing(run) if run.spec.record_sharing else {}),
    }


def _shared(run: Run, row: Sequence[int]) -> dict[str, Any]:
    """The means of `extra_metrics.SHARING_METRICS`, which every run has the integrals of: told where anything may be
    shared."""
    spec, size, time = run.spec, run.allocator.block_size, row[at.TIME]
    if not spec.record_sharing and (not spec.tell_sharing or spec.fleet.num_replicas > 1):
        return {}
    logical, physical = row[at.USED] + row[at.EXTRA], row[at.USED]
    cached = run.capacity_slots * time - row[at.USED] - row[at.SPARE] if run.caches else 0
    return {
        "mean_logical_blocks": metrics.ratio(logical, size * time),
        "mean_physical_blocks": metrics.ratio(physical, size * time),
        "sharing_saving_frac": extra_metrics.sharing_saving(logical, physical),
        "mean_cached_free_blocks": metrics.ratio(cached, size * time),
    }


def _sharing(run: Run) -> dict[str, Any]:
    """The columns of `extra_metrics.SHARING_METRICS` that are counted as the run goes."""
    recorder, size = run.recorder, run.allocator.block_size
    assert isinstance(recorder, SharingRecorder)
    swapped = {"out": recorder.num_swapped_out, "in": recorder.num_swapped_in}
    block_bytes = run.spec.bytes_per_token * size
    return {
        "iter_sharing_saving_frac": extra_metrics.mean_of_ratios_saving(
            recorder.extra_ratio, UNIT, recorder.num_steps_counted
        ),
        "num_forks": recorder.num_forks,
        **{f"num_swapped_{way}_blocks": count for way, count in swapped.items()},
        **{f"swapped_{way}_bytes": count * block_bytes if block_bytes else None for way, count in swapped.items()},
        "num_swaps_refused": run.scheduler.num_swaps_refused,
    }


def _whole_run(run: Run, num_done: int) -> dict[str, float | None]:
    """The same over the whole run, its drain included: slow allocators have the longer tails."""
    whole = run.integrals_between(0, run.makespan + 1)
    makespan_s = run.makespan / PS
    return {
        "makespan_s": makespan_s,
        "makespan_kv_live_frac": metrics.memory(whole, run.capacity_slots, reserves=run.reserves)["kv_live_frac"],
        "makespan_mean_batch_size": metrics.ratio(whole[at.SEQS], whole[at.TIME]),
        "makespan_request_throughput_per_s": num_done / makespan_s if makespan_s else None,
        "makespan_output_tok_per_s": whole[at.EMITTED] / makespan_s if makespan_s else None,
    }


def _paper(run: Run, row: Sequence[int]) -> dict[str, float | None]:
    """The artifact's accounting, over time and (as the artifact does) over iterations."""
    over_time = {
        f"paper_{k}_frac": v for k, v in metrics.paper_memory(row, run.capacity_slots, reserves=run.reserves).items()
    }
    over_steps = metrics.paper_memory(row, run.pool_slots, reserves=run.reserves, per_step=True)
    return over_time | {f"iter_paper_{k}_frac": v for k, v in over_steps.items()}


def _index(run: Run, row: Sequence[int]) -> float | None:
    """1 - largest free extent / total free; 0 where any free block serves any request."""
    free = run.capacity_slots * row[at.TIME] - row[at.USED]
    if run.pages:
        return 0.0 if free else None
    share = metrics.ratio(row[at.LARGEST], free)
    return None if share is None else 1.0 - share


def _seconds(column: Packed) -> NDArray[np.float64]:
    """Correctly rounded quotients; missing where the time never came."""
    return np.fromiter(((value / PS if value >= 0 else np.nan) for value in column.tolist()), np.float64, len(column))


def requests_frame(rows: RowStore) -> pd.DataFrame:
    """One row a request; a time that never came is missing."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, field in zip(_REQUEST_COLUMNS, RequestRow._fields, strict=True):
        if name.endswith("_s"):
            columns[name] = _seconds(rows.column(field))
        elif name == "status":
            columns[name] = pd.array(rows.statuses(), dtype="str")
        else:
            columns[name] = rows.column(field).astype(np.int64)
    return pd.DataFrame(columns)


_REQUEST_COLUMNS = (
    "request_id",
    "status",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "num_prompt_tokens",
    "num_output_tokens",
    "max_tokens",
    "priority",
    "num_preemptions",
    "num_hit_tokens",
    "num_computed_tokens",
    "num_recomputed_tokens",
    "preempted_s",
)


def preemptions_frame(run: Run) -> pd.DataFrame:
    """One row a preemption, in order of time; `stop_s` is missing where the request did not come back."""
    import pandas as pd

    away = run.recorder.away
    return pd.DataFrame(
        {
            "request_id": np.fromiter(away.requests, np.int64),
            "start_s": _seconds(packed(list(away.starts))),
            "stop_s": _seconds(packed(away.stops())),
            "swapped": np.fromiter(away.swapped, np.bool_),
        }
    )


def timeline_frame(run: Run) -> pd.DataFrame:
    """One row a bin that simulated time reached; means over the bin, the strict fractions among them."""
    import pandas as pd

    starts = [0, *run.bin_edges]
    bounds = [*run.bin_edges, run.makespan + 1]
    records = []
    by_start = dict(zip([0, *run.recorder.integrals.edges], run.recorder.integrals.segments(), strict=True))
    edges = sorted(by_start)
    preempted = run.recorder.preempted_at.sorted()
    position = 0
    for start, stop in zip(starts, bounds, strict=True):
        row = [0] * at.COLUMNS
        while position < len(edges) and edges[position] < stop:
            row = [a + b for a, b in zip(row, by_start[edges[position]], strict=True)]
            position += 1
        if not row[at.TIME]:
            continue
        end = min(stop, run.makespan)
        records.append(_bin(run, row, start, end, bisect_left(preempted, stop) - bisect_left(preempted, start)))
    kinds = {name: np.int64 if name.startswith("num_") else np.float64 for name in _bin(run, [0] * at.COLUMNS, 0, 0, 0)}
    return pd.DataFrame(records, columns=list(kinds)).astype(kinds)  # the same columns where no time passed


def _saturated(run: Run) -> bool | None:
    """Whether more requests waited at the last arrival, of those before a cut, than max(10, 1 % of the requests that
    had come). None where completions send requests: there no queue grows for ever."""
    if run.loop == "closed":
        return None
    if run.spec.end_s is None:
        return run.backlog.at(run.last_arrival) > max(10, 0.01 * len(run.rows))
    arrivals = run.rows.column("arrival")
    come = arrivals[(arrivals >= 0) & (arrivals < round(run.spec.end_s * PS))]
    return bool(len(come)) and run.backlog.at(min(run.last_arrival, int(come.max()))) > max(10, 0.01 * len(come))


def _bin(run: Run, row: list[int], start: int, end: int, num_preemptions: int) -> dict[str, Any]:
    duration = row[at.TIME]
    waiting = run.backlog.until(end) - run.backlog.until(start)
    return {
        "time_s": start / PS,
        "duration_s": duration / PS,
        **metrics.memory(row, run.capacity_slots, reserves=run.reserves, caches=run.caches),
        "external_fragmentation_index": _index(run, row),
        "mean_batch_size": metrics.ratio(row[at.SEQS], duration),
        "mean_num_waiting": metrics.ratio(waiting, duration),
        "num_steps": row[at.STEPS],
        "num_emitted_tokens": row[at.EMITTED],
        "num_computed_tokens": row[at.COMPUTED],
        "num_preemptions": num_preemptions,
    }


def steps_frame(run: Run) -> pd.DataFrame:
    """One row a step; empty unless the run recorded steps."""
    import pandas as pd

    names = ["time_s", "duration_s", "num_batched_tokens", "num_waiting", "num_preempted", "head_refusal"]
    names += [f"num_{name}_slots" if name != "seqs" else "num_running" for name in at.STATE]
    frame = pd.DataFrame(run.recorder.steps or [], columns=names)
    for name in ("time_s", "duration_s"):
        frame[name] = frame[name] / PS
    return frame


def map_frame(run: Run) -> pd.DataFrame:
    """Regions of every snapshot, in long form."""
    import pandas as pd

    frames = [
        pd.DataFrame(
            {
                "time_s": snapshot.time / PS,
                "start_block": snapshot.regions.start,
                "num_blocks": snapshot.regions.length,
                "owner": snapshot.regions.owner,
            }
        )
        for snapshot in run.recorder.snapshots
    ]
    if not frames:
        return pd.DataFrame({"time_s": [], "start_block": [], "num_blocks": [], "owner": []})
    return pd.concat(frames, ignore_index=True)
