"""The table on the terminal, one row an allocator and block size, and the sentence that answers the question."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.series import series_of_row
from sim.lookup import least_sample

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
SATURATED = "*"
FOOTNOTE = (
    f"{SATURATED} saturated: more requests waited at the last arrival than max(10, 1 %); "
    "latencies grow with the length of the trace"
)


IDLE_TAIL = 0.01
"""Work behind the window, as a share of it, that goes without saying."""
IDLE_FREE = 0.05
"""From this mean free share on, a pool counts as partly idle."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: mean over runs, and the spread where there are several."""

    title: str
    short: str
    """The title where there is little room."""
    key: str
    write: Callable[[float], str]
    is_latency: bool = False


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


COLUMNS = (
    Column("live %", "live\n%", "kv_live_frac", _percent),
    Column("reserved %", "resv\n%", "kv_reserved_frac", _percent),
    Column("internal %", "int\n%", "kv_internal_frac", _percent),
    Column("external %", "ext\n%", "kv_external_frac", _percent),
    Column("free %", "free\n%", "kv_free_frac", _percent),
    Column("batch", "batch", "mean_batch_size", lambda v: f"{v:.1f}"),
    Column("tok/s", "tok/s", "output_tok_per_s", lambda v: f"{v:,.0f}"),
    Column("TTFT s", "TTFT\ns", "mean_ttft_s", _short, is_latency=True),
    Column("TPOT s", "TPOT\ns", "mean_tpot_s", _short, is_latency=True),
    Column("preemptions", "pre-\nempt", "num_preemptions", _count),
    Column("rejected", "re-\nject", "num_rejected", _count),
)
PREFIX = (
    Column("hit tokens", "hit\ntok", "prefix_hit_tokens", _count),
    Column("hit %", "hit\n%", "prefix_hit_frac", _percent),
)
"""Prompt tokens that were found in the cache: shown where any run looked some up, in little room the share alone."""
WIDE = 110
"""Columns of a terminal that has room for whole words."""


def grouped(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The repeats of each series (allocator and attention kernel) and block size, in order of appearance."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((series_of_row(row), row["block_size"]), []).append(row)
    return groups


def mean_sd(rows: Sequence[Row], key: str) -> tuple[float | None, float | None]:
    """Over the runs that have the value; the standard deviation from two on."""
    values = [value for row in rows if (value := row.get(key)) is not None and not math.isnan(value)]
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def table(rows: Sequence[Row], *, width: int) -> Table:
    """For rich; below `WIDE` columns with short titles and thin rules, which fits eighty."""
    from rich import box
    from rich.table import Table

    wide = width >= WIDE
    rules = {"box": box.HEAVY_HEAD} if wide else {"box": box.SIMPLE_HEAD, "padding": (0, 0), "show_edge": False}
    made = Table(caption_justify="left", **rules)
    made.add_column("allocator", no_wrap=True)
    kernels = any("kernel" in row for row in rows)
    if kernels:
        made.add_column("kernel", no_wrap=True)
    made.add_column("block" if wide else "bs", justify="right", no_wrap=True)
    looked_up = any(row.get("prefix_query_tokens") for row in rows)
    columns = (*COLUMNS, *(PREFIX if wide else PREFIX[1:])) if looked_up else COLUMNS
    for column in columns:
        made.add_column(column.title if wide else column.short, justify="right", no_wrap=True)
    saturated = False
    for (_, size), runs in grouped(rows).items():
        names = [runs[0]["allocator"], *([runs[0]["kernel"]] if kernels else [])]
        marked = any(run.get("saturated") for run in runs)
        saturated |= marked
        made.add_row(*names, str(size), *(_written(column, runs, marked) for column in columns))
    made.caption = "\n".join([*([FOOTNOTE] if saturated else []), *_left_out(rows)]) or None
    return made


def _runs_on(row: Row) -> float:
    """Time from the end of the window to the last token, as a share of the window."""
    start, stop, last = (row.get(name) for name in ("window_start_s", "window_stop_s", "makespan_s"))
    if start is None or stop is None or last is None or stop <= start:
        return 0.0
    return float((last - start) / (stop - start) - 1)


def _left_out(rows: Sequence[Row]) -> list[str]:
    """That means and rates are over a window, where requests ran on behind it: tokens made then are in no column."""
    behind = [row for row in rows if _runs_on(row) > IDLE_TAIL]
    if not behind:
        return []
    start, stop = behind[0]["window_start_s"], behind[0]["window_stop_s"]
    kind = "the arrivals" if behind[0].get("window_kind") == "arrivals" else "the window"
    last = max(row["makespan_s"] for row in behind)
    return [
        f"means and tok/s are over {kind}, {start:g} to {stop:g} s; work went on to {last:g} s (columns makespan_*)"
    ]


def _written(column: Column, runs: Sequence[Row], marked: bool) -> str:
    mean, sd = mean_sd(runs, column.key)
    if mean is None:
        return "–"
    spread = "" if sd is None else f" ±{column.write(sd)}"
    return column.write(mean) + spread + (SATURATED if marked and column.is_latency else "")


def percentile_notes(rows: Sequence[Row]) -> list[str]:
    """That p99 is little more than the largest value, where a run finished fewer requests than it takes."""
    few = [row["num_finished"] for row in rows if 0 < row["num_finished"] < least_sample("p99_e2e_s")]
    if not few:
        return []
    needed = ", ".join(f"p{q} {least_sample(f'p{q}_e2e_s')}" for q in (99, 95, 90))
    return [f"percentiles: a run finished only {min(few)} requests; to be more than the largest value takes {needed}"]


def verdict(rows: Sequence[Row]) -> str:
    """One sentence: who keeps how much memory live, and what batch that buys."""
    groups = grouped(rows)
    if not groups:
        return "No run finished."
    if not any(row["num_finished"] or row["num_truncated"] for row in rows):
        turned_away = sum(row["num_rejected"] for row in rows)
        failed = sum(row.get("num_failed", 0) for row in rows)
        why = "the pool or max_model_len is too small for this trace" if turned_away else "nothing ran to its end"
        if failed and not turned_away:
            why = "rows without output tokens are kept but not replayed"
        without = f", {failed:,} without output tokens" if failed else ""
        return f"No request completed ({turned_away:,} rejected{without}): {why}."
    if not any(map(_ran, rows)):
        return "Nothing was measured: no request ran in the window."
    live = {key: mean_sd(runs, "kv_live_frac")[0] for key, runs in groups.items()}
    known = {key: value for key, value in live.items() if value is not None}
    ours = _one_each(known)
    shown = list(ours.values()) if len(ours) > 1 else list(known)
    if idle := why_idle([groups[key] for key in shown]):
        return _speeds({key: groups[key] for key in shown}) + f" {idle}, so live shares do not rank allocators."
    if len(ours) > 1:
        return _between_allocators(groups, known, ours)
    return _between_sizes(known)


def _ran(row: Row) -> bool:
    return (row.get("mean_batch_size") or 0) > 0


def window_notes(rows: Sequence[Row]) -> list[str]:
    """A sentence for each window in which no request ran, though some were served."""
    empty = [row for row in rows if not _ran(row) and row["num_finished"] + row["num_truncated"] > 0]
    notes = []
    for row in empty:
        who = "" if len(empty) == len(rows) else f"{series_of_row(row)} at block size {row['block_size']}: "
        start, stop = row.get("window_start_s"), row.get("window_stop_s")
        bounds = "" if start is None or stop is None else f" [{start:g}, {stop:g}) s"
        notes.append(f"{who}no request ran in the window{bounds}: use --window arrivals")
    return list(dict.fromkeys(notes))


def why_idle(groups: Sequence[Sequence[Row]]) -> str:
    """Why the live shares of these runs are no ranking; empty if the memory was always wanted."""
    free = [mean_sd(runs, "kv_free_frac")[0] for runs in groups]
    if any(value is not None and value >= IDLE_FREE for value in free):
        return "Part of the memory was free while nothing was refused for want of it"
    kept_up = dict.fromkeys(series_of_row(runs[0]) for runs in groups if not any(run.get("saturated") for run in runs))
    return f"{' and '.join(kept_up)} kept up with the arrivals" if kept_up else ""


def _speeds(groups: dict[tuple[str, int], list[Row]]) -> str:
    """Batch, time to first token and throughput of each."""
    parts = []
    for (name, size), runs in groups.items():
        batch, ttft, rate = (mean_sd(runs, key)[0] for key in ("mean_batch_size", "mean_ttft_s", "output_tok_per_s"))
        late = SATURATED if any(run.get("saturated") for run in runs) else ""
        values = (
            "batch –" if batch is None else f"batch {batch:.1f}",
            "TTFT –" if ttft is None else f"TTFT {_short(ttft)} s{late}",
            "– tok/s" if rate is None else f"{rate:,.0f} tok/s",
        )
        parts.append(f"{name} (block size {size}): {', '.join(values)}")
    return "; ".join(parts) + "."


def _one_each(live: dict[tuple[str, int], float]) -> dict[str, tuple[str, int]]:
    """The row that stands for each allocator: block size 16, or its first."""
    chosen: dict[str, tuple[str, int]] = {}
    for name, size in live:
        if name not in chosen or size == 16:
            chosen[name] = (name, size)
    return chosen


def _between_allocators(
    groups: dict[tuple[str, int], list[Row]], live: dict[tuple[str, int], float], chosen: dict[str, tuple[str, int]]
) -> str:
    best = "paged" if "paged" in chosen else max(chosen, key=lambda name: live[chosen[name]])
    others = [name for name in chosen if name != best]
    shares = " / ".join(f"{100 * live[chosen[name]]:.0f}" for name in others)
    worst = min(others, key=lambda name: live[chosen[name]])
    text = (
        f"{best} at block size {chosen[best][1]} keeps {100 * live[chosen[best]]:.0f} % of KV memory live against "
        f"{shares} % ({' / '.join(others)})"
    )
    mine, theirs = (mean_sd(groups[chosen[name]], "mean_batch_size")[0] for name in (best, worst))
    return f"{text}, {mine / theirs:.1f}x the batch of {worst}." if mine and theirs else text + "."


def _between_sizes(live: dict[tuple[str, int], float]) -> str:
    if not live:
        return "Nothing was measured: the window is empty."
    best = max(live, key=lambda key: live[key])
    text = f"{best[0]} at block size {best[1]} keeps {100 * live[best]:.0f} % of KV memory live"
    worst = min(live, key=lambda key: live[key])
    return text + (f", at block size {worst[1]} {100 * live[worst]:.0f} %." if worst != best else ".")
