"""Runs as the rows of vLLM's `bench sweep`: the columns of its summary.csv, for what plots and tables read that.

Times are in milliseconds there, rates per second of the whole run. What a sweep varied comes first under our keys
(`allocator`, `block_size`, a sweep's axes), as vLLM puts the parameters that it varied. Columns that need the times of
single tokens (`max_output_tokens_per_s`, all of `itl` but its mean) are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.csv_text import to_csv

if TYPE_CHECKING:
    import pandas as pd

    from experiments.export.runs import StoredRun

LATENCIES: Final = ("ttft", "tpot", "e2el")


def rows_of(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """One row a run."""
    return [_row(run, index) for index, run in enumerate(runs)]


def csv_of(runs: Sequence[StoredRun]) -> str:
    """As pandas writes it there: the first column has no name and counts the rows."""
    return to_csv([{"": index, **row} for index, row in enumerate(rows_of(runs))])


def json_of(runs: Sequence[StoredRun]) -> str:
    """The list that `vllm bench sweep plot` finds in files called summary.json."""
    return json.dumps(rows_of(runs), indent=4, allow_nan=False) + "\n"


def _row(run: StoredRun, index: int) -> dict[str, Any]:
    requests, row = run.requests, run.row
    done = requests[requests["status"].isin(["finished", "truncated"])]
    cut = len(done) == 0 or (requests["status"] == "unfinished").any()
    duration = float(row.get("makespan_s") or 0.0) if cut else float(done["finish_s"].max())
    tokens_in, tokens_out = int(done["num_prompt_tokens"].sum()), int(done["num_output_tokens"].sum())

    def per_s(count: int) -> float | None:
        return count / duration if duration else None

    return {
        "run_number": int(row["repeat"]) if row.get("repeat") is not None else 0,
        **_varied(run),
        "date": str(run.manifest.get("started") or ""),
        "backend": "pagelab",
        "label": run.label,
        "model_id": run.model,
        "num_prompts": len(requests),
        "request_rate": _rate(run.manifest),
        "max_concurrency": _config(run, "workload", "max_concurrency"),
        "tensor_parallel_size": _config(run, "model", "tp"),
        "pipeline_parallel_size": _config(run, "model", "pp"),
        "duration": duration,
        "completed": len(done),
        "failed": len(requests) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": per_s(len(done)),
        "request_goodput": None,
        "output_throughput": per_s(tokens_out),
        "total_token_throughput": per_s(tokens_in + tokens_out),
        "max_concurrent_requests": most_at_once(done),
        **_latencies(done),
    }


def _varied(run: StoredRun) -> dict[str, Any]:
    """What may differ from row to row: allocator and block size, the seed, and a sweep's axes."""
    named = {name: run.row[name] for name in ("allocator", "block_size", "seed")}
    return {**named, **{axis: run.row.get(axis) for axis in run.manifest.get("axes", {})}}


def _config(run: StoredRun, section: str, key: str) -> Any:
    return run.manifest.get("config", {}).get(section, {}).get(key)


def _rate(manifest: Mapping[str, Any]) -> Any:
    """Requests a second: asked for, or those of the trace."""
    asked = manifest.get("config", {}).get("workload", {}).get("request_rate")
    return asked if asked is not None else manifest.get("trace", {}).get("rate_per_s")


def most_at_once(done: pd.DataFrame) -> int:
    """Most requests in flight in any second, counted from the first arrival; one counts in each second it touches."""
    if not len(done):
        return 0
    zero = float(done["arrival_s"].min())
    first, last = (np.floor(done[name].to_numpy() - zero).astype(int) for name in ("arrival_s", "finish_s"))
    change = np.zeros(int(last.max()) + 2, dtype=int)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return int(change.cumsum().max())


def _latencies(done: pd.DataFrame) -> dict[str, float | None]:
    arrival, first, finish = (done[f"{name}_s"].to_numpy() for name in ("arrival", "first_token", "finish"))
    later = done["num_output_tokens"].to_numpy() - 1
    many = later > 0
    gaps, between = float((finish - first)[many].sum()), int(later[many].sum())
    values = first - arrival, (finish - first)[many] / later[many], finish - arrival
    found: dict[str, float | None] = {}
    for name, seconds in zip(LATENCIES, values, strict=True):
        found |= _statistics(name, seconds)
    return {**found, "mean_itl_ms": 1000 * gaps / between if between else None}


def _statistics(name: str, seconds: NDArray[np.float64]) -> dict[str, float | None]:
    names = [f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99")]
    if not len(seconds) or not math.isfinite(float(seconds.sum())):
        return dict.fromkeys(names)
    found = np.mean(seconds), np.median(seconds), np.std(seconds), np.percentile(seconds, 99)
    return {column: 1000 * float(value) for column, value in zip(names, found, strict=True)}
