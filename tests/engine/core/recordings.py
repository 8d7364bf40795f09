"""Recorded decisions of vLLM, found in the folder that PAGELAB_ORACLE names, or in the committed one."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("PAGELAB_ORACLE", Path(__file__).parents[2] / "data" / "oracle"))
KINDS = ("kv_cache_manager", "scheduler")


def load(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        recorded: dict[str, Any] = json.load(file)
    return recorded


RECORDED = {path.name.removesuffix(".json.gz"): load(path) for path in sorted(FOLDER.glob("*.json.gz"))}


def of_kind(kind: str) -> list[str]:
    """Names of the recordings of that kind."""
    return [name for name, recorded in RECORDED.items() if recorded.get("kind") == kind]


UNKNOWN = [name for name, recorded in RECORDED.items() if recorded.get("kind") not in KINDS]
