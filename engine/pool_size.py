"""How large an LLM's pools are: blocks on the device, and in host memory for sequences that are swapped out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.core.allocator import MAX_BLOCKS
from engine.worker.budget import EngineError, KVBudget, check_host_fits, most_on_cpu

if TYPE_CHECKING:
    from engine.worker.engine import Engine

SWAP_BYTES = 4 << 30
"""What sequences that are swapped out take at most, where nobody says (vLLM's swap_space)."""
GIB = 1 << 30
MOST_SWAP_BYTES = 1 << 60
"""More than any host has; what is beyond what is free is said with both numbers."""


def device_blocks(
    engine: Engine, block_size: int, num_blocks: int | None, kv_tokens: int | None, utilization: float
) -> tuple[int, KVBudget | None]:
    """Blocks that requests can hold: pinned, or what the device has left, and how that was found."""
    if num_blocks is not None and kv_tokens is not None:
        raise EngineError("num_blocks and kv_tokens both pin the capacity: give one of them")
    if kv_tokens is not None:
        if kv_tokens < block_size:
            raise EngineError(f"kv_tokens: expected at least one block of {block_size:,} tokens, got {kv_tokens:,}")
        return kv_tokens // block_size, None
    if num_blocks is not None:
        return num_blocks, None
    budget = engine.budget(block_size, utilization=utilization)
    fits = min(budget.num_blocks - 1, MAX_BLOCKS)
    if engine.device.type == "cpu":
        fits = min(fits, most_on_cpu(engine.limits, block_size, engine.block_bytes(block_size)))
    return fits, budget


def host_blocks_of(
    preemption: str, block_bytes: int, num_blocks: int, host_blocks: int | None, swap_gib: float | None
) -> int:
    """Blocks of host memory: as asked, or as many as on the device within 4 GiB where anything is swapped at all."""
    if host_blocks is not None and swap_gib is not None:
        raise EngineError("host_blocks and swap_gib both say how much is swapped: give one of them")
    if preemption == "recompute":
        if host_blocks or swap_gib:
            raise EngineError("host memory is for preemption 'swap' or 'auto': with 'recompute' nothing is swapped")
        return 0
    if swap_gib is not None:
        if not block_bytes <= swap_gib * GIB < MOST_SWAP_BYTES:
            raise EngineError(
                f"swap_gib: expected at least one block of {block_bytes:,} bytes, in GiB, got {swap_gib!r}"
            )
        host_blocks = int(swap_gib * GIB) // block_bytes
    if host_blocks is None:
        return max(min(num_blocks, SWAP_BYTES // block_bytes), 1)
    if host_blocks < 1:
        raise EngineError(f"host_blocks: expected a whole number of at least 1, got {host_blocks!r}")
    check_host_fits(host_blocks, block_bytes)
    return host_blocks
