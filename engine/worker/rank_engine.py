"""The engine on one rank of several, and rank 0's, which leads the others.

Every rank measures how many KV blocks it has room for, and holds as many; blocks are handed out up to the least of
these numbers, so that a block id is good on all ranks. What a rank has beyond it stays idle.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import hashlib
import os
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from engine.model.load import load_model
from engine.model.share import Share
from engine.worker.budget import DEFAULT_UTILIZATION, EngineError, KVBudget, most_on_cpu
from engine.worker.engine import DeviceUnavailable, Engine
from engine.worker.peers import GRACE_S, Peers
from engine.worker.pool_shape import PoolShape
from engine.worker.rank_group import RankGroup, devices_missing, join_store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from engine.worker.engine_config import EngineConfig
    from engine.worker.executor import ModelExecutor
    from engine.worker.kv_memory import Kernel


class Survey(NamedTuple):
    """What a rank's device holds, for those who compare ranks."""

    block_table: str
    """Digest of the whole table."""
    num_kv_blocks: int
    """Of the KV tensors, the null block included."""
    idle_blocks: int
    """Of these, blocks that no table can name."""
    idle_untouched: bool
    """Whether nothing was ever written to them."""


class RankEngine(Engine):
    """An engine with a share of the model; blocks of its KV tensors are counted by its own budget."""

    def __init__(self, config: EngineConfig, share: Share) -> None:
        super().__init__(config, share)
        self._own_blocks: dict[int, int] = {}
        """Blocks that fit here, by block size, from a budget until the executor that it was made for."""

    def join(self, store: Store | int) -> None:
        """Enters the group, when all others do; by rank 0's store or its port."""
        size = self.share.size
        found = join_store(store, size) if isinstance(store, int) else store
        self.ranks = RankGroup(self.share, found, self.device)

    def budget(self, block_size: int, *, utilization: float = DEFAULT_UTILIZATION) -> KVBudget:
        """This rank's; on a device all ranks run the largest batch for it together."""
        budget = super().budget(block_size, utilization=utilization)
        most = most_on_cpu(self.limits, block_size, self.block_bytes(block_size))
        own = budget.num_blocks if self.device.type == "cuda" else min(budget.num_blocks, most + 1)
        self._own_blocks[block_size] = own
        return budget

    def _kv_blocks(self, allocator: Any) -> int:
        own: int = self._own_blocks.get(allocator.block_size, allocator.num_blocks)
        if own < allocator.num_blocks:
            raise EngineError(
                f"{allocator.num_blocks:,} blocks are handed out, the null block included, and rank {self.share.rank} "
                f"has {own:,}"
            )
        return own

    def executor(self, allocator: Any, **options: Any) -> ModelExecutor:
        """As `Engine.executor`; the budget, if there was one, is spent by it."""
        made = super().executor(allocator, **options)
        self._handed_out = int(allocator.num_blocks)
        self._own_blocks.clear()
        return made

    def mute(self, muted: bool) -> None:
        """Leaves sums and gathers out of what is issued from now on, or puts them in again: to measure their time."""
        if isinstance(self.ranks, RankGroup):
            self.ranks.muted = muted

    def survey(self) -> Survey:
        """Waits for the device."""
        executor = self._kept[0]
        table = executor.table.gpu.cpu().numpy().tobytes()
        axis = executor.kv.layout.block_axis
        own = executor.kv.caches[0].shape[axis]
        idle = own - self._handed_out
        touched = any(bool(cache.narrow(axis, self._handed_out, idle).any()) for cache in executor.kv.caches)
        return Survey(hashlib.sha256(table).hexdigest(), own, idle, not touched)

    def close(self) -> None:
        """Graphs first: the group waits for them."""
        super().close()
        if isinstance(self.ranks, RankGroup):  # else it has not joined
            self.ranks.shutdown()


class _Divides(Exception):  # noqa: N818
    """Raised to read no further than needed."""


def check_divides(model: str, size: int) -> None:
    """ValueError for a model that so many ranks cannot divide, before any of them is started."""

    def far_enough(num_bytes: int) -> None:
        raise _Divides

    with contextlib.suppress(_Divides):
        load_model(model, seed=0, room=far_enough, share=Share(0, size))


class LeadingEngine(RankEngine):
    """Rank 0: the engine that scheduler and sampling see; what it does, the other ranks do."""

    def __init__(self, config: EngineConfig) -> None:
        """Starts the other ranks and loads this one's share beside them. Errors of any rank are raised here."""
        config.check()
        size = config.tensor_parallel_size
        if config.device == "cuda":
            if missing := devices_missing(size):
                raise DeviceUnavailable(f"tensor_parallel_size={size}: {missing}")
            torch.cuda.set_device(0)
        check_divides(config.model, size)
        self.peers = Peers(config)
        try:
            super().__init__(config, Share(0, size))
            self.peers.answers()
            self.peers.tell("join")
            with self.peers.together():
                self.join(self.peers.store)
        except BaseException:
            self.peers.close(at_once=True)
            raise
        assert isinstance(self.ranks, RankGroup)
        self.peers.group = self.ranks
        self._end = weakref.finalize(self, _end, self._kept, self.peers)
        self._end.atexit = False
        self._at_exit = partial(_at_exit, self._end, self.peers)
        atexit.register(self._at_exit)  # before multiprocessing's own, which would end the ranks the hard way

    def budget(self, block_size: int, *, utilization: float = DEFAULT_UTILIZATION) -> KVBudget:
        """That of the rank with the fewest blocks."""
        self.peers.tell("budget", block_size, utilization)
        own: KVBudget | EngineError
        with self.peers.together():
            try:
                own = super().budget(block_size, utilization=utilization)
            except EngineError as error:  # of the last thing done: all ranks have run the batch
                own = error
        others: list[KVBudget] = self.peers.answers()
        if isinstance(own, EngineError):
            raise own
        return min([own, *others], key=lambda one: one.num_blocks)

    def executor(self, allocator: Any, *, kernel: Kernel = "paged", warm_up: bool = True, **options: Any) -> Any:
        """As `Engine.executor`, on all ranks; EngineError where one has no room."""
        self.check_pool(allocator, kernel)
        shape = PoolShape.of(allocator)
        self.peers.ask("check_pool", shape, kernel)
        self.peers.tell("executor", shape, kernel, warm_up)
        with self.peers.together():
            return super().executor(allocator, kernel=kernel, warm_up=warm_up, lead=self.peers, **options)

    def release(self) -> None:
        """On all ranks."""
        self.peers.ask("release")
        super().release()

    def mute(self, muted: bool) -> None:
        """On all ranks."""
        self.peers.ask("mute", muted)
        super().mute(muted)

    def surveys(self) -> list[Survey]:
        """Of each rank, in order."""
        return [self.survey(), *self.peers.ask("survey")]

    def close(self) -> None:
        """Ends the other ranks, and the group."""
        self._end()
        if not self.peers.broken:
            atexit.unregister(self._at_exit)


def _end(kept: list[ModelExecutor], peers: Peers) -> None:
    """Graphs first: the group waits for them."""
    for executor in kept:
        executor.close()
    kept.clear()
    peers.close()


def _at_exit(end: Callable[[], object], peers: Peers) -> None:
    """Where a rank died, a collective may still wait on the device when Python ends: the process ends all the same."""
    end()
    if peers.broken and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        faulthandler.dump_traceback_later(GRACE_S, exit=True, file=Path(os.devnull).open("w"))  # noqa: SIM115


def open_engine(config: EngineConfig) -> Engine:
    """The engine of a configuration: alone, or the first of several ranks."""
    config.check()
    return Engine(config) if config.tensor_parallel_size == 1 else LeadingEngine(config)
