"""Allocators to ask what they can do, without the pools that they will have."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.registry import PoolConfig

FEW_BLOCKS: Final = 64


@lru_cache(maxsize=1024)
def stand_in(name: str, pool: PoolConfig) -> KVAllocator:
    """An allocator with what is asked of it, and few blocks; ValueError where there is none of the real size. That one
    is made once and let go: the many cells of a sweep share few pools, and a million blocks take a while."""
    from engine.core.registry import make_allocator

    real = make_allocator(name, pool)
    few = {key: min(getattr(pool, key), FEW_BLOCKS) for key in ("capacity_blocks", "host_blocks")}
    try:
        return make_allocator(name, replace(pool, **few))
    except ValueError:  # one that needs more
        return real
