"""The ranks of one model as a group of torch.distributed: NCCL between GPUs, gloo between CPU processes.

The group belongs to its engine and is not the process's default one: several engines may live in a process. Every
collective is put on the current stream, so that a CUDA graph holds it like any other command. A process that captured
some must drop its graphs before the group is shut down, or NCCL waits for them for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    Backend,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    TCPStore,
    Work,
)

from engine.model.share import Share

TIMEOUT = timedelta(minutes=3)
"""Longest that a collective may wait for the other ranks. One whose process died is noticed at once, otherwise."""
HOST = "127.0.0.1"


def open_store(size: int) -> TCPStore:
    """Where the ranks find each other, on a free port of this machine; made by rank 0."""
    return TCPStore(HOST, 0, size, is_master=True, wait_for_workers=False, timeout=TIMEOUT)


def join_store(port: int, size: int) -> TCPStore:
    """Rank 0's store, from another process."""
    return TCPStore(HOST, port, size, is_master=False, timeout=TIMEOUT)


class RankGroup:
    """`engine.model.collectives.Collectives` over processes; all of them make it at the same time."""

    def __init__(self, share: Share, store: Store, device: torch.device) -> None:
        self.rank, self.size = share.rank, share.size
        self.device = device
        store = PrefixStore("ranks", store)
        self._group = ProcessGroup(store, share.rank, share.size)
        self._backend = _backend(share, store, device)
        kinds = ProcessGroup.BackendType
        kind = kinds.NCCL if device.type == "cuda" else kinds.GLOO
        self._group._set_default_backend(kind)
        self._backend._set_sequence_number_for_group()
        self._group._register_backend(torch.device(device.type), kind, self._backend)
        self.muted = False
        """Whether sums and gathers are left out: the results are wrong, and the time that is missing is theirs."""

    def all_reduce(self, x: torch.Tensor) -> None:
        """Replaces x by the sum over all ranks."""
        if not self.muted:
            options = AllreduceOptions()
            options.asyncOp = False
            _done(self._group.allreduce([x], options))

    def all_gather(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Every rank's x [...] into out [size, ...]."""
        if not self.muted:
            options = AllgatherOptions()
            options.asyncOp = False
            _done(self._group._allgather_base(out.flatten(0, 1), x, options))

    def broadcast(self, x: torch.Tensor) -> None:
        """Replaces x by that of rank 0."""
        options = BroadcastOptions()
        options.rootRank, options.asyncOp = 0, False
        _done(self._group.broadcast([x], options))

    def shutdown(self) -> None:
        """Ends the group, on all ranks together; graphs that hold its collectives must be gone."""
        if self.device.type == "cuda":
            self._backend.shutdown()

    def abort(self) -> None:
        """Ends what waits for ranks that are gone; of one rank alone, from any thread."""
        if self.device.type == "cuda":
            self._backend.abort()


def _backend(share: Share, store: Store, device: torch.device) -> Backend:
    if device.type != "cuda":
        return ProcessGroupGloo(store, share.rank, share.size, timeout=TIMEOUT)
    from torch._C._distributed_c10d import ProcessGroupNCCL  # there only where torch was built with it

    options = ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    options.global_ranks_in_group = list(range(share.size))
    return ProcessGroupNCCL(store, share.rank, share.size, options)


def _done(work: Work | None) -> None:
    """On a CPU it has run then; on a device it is on the current stream. What was not asynchronous may give no work."""
    if work is not None:
        work.wait()


def devices_missing(size: int) -> str:
    """Why so many ranks cannot each have a CUDA device; empty if they can."""
    count = torch.cuda.device_count()
    return f"torch sees {count} CUDA device{'s' * (count != 1)}, and {size} ranks need one each" if count < size else ""


def spread(limits: int | Sequence[int] | None, rank: int) -> int | None:
    """A limit for all ranks, or one each."""
    return limits if limits is None or isinstance(limits, int) else limits[rank]
