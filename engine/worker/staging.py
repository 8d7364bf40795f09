"""From the host to the device in one copy: arrays packed into a pinned buffer, and the record of the batch's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.shared_prefix import GROUP_FIELDS
from engine.worker.ran import SAMPLING_DTYPES

ALIGNMENT = 16
"""Bytes: what vector loads and TMA want."""
MAX_GROUPS = 16
"""Groups of rows with a shared prefix that a captured graph has room for; of more, those that save most are taken."""
Array = npt.NDArray[Any]
_TORCH = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


def _up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Mirror:
    """Bytes on the host, pinned where the device is another, and as many on the device."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        elsewhere = device.type == "cuda"
        self.host = torch.zeros(_up(num_bytes), dtype=torch.uint8, pin_memory=elsewhere)
        self.device = torch.zeros_like(self.host, device=device, pin_memory=False) if elsewhere else self.host

    def upload(self, num_bytes: int) -> None:
        """Sends the first bytes; asynchronous: the host side must stay as it is until the copy is done."""
        if self.device is not self.host:
            self.device[:num_bytes].copy_(self.host[:num_bytes], non_blocking=True)

    def views(self, start: int, count: int, dtype: np.dtype[Any]) -> tuple[Array, torch.Tensor]:
        """`count` elements from byte `start` on: of the host as an array, of the device as a tensor."""
        stop = start + count * dtype.itemsize
        return self.host[start:stop].numpy().view(dtype), self.device[start:stop].view(_TORCH[dtype])


class Places(NamedTuple):
    """Where arrays lie in a `StagingBuffer`, on both sides; laid out once for all steps of the same sizes."""

    host: list[Array]
    """To be written before they are sent."""
    device: list[torch.Tensor]
    num_bytes: int


class StagingBuffer:
    """A step's inputs, packed so that they travel together."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._bytes = Mirror(num_bytes, device)

    def places(self, sizes: Sequence[tuple[int, np.dtype[Any]]]) -> Places:
        """For arrays of so many elements (int32, int64 or float32), one behind the other from the buffer's start on:
        any other places overlap them. ValueError where they do not fit."""
        stop = sum(_up(count * dtype.itemsize) for count, dtype in sizes)
        if stop > len(self._bytes.host):
            raise ValueError(f"{stop} bytes of step inputs do not fit a staging buffer of {len(self._bytes.host)}")
        found, start = Places([], [], stop), 0
        for count, dtype in sizes:
            here, there = self._bytes.views(start, count, dtype)
            found.host.append(here)
            found.device.append(there)
            start += _up(count * dtype.itemsize)
        return found

    def send(self, places: Places) -> None:
        """What was written, to the device; the host side must stay as it is until the copy is done."""
        self._bytes.upload(places.num_bytes)


class RowState:
    """What the device knows of each row beyond its block table: a record on both sides, sent as a whole.

    Decode steps go on from it by themselves; the host sends it again only when rows have changed.
    """

    FIELDS = (
        ("num_rows", np.int32),
        ("last_tokens", np.int32),
        ("seq_lens", np.int32),
        ("members", np.int32),
        ("groups", np.int32),
        *SAMPLING_DTYPES.items(),
    )

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        counts = [MAX_GROUPS * GROUP_FIELDS if name == "groups" else max_num_reqs for name, _ in self.FIELDS]
        sizes = [_up(count * np.dtype(kind).itemsize) for count, (_, kind) in zip(counts, self.FIELDS, strict=True)]
        self._bytes = Mirror(sum(sizes), device)
        self.cpu: dict[str, Array] = {}
        """By field, [max_num_reqs]; `num_rows` in its first entry, `members` and `groups` as in `SharedPrefixes`."""
        self.gpu: dict[str, torch.Tensor] = {}
        start = 0
        for (name, dtype), count, size in zip(self.FIELDS, counts, sizes, strict=True):
            self.cpu[name], self.gpu[name] = self._bytes.views(start, count, np.dtype(dtype))
            start += size
        self.cpu["top_p"][:] = 1.0
        self.cpu["members"][:] = np.arange(max_num_reqs)
        self.upload()

    def upload(self) -> None:
        """Sends all fields; the caller waits for the step before it changes them again."""
        self._bytes.upload(len(self._bytes.host))

    @property
    def packed(self) -> npt.NDArray[np.uint8]:
        """All fields of the host, for another rank: a view, which is copied where it is sent."""
        return self._bytes.host.numpy()

    def take(self, packed: npt.NDArray[np.uint8]) -> None:
        """All fields of the host, as another rank has packed them; not sent to the device."""
        self.packed[:] = packed
