"""The requests that decode, kept so that a step touches only those that need memory in it.

Every decoding request gains one token a step. So the set counts steps once (`clock`) and a request stores only its
offset: `num_computed_tokens = base + clock`. Requests hang in `period` buckets by the step at which they outgrow what
they hold, each bucket in running order. Of many phases only those that somebody is in have a bucket: memory is bounded
by who runs, however large blocks are.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.request import Request

_order = attrgetter("order")
MOST_LISTED = 4096
"""Phases up to which each has its bucket, which is faster: what is above is no block size that kernels take."""


class _Sparse(dict[int, "list[Request]"]):
    """Buckets by phase; a phase that nobody is in reads as empty."""

    def __missing__(self, phase: int) -> list[Request]:
        return []


class DecodeSet:
    """Decoding requests by growth phase.

    `period` is the number of tokens by which a request's memory grows (an allocator's `growth_tokens`); 0 or None
    keeps no buckets. `clock` counts steps scheduled, `sampled` steps whose tokens exist: they differ only between
    `schedule()` and `update()`.
    """

    __slots__ = (
        *("_sliced", "_twice", "buckets", "clock", "members"),
        *("num_beams", "num_sharing", "period", "sampled", "sum_base"),
    )

    def __init__(self, period: int | None = None) -> None:
        self.period = period or 0
        listed: list[list[Request]] = [[] for _ in range(self.period)] if self.period <= MOST_LISTED else []
        self.buckets: list[list[Request]] | _Sparse = listed if self.period <= MOST_LISTED else _Sparse()
        self._twice = listed * 2
        """The same lists once more, so that a slice need not wrap around; nothing where buckets are sparse."""
        self._sliced = len(listed)
        """Steps of which `_twice` has a slice."""
        self.members: set[Request] = set()
        self.clock = 0
        self.sampled = 0
        self.sum_base = 0
        self.num_sharing = 0
        """Members whose outputs can equal another request's tokens."""
        self.num_beams = 0
        """Members of searches."""

    @classmethod
    def of(cls, requests: Iterable[Request], period: int | None) -> DecodeSet:
        """A set of requests that have computed all their tokens, for tests and for callers without a scheduler."""
        made = cls(period)
        for request in requests:
            made.add(request)
        return made

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Request]:
        """In running order; sorts, so not for the step loop."""
        return iter(sorted(self.members, key=_order))

    @property
    def num_computed_tokens(self) -> int:
        """Sum over the members."""
        return self.sum_base + len(self.members) * self.clock

    def add(self, request: Request) -> None:
        """Lets a request decode: all its tokens but the last sampled one are computed."""
        base = request.base = request.computed - self.clock
        request.decoding = self
        self.sum_base += base
        self.members.add(request)
        if request.content.shares_outputs:
            self.num_sharing += 1
        if request.group is not None:
            self.num_beams += request.group.beam
        if self.period:
            phase = -base % self.period
            bucket = self.buckets[phase]
            if bucket and bucket[-1].order > request.order:
                insort(bucket, request, key=_order)
            else:
                bucket.append(request)
                self.buckets[phase] = bucket

    def remove(self, request: Request) -> None:
        """Writes the derived counts back into the request and lets go of it."""
        base = request.base
        self.members.remove(request)
        if request.content.shares_outputs:
            self.num_sharing -= 1
        if request.group is not None:
            self.num_beams -= request.group.beam
        self.sum_base -= base
        if self.period:
            phase = -base % self.period
            bucket = self.buckets[phase]
            bucket.remove(request)
            if not bucket and isinstance(self.buckets, _Sparse):
                del self.buckets[phase]
        request.computed = base + self.clock
        request.known = base + self.sampled + 1
        request.decoding = None

    def growing(self, step: int = 0) -> Sequence[Request]:
        """Members that outgrow what they hold in the `step`-th step from now (0 = the next one), in running order."""
        return self.buckets[(self.clock + step) % self.period] if self.period else ()

    def crossing(self) -> list[Request]:
        """Members whose next token is the first or the last of a block of `period` tokens, in running order."""
        first = self.growing()
        last = self.growing(1) if self.period > 1 else ()
        return sorted((*first, *last), key=_order)

    def growing_in(self, num_steps: int) -> Sequence[Request]:
        """Members that outgrow what they hold in the next `num_steps` steps, in (step, running order)."""
        first = self.clock % self.period
        if num_steps == 1:
            return self.buckets[first]
        phases = self._twice[first : first + num_steps] if num_steps <= self._sliced else self._phases(num_steps)
        return list(chain.from_iterable(phases))

    def steps_within(self, num_blocks: int, limit: int) -> int:
        """Steps, at most `limit`, before the members outgrow that many blocks of `period` tokens."""
        size, members = self.period, len(self.members)
        if (limit // size + 1) * members <= num_blocks:
            return limit
        if num_blocks < 0:
            return 0
        full = num_blocks // members
        steps, left, buckets, clock = full * size, num_blocks - full * members, self.buckets, self.clock
        while steps < limit:
            left -= len(buckets[(clock + steps) % size])
            if left < 0:
                return steps
            steps += 1
        return limit

    def _phases(self, num_steps: int) -> list[list[Request]]:
        """The buckets of the next `num_steps` steps, more than `_sliced`."""
        period, buckets = self.period, self.buckets
        first = self.clock % period
        if not self._sliced:
            return [buckets[(first + step) % period] for step in range(num_steps)]
        return (self._twice[first : first + period] * (num_steps // period + 1))[:num_steps]

    def steps_before_filling(self, key: Hashable, limit: int) -> int:
        """Steps, at most `limit`, before a member fills the block (of `period` tokens) that `key` names."""
        size, first = self.period, limit
        for request in self.members:
            if not request.content.shares_outputs:
                continue
            computed = request.num_computed_tokens
            for step in range(-(computed + 1) % size, first, size):
                filled = (computed + step + 1) // size
                try:
                    filling = request.content.keys(filled - 1, filled, size)[0]
                except ValueError:  # tokens that are not known yet: the engine runs one step at a time
                    return min(first, step)
                if filling == key:
                    first = step
                    break
        return first

    def growth_counts(self, num_steps: int) -> list[int]:
        """How many members outgrow what they hold, in each of the next `num_steps` steps."""
        period = self.period
        if not period:
            return [0] * num_steps
        first = self.clock % period
        phases = self._twice[first : first + num_steps] if num_steps <= self._sliced else self._phases(num_steps)
        return list(map(len, phases))

    def filling(self, block_size: int, step: int = 0) -> Sequence[Request]:
        """Members whose token of that step is the last of its block, in running order; needs period = block_size."""
        if self.period != block_size:
            raise ValueError(f"buckets have period {self.period}, blocks {block_size} tokens")
        return self.buckets[(self.clock + step + 1) % self.period]
