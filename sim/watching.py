"""Who watches a run: the recorder that its specification asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from engine.core.block_pool import BlockPool
from sim.recorder import Recorder
from sim.residency import Residency
from sim.sharing_recorder import SharingRecorder

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.request import Request
    from engine.core.scheduler import Scheduler
    from sim.frame import Frame
    from sim.simulate import RunSpec


FIRST_PS, LAST_PS = 10**9, 86_400 * 10**12
"""Of pictures of a run whose length nobody knows."""


def recorder_for(spec: RunSpec, scheduler: Scheduler, frame: Frame) -> Recorder:
    """A fresh one; pictures are spread up to the last arrival or the cut."""
    window = frame.window
    record: Callable[..., Recorder] = Recorder
    if spec.record_sharing:
        start, stop = (window.start, window.stop) if window else (0, None)
        record = partial(SharingRecorder, start=start, stop=stop)
    return record(
        scheduler,
        frame.edges,
        final_tokens=_final_tokens(spec.final_token_has_slot),
        snapshot_times=_snapshot_times(frame.end or frame.last, spec.num_snapshots),
        record_steps=spec.record_steps,
        residency=_watched(scheduler.allocator) if spec.record_residency else None,
    )


def _watched(allocator: KVAllocator) -> Residency | None:
    """Of its cached blocks; None where there can be none."""
    pool = getattr(allocator, "pool", None)
    return Residency(pool) if isinstance(pool, BlockPool) and getattr(allocator, "enable_caching", False) else None


def _final_tokens(final_token_has_slot: bool) -> Callable[[Request], int]:
    last = 0 if final_token_has_slot else 1

    def final(request: Request) -> int:
        return request.num_prompt_tokens + request.num_stop_tokens - last

    return final


def _snapshot_times(span: int, count: int) -> Sequence[int]:
    """Evenly over the span. Where all come at once nobody knows how long they will take: then at 0, and from a
    millisecond to a day at distances that grow by a constant factor."""
    if not span and count > 1:
        return [0, *(round(FIRST_PS * (LAST_PS / FIRST_PS) ** (i / max(count - 2, 1))) for i in range(count - 1))]
    return [span * i // count for i in range(count)] if count else ()
