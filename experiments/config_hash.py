"""The hash of a resolved configuration: the same for the same numbers, whatever the files are called."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from experiments.config import dump, flatten

if TYPE_CHECKING:
    from experiments.arriving import Arriving
    from experiments.settings import Config

NEWER_KEYS = {
    "workload.repeat": False,
    "workload.num_samples": 1,
    "workload.samples_as": "fork",
    "scheduler.batching": "iteration",
    "scheduler.preemption": "recompute",
    "measure.record_residency": False,
}
"""Keys that came when there were stored results already: at their defaults they are not part of the hash."""


def config_sha256(config: Config, arriving: Arriving) -> str:
    """The same for the same numbers: what arrives counts by content, not by path."""
    flat = flatten(dump(config))
    flat.pop("workload.lengths", None)
    for key, default in NEWER_KEYS.items():
        if flat.get(key) == default:
            del flat[key]
    flat["workload.trace"] = arriving.provenance.get("sha256_by_seed", arriving.provenance["sha256"])
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()
