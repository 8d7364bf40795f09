"""A random actor that says after each action all that can be seen of a paged pool, and asks nothing that would make the
pool do what it puts off: its own checks, and whatever else has to look, look at copies."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

from engine.core.block_pool import BlockPool
from engine.core.commits import Commits
from engine.core.paged import PagedAllocator
from engine.core.registry import PoolConfig
from engine.core.request import Request, Status
from engine.core.sharing_actor import SharingActor
from engine.core.trials import random_config

_KEY = re.compile(r"b'.*'|b\".*\"|\d{9,}")
"""Content keys in the text of an action: ids of chains are drawn anew in every life."""


@contextmanager
def at_once() -> Iterator[None]:
    """Nothing is put off: blocks are findable as soon as they are full, and forgotten as soon as they are taken."""

    def now(self: Commits, request: Request, num_full: int) -> None:
        self.now(request, request.blocks, num_full)  # type: ignore[arg-type]

    with mock.patch.object(Commits, "later", now), mock.patch.object(BlockPool, "_give_up", BlockPool._forget):
        yield


def copies_by_block(allocator: Any) -> list[Any]:
    """Of each block all that hold the same content, in the order in which they would be found; None: not findable."""
    allocator.catch_up()
    pool = allocator.pool
    return [None if key is None else _copies(pool._map[key]) for key in pool._keys]


def _copies(entry: int | dict[int, None]) -> list[int]:
    return [entry] if isinstance(entry, int) else list(entry)


class LateActor(SharingActor):
    """Requests that finish for good, that come back knowing of it, caches that are reset; `pace` draws from a source of
    its own when somebody catches up in between, which must not matter."""

    def __init__(self, config: PoolConfig, seed: int, pace: Random | None) -> None:
        rng = Random(seed)
        back, mark = rng.random() < 0.3, rng.choice((0.0, 0.0, 0.2))
        config = replace(config, one_free_each=rng.random() < 0.15)

        def make(config: PoolConfig) -> PagedAllocator:
            return PagedAllocator(
                config.capacity_blocks,
                config.block_size,
                max_model_len=config.max_model_len,
                watermark=mark,
                freed_to="back" if back else "front",
                one_free_each=config.one_free_each,
                host_blocks=config.host_blocks,
            )

        self.pace, self.seen = pace, list[Any]()
        super().__init__(make, config, rng, deque(maxlen=12))
        self.acts[self.reset] = rng.choice((0, 1, 3))
        self.acts[self.look] = rng.choice((1, 6))

    def act(self) -> None:
        super().act()
        if self.pace is not None and self.pace.random() < 0.2:
            self.pool.catch_up()
        held = (*self.running, *self.joining, *self.waiting)
        hits = [deepcopy((self.allocator, request)) for request in self.waiting]
        self.seen.append(
            (
                _KEY.sub("key", self.history[-1] if self.history else ""),
                self.snapshot(),
                self.pool.pool.ref_cnts(),
                self.pool.pool.cached_free(),
                copies_by_block(deepcopy(self.allocator)),
                [_told(allocator.lookup(request)) for allocator, request in hits],
                [(request.request_id, request.num_computed_tokens) for request in held],
            )
        )

    def look(self) -> None:
        """Somebody who waits, or a stranger, looks."""
        request = self.rng.choice(self.waiting) if self.waiting and self.rng.random() < 0.5 else self.new_request()
        self.note(f"lookup {request}", _told(self.lookup(request)))

    def reset(self) -> None:
        if self.rng.random() < 0.5:
            while self.running:
                self.finish()
            self.settle_all()
        self.note("reset", self.pool.reset_prefix_cache())

    def finish(self) -> None:
        if self.running:
            request = self.rng.choice(self.running)
            if self.rng.random() < 0.7:
                request.status = Status.FINISHED
            self.release(request)

    def left(self, request: Request) -> None:
        super().left(request)
        request.num_preemptions += 1


def _told(hit: Any) -> tuple[int, list[int], bool]:
    return hit.num_tokens, list(hit.block_ids), hit.missing is None


def life(seed: int, num_actions: int = 60, pace: Random | None = None) -> list[Any]:
    """All that was to be seen, action by action."""
    check = BlockPool.check
    with mock.patch.object(BlockPool, "check", lambda pool: check(deepcopy(pool))):
        actor = LateActor(random_config(Random(f"pool {seed}")), seed, pace)
        for _ in range(num_actions):
            actor.act()
    return actor.seen
