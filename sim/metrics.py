"""Every metric once, with formula and unit: tables, plots and reports all read from here.

Request r: arrival a, first scheduled s, first token f, finish c, prompt p, output n. Window W: [first arrival, last
arrival) unless the run names another; state variables are time-weighted means over W. Means and percentiles of
latencies are over finished requests, null if there are none.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from sim import integrals as at
from sim.int_log import PACK, IntLog, Packed, exact_sum
from sim.rows import RequestRow

PS = 10**12

Better = Literal["higher", "lower", ""]
HIGHER: Better = "higher"
LOWER: Better = "lower"


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of `summary.csv`: what it is, how it is computed, in which unit."""

    name: str
    label: str
    formula: str
    unit: str
    better: Better = ""
    """Which way is an improvement, all else equal; empty where neither is."""


METRICS: tuple[Metric, ...] = (
    Metric("kv_live_frac", "live", "filled slots of referenced blocks / capacity", "1", HIGHER),
    Metric(
        "kv_reserved_frac",
        "reserved",
        "slots that are held, empty, and will be filled by their owner / capacity",
        "1",
        LOWER,
    ),
    Metric("kv_internal_frac", "internal", "held slots that will never be filled / capacity", "1", LOWER),
    Metric(
        "kv_internal_reserve_frac",
        "internal: beyond the true length",
        "reserved beyond the final length / capacity",
        "1",
        LOWER,
    ),
    Metric(
        "kv_internal_roundup_frac", "internal: round-up", "tail of the unit and buddy round-up / capacity", "1", LOWER
    ),
    Metric(
        "kv_external_frac", "external", "free slots while the queue's head is refused for memory / capacity", "1", LOWER
    ),
    Metric("kv_external_hole_frac", "external: holes", "enough free in total, no extent fits / capacity", "1", LOWER),
    Metric("kv_external_short_frac", "external: too few", "not enough free in total / capacity", "1", LOWER),
    Metric("kv_free_frac", "free", "free slots while nothing is refused for memory / capacity", "1"),
    Metric(
        "kv_cached_free_frac",
        "cached free",
        "free slots that hold a cached prefix, inside external and free / capacity",
        "1",
    ),
    Metric("kv_blocks_used_frac", "blocks used", "referenced blocks / capacity_blocks", "1"),
    Metric(
        "kv_tail_frac",
        "tail slack",
        "empty slots of partly filled last blocks / capacity; paged pools only",
        "1",
        LOWER,
    ),
    Metric(
        "external_fragmentation_index",
        "external fragmentation index",
        "1 - largest free extent / total free",
        "1",
        LOWER,
    ),
    Metric("mean_batch_size", "batched requests", "running requests", "requests", HIGHER),
    Metric("mean_num_waiting", "waiting requests", "requests in the queue", "requests", LOWER),
    Metric("request_throughput_per_s", "request throughput", "requests finished in W / |W|", "1/s", HIGHER),
    Metric("output_tok_per_s", "output throughput", "tokens emitted in W, each once / |W|", "tokens/s", HIGHER),
    Metric(
        "peak_output_tok_per_s", "peak output throughput", "most tokens/s over a stretch of 1 s", "tokens/s", HIGHER
    ),
    Metric("mean_ttft_s", "TTFT", "f - a", "s", LOWER),
    Metric("mean_tpot_s", "TPOT", "(c - f) / (n - 1), n >= 2", "s", LOWER),
    Metric("mean_normalized_latency_s", "normalized latency", "(c - a) / n", "s/token", LOWER),
    Metric("mean_e2e_s", "end to end", "c - a", "s", LOWER),
    Metric("mean_queue_s", "queueing", "s - a", "s", LOWER),
    Metric("head_blocked_s", "head-of-line blocking", "time a refused head kept others waiting, in W", "s", LOWER),
    Metric("recomputed_frac", "recomputed", "tokens computed again after preemption / tokens computed", "1", LOWER),
    Metric(
        "prefix_hit_frac",
        "prefix hits",
        "prompt tokens found in the cache at first admission / tokens looked up",
        "1",
        HIGHER,
    ),
)

ENGINE_METRICS: tuple[Metric, ...] = (
    Metric("num_steps", "steps", "batches that the engine ran", "steps"),
    Metric("num_graph_steps", "graph steps", "steps replayed as a CUDA graph", "steps"),
    Metric("device_s", "device time", "sum over steps: first command on the device to the step's end", "s", LOWER),
    Metric(
        "mean_host_gap_s",
        "host gap",
        "mean over steps: time the device waited for the host before the step",
        "s",
        LOWER,
    ),
    Metric("mean_host_s", "host work", "mean over steps: from the batch's hand-over to its last launch", "s", LOWER),
    Metric(
        "replay_wall_s",
        "wall time",
        "wall clock of the replay, warm-up and idle time between arrivals left out",
        "s",
        LOWER,
    ),
    Metric("wall_output_tok_per_s", "output throughput by wall clock", "output tokens / wall time", "tokens/s", HIGHER),
)
"""Columns that only runs on the real engine have."""


def quantile(values: Sequence[float], q: float) -> float | None:
    """Linear interpolation between order statistics (NumPy's default); None without values."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), q)) if len(values) else None


def mean(values: Sequence[float]) -> float | None:
    """Exactly rounded sum, so that order does not matter; None without values."""
    return math.fsum(values) / len(values) if len(values) else None


def ratio(numerator: int, denominator: int) -> float | None:
    """Correctly rounded quotient of two integers; None for an empty denominator."""
    return numerator / denominator if denominator else None


LATENCIES: dict[str, Callable[[RequestRow], int | float | None]] = {
    "ttft": lambda r: r.first_token - r.arrival,
    "tpot": lambda r: (r.finish - r.first_token) / (r.num_output_tokens - 1) if r.num_output_tokens > 1 else None,
    "normalized_latency": lambda r: (r.finish - r.arrival) / r.num_output_tokens,
    "e2e": lambda r: r.finish - r.arrival,
    "queue": lambda r: r.first_scheduled - r.arrival,
}


def latencies(rows: Iterable[RequestRow]) -> dict[str, float | None]:
    """mean, p50, p90, p95, p99 of each latency in seconds, over finished requests."""
    values = {name: array("d") for name in LATENCIES}
    for row in rows:
        if row.status == "finished":
            for name, formula in LATENCIES.items():
                if (value := formula(row)) is not None:
                    values[name].append(value / PS)
    table: dict[str, float | None] = {}
    for name, found in values.items():
        table[f"mean_{name}_s"] = mean(found)
        for q in (50, 90, 95, 99):
            table[f"p{q}_{name}_s"] = quantile(found, q / 100)
    return table


def memory(
    row: Sequence[int], capacity_slots: int, *, reserves: bool, caches: bool = False, per_step: bool = False
) -> dict[str, float | None]:
    """The strict accounting of one row of integrals, as fractions of the capacity; sums to one by construction.

    `reserves`: memory is asked for whole at admission, so that `internal` has a part beyond the true length.
    `per_step`: means over steps begun instead of over time (what the paper's artifact plots).
    """
    shift = at.WIDTH if per_step else 0
    whole = capacity_slots * (row[at.STEPS] if per_step else row[at.TIME])
    get = {name: row[shift + index] for index, name in enumerate(at.STATE)}
    free = whole - get["used"]
    live = get["tokens"] - get["extra"]
    roundup = get["used"] - get["asked"] if reserves else get["internal"]
    external = get["hole"] + get["short"]
    slots = {
        "live": live,
        "reserved": get["used"] - live - get["internal"],
        "internal": get["internal"],
        "internal_reserve": get["internal"] - roundup,
        "internal_roundup": roundup,
        "external": external,
        "external_hole": get["hole"],
        "external_short": get["short"],
        "free": free - external,
        "cached_free": free - get["spare"] if caches else 0,
        "blocks_used": get["used"],
    }
    return {f"kv_{name}_frac": ratio(value, whole) for name, value in slots.items()}


def paper_memory(
    row: Sequence[int], capacity_slots: int, *, reserves: bool, per_step: bool = False
) -> dict[str, float | None]:
    """The artifact's accounting: token = live; for whole reservations reserved = prompt + output - current and
    internal = reserved length - (prompt + output), both 0 where memory comes as tokens do; external and others = the
    rest, buddy round-up included."""
    shift = at.WIDTH if per_step else 0
    whole = capacity_slots * (row[at.STEPS] if per_step else row[at.TIME])
    tokens = row[shift + at.TOKENS] - row[shift + at.EXTRA]
    asked = row[shift + at.ASKED]
    reserved = row[shift + at.TRUE_TOTAL] - tokens if reserves else 0
    internal = asked - row[shift + at.TRUE_TOTAL] if reserves else 0
    parts = {
        "token": tokens,
        "reserved": reserved,
        "internal": internal,
        "external": whole - tokens - reserved - internal,
    }
    return {name: ratio(value, whole) for name, value in parts.items()}


class Backlog:
    """Integral of the number of waiting requests, from the times they began and ceased to wait."""

    def __init__(self, starts: IntLog, ends: IntLog) -> None:
        self._starts, self._ends = starts.sorted(), ends.sorted()
        self._start_sums, self._end_sums = _sums_by_pack(self._starts), _sums_by_pack(self._ends)

    def until(self, time: int) -> int:
        """Request-picoseconds waited in [0, time)."""
        return self._area(self._starts, self._start_sums, time) - self._area(self._ends, self._end_sums, time)

    @staticmethod
    def _area(times: Packed, sums: list[int], time: int) -> int:
        count = bisect_left(times, time)
        whole = count // PACK
        return count * time - sums[whole] - exact_sum(times[whole * PACK : count])

    def at(self, time: int) -> int:
        """Requests waiting at `time`, those that arrive right then included."""
        return bisect_right(self._starts, time) - bisect_right(self._ends, time)


def _sums_by_pack(times: Packed) -> list[int]:
    """Sum of the first 0, 1, 2, ... packs."""
    packs = (times[low : low + PACK] for low in range(0, len(times), PACK))
    return [0, *accumulate(exact_sum(pack) for pack in packs)]


def overlap(intervals: Iterable[tuple[int, int]], start: int, stop: int) -> int:
    """Length of the intervals' part inside [start, stop)."""
    return sum(max(0, min(b, stop) - max(a, start)) for a, b in intervals)


def counts(rows: Iterable[RequestRow]) -> dict[str, int]:
    """Requests by status, and what was done twice."""
    by_status = dict.fromkeys(("finished", "truncated", "rejected", "failed", "unfinished"), 0)
    sums = dict.fromkeys(SUMMED, 0)
    for row in rows:
        by_status[row.status] += 1
        for name in SUMMED:
            sums[name] += getattr(row, name)
    by_name = {f"num_{status}": count for status, count in by_status.items()}
    return {"num_requests": sum(by_status.values()), **by_name, **sums}


def useful_tokens(rows: Iterable[RequestRow]) -> int:
    """Tokens that finished requests need computed once: prompt + output - 1 each, as the last token gets no slot."""
    return sum(r.num_prompt_tokens + r.num_output_tokens - 1 for r in rows if r.status in ("finished", "truncated"))


SUMMED = (
    "num_preemptions",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_computed_tokens",
    "num_recomputed_tokens",
)
"""Fields of a row that add up over requests. Of a group a row has the output tokens of one sequence, by which latencies
are told, and what all of them computed; a summary has the output tokens of all, as throughput does."""


def strict_json(value: Any) -> Any:
    """The same structure with NaN and infinities as null: strict JSON has neither."""
    if isinstance(value, dict):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
