"""An allocator with a stopwatch on what is asked of it; in all else the allocator that it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.core.allocator import NO_HIT, Refusal
from engine.core.registry import PoolConfig, make_allocator

if TYPE_CHECKING:
    from engine.core.allocator import Grant, Hit, KVAllocator
    from engine.core.decode_set import DecodeSet
    from engine.core.request import Request

OPERATIONS: Final = ("lookup", "admit", "admit-refused", "extend", "advance", "free", "block_table")


class TimedAllocator:
    """Keeps the nanoseconds of every call, by operation; a refused admission is an operation of its own."""

    def __init__(self, held: KVAllocator, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.held = held
        self._clock = clock
        self.times_ns: dict[str, list[int]] = {name: [] for name in OPERATIONS}

    def __getattr__(self, name: str) -> Any:
        """Everything else is the allocator's own."""
        if name == "held":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.held, name)

    def lookup(self, request: Request) -> Hit:
        """Timed."""
        start = self._clock()
        hit = self.held.lookup(request)
        self.times_ns["lookup"].append(self._clock() - start)
        return hit

    def admit(
        self, request: Request, num_tokens: int, hit: Hit = NO_HIT, *, whole: int = 0, others_running: bool = False
    ) -> Grant | Refusal:
        """Timed, refusals apart."""
        start = self._clock()
        grant = self.held.admit(request, num_tokens, hit, whole=whole, others_running=others_running)
        elapsed = self._clock() - start
        self.times_ns["admit-refused" if isinstance(grant, Refusal) else "admit"].append(elapsed)
        return grant

    def extend(
        self, requests: Sequence[Request], num_tokens: Sequence[int], *, num_lookahead: int = 0
    ) -> Grant | Refusal:
        """Timed: one call for however many requests."""
        start = self._clock()
        grant = self.held.extend(requests, num_tokens, num_lookahead=num_lookahead)
        self.times_ns["extend"].append(self._clock() - start)
        return grant

    def advance(self, requests: DecodeSet, num_steps: int) -> Grant:
        """Timed: one call for all that decode."""
        start = self._clock()
        grant = self.held.advance(requests, num_steps)
        self.times_ns["advance"].append(self._clock() - start)
        return grant

    def free(self, request: Request) -> None:
        """Timed."""
        start = self._clock()
        self.held.free(request)
        self.times_ns["free"].append(self._clock() - start)

    def block_table(self, request: Request) -> Sequence[int]:
        """Timed."""
        start = self._clock()
        table = self.held.block_table(request)
        self.times_ns["block_table"].append(self._clock() - start)
        return table


def timed_paged(pool: PoolConfig) -> TimedAllocator:
    """`--allocator experiments.bench.timed_allocator:timed_paged`."""
    return TimedAllocator(make_allocator("paged", pool))


def timed_orca_oracle(pool: PoolConfig) -> TimedAllocator:
    """`--allocator experiments.bench.timed_allocator:timed_orca_oracle`."""
    return TimedAllocator(make_allocator("orca-oracle", pool))


def stopwatch_ns(clock: Callable[[], int] = time.perf_counter_ns, trials: int = 1001) -> int:
    """What the stopwatch itself adds to each time: the median of empty measurements."""
    return sorted(-(clock() - clock()) for _ in range(trials))[trials // 2]
