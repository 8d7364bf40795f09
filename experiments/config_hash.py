"""The hash of a resolved configuration: the same for the same numbers, whatever the files are called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    "measure.record_sharing": False,
}
"""Keys that came when there were stored results already: at their defaults they are not part of the hash."""


def hashed_keys(config: Config, arriving: Arriving) -> dict[str, Any]:
    """What the hash is made from, by dotted key; what arrives counts by content, not by path."""
    flat = flatten(dump(config))
    flat.pop("workload.lengths", None)
    for key, default in NEWER_KEYS.items():
        if flat.get(key) == default:
            del flat[key]
    flat["workload.trace"] = arriving.provenance.get("sha256_by_seed", arriving.provenance["sha256"])
    return flat


def config_sha256(config: Config, arriving: Arriving) -> str:
    """The same for the same numbers."""
    return sha256_of(hashed_keys(config, arriving))


def sha256_of(keys: Mapping[str, Any]) -> str:
    """Of plain values, in any order of keys."""
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()
