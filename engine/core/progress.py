"""Whether a loop of steps gets anywhere: a broken scheduler or allocator is reported, whatever loop it spins in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.batch import Batch
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler

MAX_FRUITLESS_PREEMPTIONS = 1_000
"""Preemptions of one request without a new token in between that count as livelock."""


class LivelockError(RuntimeError):
    """The loop makes no progress: a bug of a scheduler or an allocator, reported instead of spinning."""


class Progress:
    """Looks at the batches in which somebody was preempted or nobody runs; all others are progress."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._fruitless: dict[Request, tuple[int, int]] = {}
        """Of the requests that were preempted: their tokens then, and how often at so many."""

    def watch(self, batch: Batch) -> None:
        """LivelockError where the next batch could only be the same again."""
        if not batch.num_seqs and not batch.preempted:
            swapped = self._scheduler.swapped
            head = swapped[0][0] if swapped else self._scheduler.waiting.head()
            raise LivelockError(f"nothing runs and {head} is refused for ever: {batch.head_refusal}")
        lost = batch.forks or batch.to_host or batch.to_device or batch.copies
        if not batch.num_seqs and lost:  # loops pass over such a batch: nobody would copy anything
            raise LivelockError(f"a batch in which nobody runs has copies or forks: {lost}")
        for request, _, _ in batch.preempted:
            tokens, count = self._fruitless.get(request, (-1, 0))
            count = count + 1 if tokens == request.num_tokens else 1
            self._fruitless[request] = (request.num_tokens, count)
            if count > MAX_FRUITLESS_PREEMPTIONS:
                raise LivelockError(f"{request} was preempted {count} times without a new token")
