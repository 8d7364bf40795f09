"""The report's tables as plain text cells: means and standard deviations over seeds, set-up, exclusions, checks."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from experiments.figures.caption import (
    command_of,
    counted,
    engine_of,
    num_requests_of,
    other_traces,
    seeds_of,
    step_model_of,
    trace_of,
)
from experiments.figures.repeats import over_seeds, runs_of
from experiments.figures.saturation import is_saturated
from experiments.style import in_order

if TYPE_CHECKING:
    from experiments.figures.stored import Stored


class Column(NamedTuple):
    """A column of the result table."""

    name: str
    head: str
    kind: str
    """frac (per cent), num, count or s (simulated seconds)."""


MEMORY = (
    Column("kv_live_frac", "live", "frac"),
    Column("kv_reserved_frac", "reserved", "frac"),
    Column("kv_internal_frac", "internal", "frac"),
    Column("kv_external_frac", "external", "frac"),
    Column("kv_free_frac", "free", "frac"),
    Column("mean_batch_size", "batched requests", "num"),
)
SPEED = (
    Column("request_throughput_per_s", "requests/s", "num"),
    Column("output_tok_per_s", "tokens/s", "num"),
    Column("mean_ttft_s", "TTFT (s)", "s"),
    Column("mean_tpot_s", "TPOT (s)", "s"),
    Column("mean_normalized_latency_s", "normalized latency (s/token)", "s"),
    Column("num_preemptions", "preemptions", "num"),
)
PERCENTILES = tuple(
    Column(f"p{q}_{name}_s", f"{label} p{q} (s)", "s")
    for name, label in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "end to end"))
    for q in (50, 90, 99)
)
PREFIX = (
    Column("prefix_query_tokens", "prefix tokens looked up", "num"),
    Column("prefix_hit_tokens", "found in the cache", "num"),
    Column("prefix_hit_frac", "prefix hits", "frac"),
)
SHARED = (
    Column("mean_logical_blocks", "logical blocks", "num"),
    Column("mean_physical_blocks", "physical blocks", "num"),
    Column("sharing_saving_frac", "saved by sharing", "frac"),
    Column("num_forks", "forks", "count"),
    Column("num_copied_blocks", "copied blocks", "count"),
    Column("num_swapped_out_blocks", "swapped out", "count"),
    Column("num_swapped_in_blocks", "swapped in", "count"),
    Column("num_swaps_refused", "swaps refused", "count"),
    Column("num_recomputed_tokens", "recomputed tokens", "count"),
)
REPLICA = (
    Column("num_requests", "requests", "count"),
    Column("kv_live_frac", "live", "frac"),
    Column("mean_batch_size", "batched requests", "num"),
    Column("mean_num_waiting", "waiting requests", "num"),
    Column("output_tok_per_s", "tokens/s", "num"),
    Column("mean_ttft_s", "TTFT (s)", "s"),
    Column("prefix_hit_frac", "prefix hits", "frac"),
    Column("num_preemptions", "preemptions", "count"),
)
FLEET = (
    Column("num_replicas", "replicas", "count"),
    Column("load_imbalance", "load imbalance", "num"),
    Column("token_imbalance", "token imbalance", "num"),
)
ENGINE = (
    Column("wall_output_tok_per_s", "tokens/s by wall clock", "num"),
    Column("device_s", "device time (s)", "num"),
    Column("mean_host_gap_s", "host gap a step (s)", "num"),
)
COUNTS = ("num_requests", "num_finished", "num_truncated", "num_rejected", "num_failed", "num_unfinished")


class Table(NamedTuple):
    """Text of heads and rows; the first cell of a row names it."""

    heads: list[str]
    rows: list[list[str]]


def number(value: Any, kind: str) -> str:
    """A value of one kind, in three significant digits; a dash for what is missing."""
    if value is None or pd.isna(value):
        return "–"
    if kind == "count":
        return f"{int(value):,}"
    return f"{value:.1%}" if kind == "frac" else f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 0 if value == 0 else min(9, max(0, 2 - floor(log10(abs(value)))))


def spread(mean: Any, sd: Any, kind: str) -> str:
    """mean ± sd, to the same decimal place; the mean alone where there is one seed."""
    if sd is None or pd.isna(sd) or pd.isna(mean):
        return number(mean, kind)
    right = number(sd, kind) if kind == "frac" else f"{sd:,.{_decimals(mean)}f}"
    return f"{number(mean, kind)} ± {right}"


def results(stored: Stored, columns: Sequence[Column]) -> Table:
    """One row an allocator; latencies of saturated runs carry a dagger."""
    return _means(stored.base, ["allocator"], columns)


def speed_columns(stored: Stored) -> tuple[Column, ...]:
    """With prefix hits, if any run looked tokens up, and with what only real runs have."""
    name = PREFIX[0].name
    prefix = PREFIX if name in stored.base and stored.base[name].fillna(0).gt(0).any() else ()
    fleet = FLEET if FLEET[0].name in stored.base else ()
    return (*SPEED, *prefix, *fleet, *(ENGINE if stored.is_measured else ()))


def shared(stored: Stored) -> Table:
    """What sequences shared, and what was copied, swapped or computed again; nothing where runs did not watch it."""
    return results(stored, SHARED) if SHARED[0].name in stored.base else Table([], [])


def results_by_block_size(stored: Stored) -> Table:
    """One row an allocator and block size, if several were run."""
    frame = stored.summary
    if frame.empty or frame["block_size"].nunique() < 2:
        return Table([], [])
    return _means(frame, ["allocator", "block_size"], MEMORY)


def _means(frame: pd.DataFrame, keys: list[str], columns: Sequence[Column]) -> Table:
    shown = [column for column in columns if column.name in frame]
    if frame.empty:
        return Table([], [])
    table = over_seeds(frame, keys, [column.name for column in shown])
    saturated = _saturated_keys(frame, keys)
    rank = {name: place for place, name in enumerate(in_order(frame["allocator"].astype(str)))}
    table = table.sort_values(keys, key=lambda values: values.map(rank) if values.name == "allocator" else values)
    rows = []
    for _, row in table.iterrows():
        late = " †" if tuple(str(row[key]) for key in keys) in saturated else ""
        cells = [spread(row[c.name], row[f"{c.name}_sd"], c.kind) + (late if c.kind == "s" else "") for c in shown]
        rows.append([*(str(row[key]) for key in keys), str(row["num_runs"]), *cells])
    return Table([*(key.replace("_", " ") for key in keys), "runs", *(c.head for c in shown)], rows)


def _saturated_keys(frame: pd.DataFrame, keys: list[str]) -> set[tuple[str, ...]]:
    marked = frame[is_saturated(frame)]
    return {tuple(map(str, values)) for values in marked[keys].itertuples(index=False)}


def exclusions(stored: Stored, *, every_cell: bool = False) -> Table:
    """Requests by what became of them, summed over seeds; `every_cell`: over all cells, not over one condition."""
    frame = runs_of(stored.summary) if every_cell else stored.base
    counts = [name for name in COUNTS if name in frame]
    if frame.empty or not counts:
        return Table([], [])
    rows = []
    for name in in_order(frame["allocator"].astype(str)):
        sums = frame.loc[frame["allocator"] == name, counts].sum()
        rows.append([name, *(number(sums[count], "count") for count in counts)])
    heads = [name.removeprefix("num_").replace("requests", "in the trace") for name in counts]
    return Table(["allocator", *heads], rows)


def setup(stored: Stored) -> list[tuple[str, str]]:
    """What was run on what."""
    manifest = stored.manifest
    (name, digest), others = trace_of(manifest), other_traces(manifest)
    window = stored.window_s()
    sizes = sorted(set(stored.summary["block_size"].dropna().astype(int))) if "block_size" in stored.summary else []
    rows = [
        ("command", command_of(manifest)),
        ("trace", name),
        ("sha256 of the trace", digest + (f" and {counted(others, 'other')} (manifest.json)" if others else "")),
        ("requests a run", num_requests_of(stored)),
        ("seeds" if "," in seeds_of(stored) else "seed", seeds_of(stored)),
        ("allocators", ", ".join(stored.allocators) or "none finished"),
        ("block sizes (tokens)", ", ".join(map(str, sizes)) or "–"),
        ("KV memory", _capacity(manifest, stored)),
        *_fleet(manifest),
        (
            f"averages over ({_clock(stored)} s)",
            f"{window[0]:g} to {window[1]:g}" if window else "each run's own window",
        ),
        ("device", str(manifest.get("device", "unknown"))),
        *([("engine", engine_of(manifest))] if stored.is_measured else []),
        ("model of step times", step_model_of(manifest)),
        *([] if stored.is_measured else _coefficients(manifest)),
        ("status", str(manifest.get("status", "unknown"))),
    ]
    return rows


def _fleet(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Replicas and router, where there are several."""
    config = manifest.get("config")
    fleet = config.get("fleet") if isinstance(config, dict) else None
    if not isinstance(fleet, dict):
        return []
    rules = ", ".join(f"{key} = {value}" for key, value in fleet.items() if key not in ("replicas", "router"))
    told = f"{fleet.get('replicas')} replicas, each with that memory; router {fleet.get('router')}"
    return [("fleet", f"{told} ({rules})" if rules else told)]


def replicas(stored: Stored) -> Table:
    """One row an allocator and replica, of the first seed; nothing where there is one replica."""
    rows = [
        [name, str(row["replica"]), *(number(row.get(c.name), c.kind) for c in REPLICA)]
        for name, table in (stored.one_each("replicas") if "num_replicas" in stored.base else {}).items()
        for row in table.to_dict("records")
    ]
    return Table(["allocator", "replica", *(column.head for column in REPLICA)] if rows else [], rows)


def _clock(stored: Stored) -> str:
    return "measured" if stored.is_measured else "simulated"


def _coefficients(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    model = manifest.get("step_model")
    if not isinstance(model, dict):
        return []
    return [("its coefficients", ", ".join(_coefficient(key, value) for key, value in model.items()))]


def _coefficient(key: str, value: Any) -> str:
    """Picoseconds, also in lists, as milliseconds or microseconds."""
    if not key.endswith("_ps"):
        return f"{key} = {value}"
    try:
        times = [int(part) for part in str(value).split(",")]
    except ValueError:
        return f"{key} = {value}"
    unit, each = ("ms", 10**9) if max(times) >= 10**8 else ("us", 10**6)
    return f"{key.removesuffix('_ps')} = {', '.join(f'{time / each:.6g}' for time in times)} {unit}"


def _capacity(manifest: dict[str, Any], stored: Stored) -> str:
    capacity = manifest.get("capacity")
    capacity = capacity if isinstance(capacity, dict) else {}
    tokens, size = capacity.get("tokens"), capacity.get("bytes")
    if not isinstance(tokens, int) and "capacity_tokens" in stored.base and len(stored.base):
        tokens = int(stored.base["capacity_tokens"].iloc[0])
    parts = [f"{tokens:,} token slots"] if isinstance(tokens, int) else []
    parts += [f"{size:,} bytes ({size / 2**30:.2f} GiB)"] if isinstance(size, int) else []
    return ", ".join(parts) or "unknown"


def lost_cells(stored: Stored) -> list[str]:
    """Cells that did not give a row, with their reason."""
    cells = stored.manifest.get("cells")
    cells = [cell for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    lost = [f"{_cell(c)}: {c.get('error') or 'failed'}" for c in cells if c.get("status") == "failed"]
    named = {str(cell.get("cell")) for cell in cells}
    errors = sorted(stored.folder.glob("cells/*/error.txt"))
    return lost + [f"{path.parent.name}: {_first_line(path)}" for path in errors if path.parent.name not in named]


def _cell(cell: dict[str, Any]) -> str:
    """Its name, and its point in a sweep."""
    point = cell.get("point")
    where = ", ".join(f"{key}={value}" for key, value in point.items()) if isinstance(point, dict) else ""
    return f"{cell.get('cell', 'a cell')}{f' ({where})' if where else ''}"


def _first_line(path: Any) -> str:
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return lines[0] if lines else "failed"
