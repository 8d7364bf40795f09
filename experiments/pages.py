"""Pages of the allocator `virtual`: how many tokens one holds, and what the grid of runs makes of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from experiments.backends import is_real, kv_dtype_of
from experiments.exits import UsageError

if TYPE_CHECKING:
    from engine.core.kv_spec import KVSpec
    from engine.core.model_shape import ModelShape
    from experiments.pool import Pool
    from experiments.settings import Config, Memory

VIRTUAL: Final = "virtual"
PAGE_BYTES: Final = (2 * 2**20,)
"""What CUDA's calls for virtual memory map at least."""


def nothing_to(allocator: str) -> str:
    """The key that is nothing to it: a block of `virtual` is its page, and nobody else has pages."""
    return "kv.block_size" if allocator == VIRTUAL else "kv.page_bytes"


def page_tokens(config: Config, shape: ModelShape) -> dict[int, int]:
    """Bytes of a page by the tokens that it holds, hence by block size; {} where nobody maps pages. UsageError for
    pages that hold no token, or equally many, and on the real engine."""
    kv, model = config.kv, config.model
    if VIRTUAL not in (kv.allocator or ()):
        return {}
    if is_real(config):
        raise UsageError(f"--allocator {VIRTUAL}: its page tables are simulated; leave out --backend")
    if VIRTUAL in (kv.sweep or {}):
        raise UsageError(f"kv.sweep: the block size of {VIRTUAL} follows from its pages; use kv.page_bytes")
    spec, found = shape.kv_spec(kv_dtype_of(config), model.tp, model.pp), dict[int, int]()
    for size in dict.fromkeys(kv.page_bytes or PAGE_BYTES):
        tokens = spec.page_tokens(size)
        if not tokens or tokens in found:
            what = f"as many tokens as one of {found[tokens]:,} B" if tokens else "not one token"
            raise UsageError(f"--page-bytes {size}: a page of {size:,} B holds {what} of {shape.name} in one tensor")
        found[tokens] = size
    return found


def pairs_of(kv: Memory, page_tokens: tuple[int, ...]) -> list[tuple[str, int]]:
    """Allocator and block size of each cell, as often as asked for; the block of `virtual` is a page."""
    names, sizes, sweep = kv.allocator or (), kv.block_size or (), kv.sweep or {}
    stray = sorted(sweep.keys() - set(names))
    if stray:
        raise UsageError(f"kv.sweep names {stray[0]!r}, which is not among the allocators {', '.join(names)}")
    sweep = {**sweep, VIRTUAL: page_tokens}
    return [(name, size) for name in names for size in sweep.get(name, sizes)]


def page_notes(spec: KVSpec, pool: Pool, pages: Mapping[int, int]) -> list[str]:
    """What a page holds, and how much of the pool is in whole page groups, for each size."""
    notes = []
    for tokens, size in pages.items():
        groups = pool.page_groups[tokens]
        held = "" if pool.tokens is None else f", with {groups * tokens:,} of the pool's {pool.tokens:,} tokens"
        notes.append(
            f"{VIRTUAL}: a page of {size:,} B holds {tokens:,} tokens of one tensor, a block is that page of "
            f"{spec.num_tensors} tensors: block size {tokens}, {groups:,} blocks{held}"
        )
    return notes
