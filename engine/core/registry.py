"""Allocators by name: the one place that a new allocator is added to.

Names in tables and legends are `paged`, the paper's `orca-max`, `orca-pow2`, `orca-oracle` (buddies), `virtual`
after vAttention, and derived ones such as `contiguous-oracle-best-fit` or `contiguous-chunk(64)-first-fit`;
`package.module:Class` names a user's own.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from engine.core.allocator import KVAllocator
from engine.core.contiguous import ContiguousAllocator
from engine.core.paged import PagedAllocator
from engine.core.virtual import VirtualAllocator


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """What every allocator is made from; each reads what concerns it."""

    capacity_blocks: int
    """Blocks that requests can hold, the null block not counted."""
    block_size: int
    max_model_len: int
    enable_caching: bool = True
    watermark: float = 0.0
    freed_to: Literal["front", "back"] = "front"
    one_free_each: bool = False
    host_blocks: int = 0
    """Blocks of host memory for sequences that are swapped out; contiguous allocators cannot use any."""


def _paged(pool: PoolConfig) -> KVAllocator:
    return PagedAllocator(
        pool.capacity_blocks,
        pool.block_size,
        max_model_len=pool.max_model_len,
        enable_caching=pool.enable_caching,
        watermark=pool.watermark,
        freed_to=pool.freed_to,
        one_free_each=pool.one_free_each,
        host_blocks=pool.host_blocks,
    )


def _contiguous(reserve: str, fit: str) -> Callable[[PoolConfig], KVAllocator]:
    def make(pool: PoolConfig) -> KVAllocator:
        return ContiguousAllocator(
            pool.capacity_blocks, pool.block_size, max_model_len=pool.max_model_len, reserve=reserve, fit=fit
        )

    return make


def _virtual(pool: PoolConfig) -> KVAllocator:
    return VirtualAllocator(
        pool.capacity_blocks,
        pool.block_size,
        max_model_len=pool.max_model_len,
        watermark=pool.watermark,
        one_free_each=pool.one_free_each,
    )


ALLOCATORS: dict[str, Callable[[PoolConfig], KVAllocator]] = {
    "paged": _paged,
    "orca-max": _contiguous("max", "buddy"),
    "orca-pow2": _contiguous("pow2", "buddy"),
    "orca-oracle": _contiguous("oracle", "buddy"),
    "virtual": _virtual,
}

FITS = ("first-fit", "best-fit", "buddy")


def make_allocator(name: str, pool: PoolConfig) -> KVAllocator:
    """The allocator of that name; ValueError with a suggestion if there is none."""
    if name in ALLOCATORS:
        return ALLOCATORS[name](pool)
    if ":" in name:
        return _as_asked(name, load_allocator(name)(pool), pool)
    fit = next((f for f in FITS if name.endswith("-" + f)), None)
    if name.startswith("contiguous-") and fit:
        return _contiguous(name[len("contiguous-") : -len(fit) - 1], fit)(pool)
    close = difflib.get_close_matches(name, ALLOCATORS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(
        f"unknown allocator {name!r}: {hint}known are {', '.join(ALLOCATORS)}, contiguous-RESERVE-FIT, "
        "and package.module:Class"
    )


def _as_asked(name: str, allocator: KVAllocator, pool: PoolConfig) -> KVAllocator:
    """Refuses an allocator whose pool is not the one it was given: comparisons are at equal capacity."""
    asked = {
        "block_size": pool.block_size,
        "capacity_blocks": pool.capacity_blocks,
        "num_blocks": pool.capacity_blocks + 1,
    }
    for attribute, value in asked.items():
        found = getattr(allocator, attribute, None)
        if found != value:
            raise ValueError(f"allocator {name!r} has {attribute}={found!r}, but its PoolConfig asks for {value}")
    return allocator


def load_allocator(path: str) -> Callable[[PoolConfig], KVAllocator]:
    """A user's class or factory from `package.module:Class`, called with a `PoolConfig`."""
    module_name, _, attribute = path.partition(":")
    try:
        made: Any = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever the user's module raises, it is the user's to mend
        raise ValueError(
            f"cannot load allocator {path!r}: {type(error).__name__}: {error}; it must be importable as "
            "package.module:Class (is its folder on PYTHONPATH?)"
        ) from error
    if not callable(made):
        raise ValueError(f"allocator {path!r} is not callable: it must be a class that takes a PoolConfig")
    return cast("Callable[[PoolConfig], KVAllocator]", made)
