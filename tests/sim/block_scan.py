"""What the memory of a shared pool holds, block by block and scanned anew in every step: the definitions themselves.

A physical block with references is filled as far as any of its owners has computed, and will be filled as far as any of
them ever will. Blocks that only a copy under way still reads belong to nobody: their slots are waste.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.core.allocator import LEAVING
from sim import integrals as at
from sim.pool_state import PoolState
from sim.recorder import Recorder
from tests.sim.planting import instead

NAMES = ("seqs", "tokens", "used", "internal", "extra")


def scanned(pool: PoolState) -> dict[str, int]:
    """The state variables that sharing touches, from tables and lengths alone."""
    allocator, running, size = pool._allocator, pool._scheduler.running, pool._block_size
    filled: Counter[int] = Counter()
    final: Counter[int] = Counter()
    owners: Counter[int] = Counter()
    tokens = 0
    for request in running:
        computed = request.num_computed_tokens
        tokens += computed
        for index, block_id in enumerate(request.blocks or ()):
            owners[block_id] += 1
            filled[block_id] = max(filled[block_id], min(max(computed - index * size, 0), size))
            final[block_id] = max(final[block_id], min(max(pool._final_tokens(request) - index * size, 0), size))
    regions = allocator.regions()
    leaving = int(regions.length[regions.owner == LEAVING].sum())
    return {
        "seqs": len(running),
        "tokens": tokens,
        "used": (len(owners) + leaving) * size,
        "internal": sum(size - max(filled[b], final[b]) for b in owners) + leaving * size,
        "extra": tokens - sum(filled.values()),
    }


class Flows:
    """Who left and who came back, and what of that broke a rule."""

    def __init__(self) -> None:
        self.swapped_out: Counter[tuple[Any, int]] = Counter()
        self.swapped_in: Counter[tuple[Any, int]] = Counter()
        self.met: Counter[str] = Counter()

    def note(self, batch: Any, scheduler: Any) -> None:
        """AssertionError if a group was preempted in part, or somebody admitted before those that were swapped out."""
        for request, _, swapped in batch.preempted:
            self.swapped_out[request.request_id, request.sample] += swapped
        for request, _ in batch.swapped_in:
            self.swapped_in[request.request_id, request.sample] += 1
        for request, _, swapped in batch.preempted:
            self.met["swapped out" if swapped else "recomputed"] += 1
            if request.group is not None:
                statuses = {member.status for member in request.group.live()}
                assert len(statuses) == 1, f"{request} was preempted, and its group is {statuses}"
        assert not (batch.admitted and scheduler.swapped), f"{batch.admitted} came before {scheduler.swapped}"
        budget = scheduler.config.max_num_batched_tokens
        assert batch.num_new_tokens <= budget, f"{batch.num_new_tokens} tokens in a step, the budget is {budget}"
        self.met["groups preempted"] += len({p.request.group for p in batch.preempted} - {None})
        self.met["gathered"] += sum(a.resumed and a.request.group is not None for a in batch.admitted)
        self.met["forks"] += len(batch.forks)
        self.met["copies"] += len(batch.copies)


@contextmanager
def scanning() -> Iterator[Flows]:
    """While replays step: AssertionError at the first step whose state differs from the scan."""
    flows = Flows()

    def read(original: Callable[..., list[int]], pool: PoolState, batch: Any) -> list[int]:
        state = original(pool, batch)
        found = dict(zip(NAMES, (state[i] for i in (at.SEQS, at.TOKENS, at.USED, at.INTERNAL, at.EXTRA)), strict=True))
        expected = scanned(pool)
        assert found == expected, f"state {found}, block by block {expected}"
        stats, capacity = pool._allocator.stats(), pool._allocator.capacity_blocks
        live, size = expected["tokens"] - expected["extra"], pool._block_size
        reserved = expected["used"] - live - expected["internal"]
        assert reserved >= 0
        assert live + reserved + expected["internal"] + stats.num_free * size == capacity * size
        return state

    def moved(original: Callable[..., None], recorder: Recorder, now: int, batch: Any) -> None:
        flows.note(batch, recorder._scheduler)
        original(recorder, now, batch)

    with instead(PoolState, "read_step", read), instead(Recorder, "moved", moved):
        yield flows
