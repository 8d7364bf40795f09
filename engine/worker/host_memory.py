"""K and V of sequences that were swapped out: host memory, allocated once, and pinned where the device is another.

A host block holds all layers of a block side by side. On the way out each layer's blocks are gathered on the device, so
that one copy moves as many blocks as have adjacent places in host memory; on the way back the same in reverse. Commands
are issued in stream order and nothing waits: a device block that was swapped out may be written by the next command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from engine.attention.kv_scales import as_bytes

STAGING_BYTES = 64 << 20
"""Of the device, for blocks on their way; more blocks go in several rounds."""
Pairs = Sequence[tuple[int, int]]


class HostMemory:
    """Blocks 0 to `num_blocks` - 1 of host memory, for caches whose blocks are counted by `block_axis`."""

    def __init__(self, caches: Sequence[torch.Tensor], block_axis: int, num_blocks: int) -> None:
        caches = [as_bytes(cache) for cache in caches]
        first = caches[0]
        on_device = first.device.type == "cuda"
        self._caches = caches
        self._axis = block_axis
        shape = (len(caches), *first.select(block_axis, 0).shape)
        self.blocks = torch.empty((num_blocks, *shape), dtype=first.dtype, pin_memory=on_device)
        """[host blocks, layers, ...]"""
        at_once = max(1, min(num_blocks, STAGING_BYTES // (self.blocks[0].nbytes if num_blocks else 1)))
        self._staging = torch.empty((at_once, *shape), dtype=first.dtype, device=first.device)

    def release(self) -> None:
        """Gives the memory back."""
        self._caches.clear()
        self.blocks = self._staging = self.blocks.new_empty(0)

    def store(self, pairs: Pairs) -> None:
        """Copies blocks (device, host) out; each host block is written once."""
        for part in self._rounds(sorted(pairs, key=lambda pair: pair[1])):
            index, staging = self._index([device_id for device_id, _ in part]), self._staging[: len(part)]
            for layer, cache in enumerate(self._caches):
                staging[:, layer].copy_(cache.index_select(self._axis, index).movedim(self._axis, 0))
            for start, stop, host_id in runs([host_id for _, host_id in part]):
                self.blocks[host_id : host_id + stop - start].copy_(staging[start:stop], non_blocking=True)

    def load(self, pairs: Pairs) -> None:
        """Copies blocks (host, device) back; a host block may go to several places, each device block is written
        once."""
        for part in self._rounds(sorted(pairs)):
            staging = self._staging[: len(part)]
            for start, stop, host_id in runs([host_id for host_id, _ in part]):
                staging[start:stop].copy_(self.blocks[host_id : host_id + stop - start], non_blocking=True)
            index = self._index([device_id for _, device_id in part])
            for layer, cache in enumerate(self._caches):
                cache.index_copy_(self._axis, index, staging[:, layer].movedim(0, self._axis))

    def _rounds(self, pairs: Pairs) -> Iterator[Pairs]:
        most = len(self._staging)
        return (pairs[start : start + most] for start in range(0, len(pairs), most))

    def _index(self, ids: Sequence[int]) -> torch.Tensor:
        return on(self._staging.device, ids)


def on(device: torch.device, ids: Sequence[int] | Pairs) -> torch.Tensor:
    """Int64s on the device, without waiting for what it is doing."""
    made = torch.tensor(ids, dtype=torch.int64, pin_memory=device.type == "cuda")
    return made.to(device, non_blocking=True)


def runs(ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, stop, first id) of each stretch of consecutive ids, by place in the list."""
    found: list[tuple[int, int, int]] = []
    for place, block_id in enumerate(ids):
        if found and block_id == found[-1][2] + place - found[-1][0]:
            found[-1] = (found[-1][0], place + 1, found[-1][2])
        else:
            found.append((place, place + 1, block_id))
    return found
