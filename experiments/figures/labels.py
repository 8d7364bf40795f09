"""What an axis or a head is called: a metric by its label and unit, a key in words."""

from __future__ import annotations

import textwrap
from typing import Final

from sim.lookup import definition_of

RATE: Final = "rate_per_s"
"""Requests a second of a folder's trace, as its manifest has it."""
MEASURED = ("median_s", "p20_s", "p80_s")
"""Seconds of a device."""
LABEL_CHARS = 26
UNITS = {"_per_s": "1/s", "_s": "s", "_bytes": "bytes", "_frac": "fraction", "_tokens": "tokens"}
KEYS = {
    RATE: "requests per second",
    "request_rate": "requests per second",
    "block_size": "block size (tokens)",
    "page_bytes": "page size (bytes)",
    "num_blocks": "blocks in the pool",
    "kv_tokens": "capacity (tokens)",
    "max_num_seqs": "most running requests",
    "max_num_batched_tokens": "most tokens in a step",
    "max_model_len": "longest request (tokens)",
    "watermark": "watermark (fraction of blocks)",
    "long_prefill_token_threshold": "most prompt tokens of a request in a step",
    "max_concurrency": "requests inside at once",
    "num_samples": "samples a request",
    "num_preemptions": "preemptions",
    "host_bytes": "host memory (bytes)",
}
"""Of the last part of a dotted key."""


def axis_label(column: str) -> str:
    """The metric's name and unit; simulated latencies say so."""
    leaf = column.rpartition(".")[2]
    if leaf in KEYS:
        return KEYS[leaf]
    metric = definition_of(column)
    if metric is None:
        return _by_its_unit(leaf)
    unit = {"1": "fraction"}.get(metric.unit, metric.unit)
    if unit.startswith("s") and is_simulated(column):
        return f"{metric.label} ({unit}, simulated)"
    return f"{metric.label} ({unit})"


def _by_its_unit(name: str) -> str:
    """Of what no metric defines: its words, and the unit that its last part names."""
    suffix = next((suffix for suffix in UNITS if name.endswith(suffix)), None)
    if suffix is None:
        return name.replace("_", " ")
    simulated = ", simulated" if suffix == "_s" and name not in MEASURED else ""
    return f"{name.removesuffix(suffix).replace('_', ' ')} ({UNITS[suffix]}{simulated})"


def in_binary(num_bytes: float) -> str:
    """`64 KiB`, `2 MiB`, `1.5 GiB`, or plain bytes below one of these."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:g} {unit}"
    return f"{num_bytes:g} B"


def is_simulated(column: str) -> bool:
    """Whether its seconds may be a model's; those of the engine alone never are."""
    from sim.metrics import ENGINE_METRICS

    return column not in {metric.name for metric in ENGINE_METRICS}


def in_lines(label: str) -> str:
    """A label of the y axis, broken where it would be longer than a panel is high."""
    return textwrap.fill(label, LABEL_CHARS, break_long_words=False, break_on_hyphens=False)
