"""The invariants of a block pool, derived again from nothing but its parts: for tests and idle time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.block_pool import BlockPool


def check_blocks(
    pool: BlockPool,
    keys: Sequence[Hashable | None],
    index: Mapping[Hashable, int | dict[int, None]],
    extra: Mapping[int, int],
) -> None:
    """Keys by block, blocks by key, references beyond the first by block. AssertionError with both sides."""
    queue = pool.free_queue()
    assert len(queue) == len(set(queue)), f"a block is queued twice: {sorted(queue)}"
    assert all(0 < b <= pool.capacity for b in queue), f"no blocks of this pool (or the null block): {sorted(queue)}"
    assert len(queue) == pool.num_free, f"num_free={pool.num_free}, the queue holds {len(queue)}"
    assert keys[0] is None, "the null block is cached"
    queued = extra.keys() & set(queue)
    assert not queued, f"free blocks with references: {queued}"
    by_key: dict[Hashable, set[int]] = {}
    for block_id, key in enumerate(keys):
        if key is not None:
            by_key.setdefault(key, set()).add(block_id)
    mapped = {k: {e} if isinstance(e, int) else set(e) for k, e in index.items()}
    assert mapped == by_key, f"map {mapped} != keys of the blocks {by_key}"
    wrong = [b for b in pool.queue.stack if keys[b] is not None]
    assert not wrong, f"cached blocks in front of the free queue: {wrong}"
    cached = pool.cached_free()
    assert len(cached) == pool.num_cached_free, f"num_cached_free={pool.num_cached_free}, queued {cached}"
    counted = sum(extra.values())
    assert counted == pool.num_extra_references, f"extra references {pool.num_extra_references} != counted {counted}"
