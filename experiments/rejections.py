"""Why an allocator has turned every request away: its reservation may exceed what the pool can ever hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine.core.registry import make_allocator
from experiments.resolve import pool_config
from sim.arrivals import LengthLimits, requests_of

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from experiments.cells import Outcome
    from experiments.resolve import Cell, Plan


def rejection_notes(plan: Plan, outcomes: Iterable[Outcome]) -> list[str]:
    """A sentence for each allocator and block size that rejected every request it could have served."""
    return list(dict.fromkeys(_sentence(plan, o.cell) for o in outcomes if _rejects_all(o.summary)))


def _rejects_all(summary: dict[str, Any] | None) -> bool:
    return (
        summary is not None
        and summary["num_rejected"] > 0
        and summary["num_rejected"] + summary["num_failed"] == summary["num_requests"]
    )


def _sentence(plan: Plan, cell: Cell) -> str:
    head = f"{cell.allocator} at block size {cell.block_size} rejected every request"
    allocator = make_allocator(cell.allocator, pool_config(plan.config, cell))
    refused = _smallest_need(plan, cell, allocator)
    if refused is None:
        return f"{head}: each is longer than max_model_len or the pool"
    needed, largest = (blocks * cell.block_size for blocks in refused)
    if allocator.contiguous:
        return f"{head}: its reservation of {needed:,} tokens exceeds the largest extent, {largest:,} tokens"
    return f"{head}: the smallest needs {needed:,} tokens, the pool holds {largest:,}"


def _smallest_need(plan: Plan, cell: Cell, allocator: KVAllocator) -> tuple[int, int] | None:
    """Blocks of the smallest request that it refuses for ever, and of its largest extent; None if the lengths alone
    had every request turned away."""
    capacity = allocator.capacity_blocks * allocator.block_size
    limits = LengthLimits(plan.limits.max_model_len, capacity, plan.config.scheduler.too_long)
    requests = requests_of(plan.trace(cell), limits, lambda row: None)
    refusals = (refusal for request in requests if (refusal := allocator.refuses_forever(request)) is not None)
    return min(((refusal.needed_blocks, refusal.free_blocks) for refusal in refusals), default=None)
