"""Request-level batching, as before iteration-level scheduling: FasterTransformer behind a queue.

The earliest waiting requests form a batch, at most `max_num_seqs` of them and as many as their whole reservations let
in; the batch runs until its longest request is done, and only then do all of them leave and the next ones start
(SOSP'23 section 6.1, the paper's FasterTransformer baseline). A request that has sampled its last token computes no
more, but keeps its memory and its answer waits for the batch; first tokens are stamped when they are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.core.request import Status
from engine.core.scheduler import Scheduler

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator, Refusal
    from engine.core.batch import Chunk, Draft
    from engine.core.limits import SchedulerConfig
    from engine.core.request import Request


class RequestLevelScheduler(Scheduler):
    """Admits only while nothing runs; needs memory that is reserved whole, so that nobody is ever preempted."""

    def __init__(self, config: SchedulerConfig, allocator: KVAllocator) -> None:
        if allocator.growth_tokens != 0:
            raise ValueError(
                "batching='request' needs an allocator that reserves all of a request's memory at admission "
                f"(orca-max, contiguous-max-first-fit, ...), got {type(allocator).__name__} with "
                f"growth_tokens={allocator.growth_tokens}"
            )
        super().__init__(config, allocator)

    def arrival_matters(self) -> bool:
        """Only to an idle server: while a batch runs, nobody joins it."""
        return not self.running and super().arrival_matters()

    @property
    def may_run_on(self) -> bool:
        """Runs of equal steps are counted by those that decode; the others of the batch hold memory, too."""
        return len(self.decodes.members) == len(self.running)

    @property
    def may_coast(self) -> bool:
        """Never: coasting goes on beyond a stop."""
        return False

    def _admit_waiting(self, step: Draft, chunks: list[Chunk]) -> Refusal | None:
        return None if self.running else super()._admit_waiting(step, chunks)

    def finish(self, stopped: Sequence[Request]) -> list[Request]:
        """These have sampled their last tokens. All of the batch leave with the last of them; nobody before."""
        for request in stopped:
            request.status = Status.FINISHED
            self.decodes.remove(request)
        if self.decodes.members or self._catching_up:
            return []
        finished = list(self.running)
        for request in finished:
            self._leave(request)
        return finished


def make_scheduler(config: SchedulerConfig, allocator: KVAllocator) -> Scheduler:
    """The scheduler that `config.batching` names."""
    return RequestLevelScheduler(config, allocator) if config.batching == "request" else Scheduler(config, allocator)
