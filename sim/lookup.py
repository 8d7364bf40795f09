"""From a column of `summary.csv` to what it means: its definition, and which way is better."""

from __future__ import annotations

import re
from dataclasses import replace

from sim.extra_metrics import RESIDENCY_METRICS, SHARING_METRICS
from sim.metrics import ENGINE_METRICS, HIGHER, LATENCIES, LOWER, METRICS, Better, Metric

KNOWN: dict[str, Metric] = {
    metric.name: metric for metric in (*RESIDENCY_METRICS, *SHARING_METRICS, *ENGINE_METRICS, *METRICS)
}
COUNTED: dict[str, Better] = {
    "num_finished": HIGHER,
    "num_truncated": LOWER,
    "num_rejected": LOWER,
    "num_failed": LOWER,
    "num_unfinished": LOWER,
    "num_preemptions": LOWER,
    "num_computed_tokens": LOWER,
    "num_recomputed_tokens": LOWER,
    "makespan_s": LOWER,
}
_PERCENTILE = re.compile(rf"p(\d+)_({'|'.join(LATENCIES)})_s")


def definition_of(column: str) -> Metric | None:
    """The metric of a column: percentiles, means over the whole run (`makespan_`) and over iterations (`iter_`) are
    those of the mean; None where nothing is defined."""
    if column in KNOWN:
        return KNOWN[column]
    if found := _PERCENTILE.fullmatch(column):
        base = KNOWN[f"mean_{found[2]}_s"]
        return replace(base, name=column, label=f"p{found[1]} {base.label}")
    for prefix, words in (("makespan_", "over the whole run"), ("iter_", "by iteration")):
        if column.startswith(prefix) and (whole := KNOWN.get(column.removeprefix(prefix))):
            return replace(whole, name=column, label=f"{whole.label}, {words}")
    return None


def better(column: str) -> Better:
    """Which way is an improvement; empty where nobody can say."""
    metric = definition_of(column)
    return metric.better if metric else COUNTED.get(column, "")


def least_sample(column: str) -> int:
    """Values that a percentile needs to be more than the largest of them: 1 / (1 - q), 100 for p99; 1 for others."""
    found = _PERCENTILE.fullmatch(column)
    return round(100 / (100 - int(found[1]))) if found else 1
