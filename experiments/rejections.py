"""Why an allocator has turned every request away: its reservation may exceed what the pool can ever hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine.core.allocator import Refusal
from engine.core.registry import make_allocator
from experiments.cells import task_of
from experiments.resolve import pool_config
from experiments.sharing import width_of
from sim.simulate import requests_for

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.request import Request
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
    smallest, width = _smallest(plan, cell, allocator), width_of(plan.config)
    if smallest is None:
        pool = "the pool" if width == 1 else f"than the pool holds for {width} sequences that run together"
        return f"{head}: each is longer than max_model_len or {pool}"
    refusal, request = smallest
    needed, largest = (blocks * cell.block_size for blocks in (refusal.needed_blocks, refusal.free_blocks))
    what = f"the {needed:,} tokens that its smallest request may grow to (prompt + max_tokens, rounded up) exceed"
    if allocator.contiguous and isinstance(allocator.admit(request, request.num_prompt_tokens), Refusal):
        what = f"its reservation of {needed:,} tokens exceeds"
    where = "the largest extent" if allocator.contiguous else "the pool"
    return f"{head}: {what} {where}, {largest:,} tokens; lower --max-model-len or enlarge the pool"


def _smallest(plan: Plan, cell: Cell, allocator: KVAllocator) -> tuple[Refusal, Request] | None:
    """The request of the smallest need that it refuses for ever; None if the lengths alone had every request turned
    away."""
    requests = requests_for(task_of(plan, cell).spec, plan.trace(cell), lambda row: None, allocator)
    refused = ((refusal, r) for r in requests if (refusal := allocator.refuses_forever(r)) is not None)
    return min(refused, key=lambda pair: pair[0].needed_blocks, default=None)
