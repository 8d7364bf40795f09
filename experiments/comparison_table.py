"""The table on the terminal, one row an allocator and block size, and the sentence that answers the question."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
SATURATED = "*"
FOOTNOTE = (
    f"{SATURATED} saturated: more requests waited at the last arrival than max(10, 1 %); "
    "latencies grow with the length of the trace"
)


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
WIDE = 110
"""Columns of a terminal that has room for whole words."""


def grouped(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The repeats of each allocator and block size, in order of appearance."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["allocator"], row["block_size"]), []).append(row)
    return groups


def mean_sd(rows: Sequence[Row], key: str) -> tuple[float | None, float | None]:
    """Over the runs that have the value; the standard deviation from two on."""
    values = [row[key] for row in rows if row.get(key) is not None]
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
    made.add_column("block" if wide else "bs", justify="right", no_wrap=True)
    for column in COLUMNS:
        made.add_column(column.title if wide else column.short, justify="right", no_wrap=True)
    saturated = False
    for (allocator, size), runs in grouped(rows).items():
        marked = any(run.get("saturated") for run in runs)
        saturated |= marked
        made.add_row(allocator, str(size), *(_written(column, runs, marked) for column in COLUMNS))
    if saturated:
        made.caption = FOOTNOTE
    return made


def _written(column: Column, runs: Sequence[Row], marked: bool) -> str:
    mean, sd = mean_sd(runs, column.key)
    if mean is None:
        return "–"
    spread = "" if sd is None else f" ±{column.write(sd)}"
    return column.write(mean) + spread + (SATURATED if marked and column.is_latency else "")


def verdict(rows: Sequence[Row]) -> str:
    """One sentence: who keeps how much memory live, and what batch that buys."""
    groups = grouped(rows)
    if not groups:
        return "No run finished."
    if not any(row["num_finished"] or row["num_truncated"] for row in rows):
        turned_away = sum(row["num_rejected"] for row in rows)
        return (
            f"No request completed ({turned_away:,} rejected): the pool or max_model_len is too small for this trace."
        )
    live = {key: mean_sd(runs, "kv_live_frac")[0] for key, runs in groups.items()}
    known = {key: value for key, value in live.items() if value is not None}
    ours = _one_each(known)
    if len(ours) > 1:
        return _between_allocators(groups, known, ours)
    return _between_sizes(known)


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
