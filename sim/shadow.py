"""The executor that remembers every token: KV memory as a plain list, read back in full at each step.

It runs in place of a cost model wherever a scheduler or an allocator is tested. A request that was given a wrong
block, whose lost tokens count as computed, or whose moved blocks were not copied reads somebody else's token and is
named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.core.shadow import ContractViolation, ShadowMemory
from sim.cost import LinearModel, StepModel
from sim.cost_executor import CostExecutor

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.batch import Batch, StepResult
    from engine.core.decode_set import DecodeSet

PS_PER_MS = 10**9
MILLISECOND_STEPS = LinearModel(base_ps=PS_PER_MS, per_seq_ps=0, per_kv_token_ps=0, per_extra_token_ps=0)


class ShadowExecutor:
    """Durations and stops of a `CostExecutor`; each scheduled token is written, each token of the batch read back."""

    def __init__(self, allocator: KVAllocator, model: StepModel | None = None, **costs: Any) -> None:
        """`model`: how long steps take; None: a millisecond each. `costs` as the cost model's executor has them."""
        self._allocator = allocator
        self._cost = CostExecutor(MILLISECOND_STEPS if model is None else model, **costs)
        self._memory = ShadowMemory(allocator.num_blocks, allocator.block_size)
        self._num_steps = 0

    def horizon(self, decodes: DecodeSet, until: int | None, end: int | None) -> int:
        """A step at a time: every token is touched."""
        return 1

    def submit(self, batch: Batch) -> StepResult:
        """One step. ContractViolation, with the step and the request, at the first token that is not its own."""
        self._num_steps += 1
        try:
            self._run(batch)
        except ContractViolation as error:
            raise ContractViolation(f"step {self._num_steps}: {error}") from error
        result = self._cost.submit(batch)
        for request in result.stopped:
            group = request.group
            if group is not None and group.answer is not None and request is group.leader:
                self._memory.rename(request, group.answer, self._allocator.block_table(request))
            self._memory.forget(request)
        return result

    def _run(self, batch: Batch) -> None:
        """Copies, then all writes, then all reads: a block may be shared in the step that fills it."""
        memory = self._memory
        memory.swap(batch.to_host, batch.to_device)
        memory.copy(batch.copies)
        for _, child, _ in batch.forks:
            memory.forget(child)  # its content is another one now
        items = [(r, context, context + new, self._allocator.block_table(r)) for r, context, new in batch.items()]
        for request, start, stop, table in items:
            memory.write(request, start, stop, table)
        for request, _, stop, table in items:
            memory.check(request, stop, table)
