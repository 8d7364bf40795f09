"""What a cell is, in one hash: resolved configuration, trace, files that it reads, and the form of what is stored.

Seeds come from the configuration and the repeat alone. They depend on what is drawn, not on memory, rules or load: the
cells of a repeat that differ in an allocator, a block size or a rate replay the same draw, and comparisons are paired.
"""

from __future__ import annotations

import hashlib
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import defaults
from experiments.arriving import file_sha256
from experiments.config import map_paths
from experiments.config_hash import hashed_keys, sha256_of
from experiments.pages import nothing_to
from experiments.sweep.schema import schema_of

if TYPE_CHECKING:
    from experiments.resolve import Plan
    from experiments.settings import Config

NAME_DIGITS: Final = 10


def seed_of(config: Config, repeat: int) -> int:
    """Of a repeat: 32 bits of a hash over the configuration's seed, what is drawn from it, and the repeat."""
    workload = config.workload
    name = defaults.WORKLOAD if workload.name is None and workload.trace is None else workload.name
    lengths = {key: _sha256_once(path, *_stamp(path)) for key, path in workload.lengths.items()}
    return int(sha256_of({"seed": config.seed, "name": name, "lengths": lengths, "repeat": repeat})[:8], 16)


def _stamp(path: str) -> tuple[int, int]:
    stat = Path(path).stat()
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=64)
def _sha256_once(path: str, changed_ns: int, num_bytes: int) -> str:
    """Of a file that all cells of a sweep name; one that was changed is another one."""
    return file_sha256(Path(path))


def key_of(plan: Plan) -> str:
    """sha256 of a plan of one cell. OSError where a file that it names is gone."""
    flat = hashed_keys(plan.config, plan.arriving)
    arrives = flat.pop("workload.trace")
    flat.pop("workload.tokenizer", None)  # part of what arrives
    for allocator in plan.config.kv.allocator or ():
        flat.pop(nothing_to(allocator), None)  # a cell has one
    named: dict[str, Any] = map_paths(flat, _content)
    own = {name: _code(name) for name in plan.config.kv.allocator or () if ":" in name}
    schema = schema_of(plan.config)
    return sha256_of({"schema": schema, "config": named, "trace": arrives, **({"code": own} if own else {})})


def _code(allocator: str) -> str:
    """Of the module of a user's own allocator, which the plan has loaded."""
    file = getattr(sys.modules.get(allocator.partition(":")[0]), "__file__", None)
    return file_sha256(Path(file)) if file else ""


def _content(path: str) -> str:
    """Of a file its bytes; of a model's folder its config.json, and how large its other files are."""
    place = Path(path)
    if not place.is_dir():
        return file_sha256(place)
    sizes = sorted((file.name, file.stat().st_size) for file in place.iterdir() if file.is_file())
    config = place / "config.json"
    return hashlib.sha256(f"{sizes} {file_sha256(config) if config.is_file() else ''}".encode()).hexdigest()
