"""Blocks in host memory, for sequences that were swapped out (SOSP'23 section 4.5): a pool with a bound of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.request import Request


class HostBlocks:
    """`capacity` blocks with ids 0 to `capacity` - 1; what several sequences shared on the device they share here."""

    __slots__ = ("_free", "_tables", "_users", "capacity")

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"host_blocks must not be negative, got {capacity}")
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._tables: dict[Request, list[int]] = {}
        self._users: dict[int, int] = {}
        """Sequences a block, and one more while it is being read back."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses."""
        return len(self._free)

    def store(self, tables: dict[Request, list[int]]) -> list[tuple[int, int]]:
        """Takes a host block for each device block of these tables, once: (device, host) pairs. They must be free."""
        places: dict[int, int] = {}
        for request, table in tables.items():
            for block_id in table:
                if block_id not in places:
                    places[block_id] = self._free.pop()
            kept = self._tables[request] = [places[block_id] for block_id in table]
            for host_id in kept:
                self._users[host_id] = self._users.get(host_id, 0) + 1
        return list(places.items())

    def table(self, request: Request) -> list[int]:
        """Host blocks by logical block; KeyError if the request is not swapped out."""
        try:
            return self._tables[request]
        except KeyError:
            raise KeyError(f"request {request.request_id!r} holds no blocks in host memory") from None

    def check_absent(self, requests: Sequence[Request]) -> None:
        """ValueError for a request that is swapped out."""
        if self._tables:
            away = next((request for request in requests if request in self._tables), None)
            if away is not None:
                raise ValueError(f"request {away.request_id!r} is swapped out: it comes back by swap_in")

    def restore(self, requests: Sequence[Request], host_ids: Sequence[int]) -> None:
        """The sequences are back on the device; these blocks stay until `read` says that they were copied."""
        for host_id in set(host_ids):
            self._users[host_id] += 1
        for request in requests:
            self._drop(self._tables.pop(request))

    def read(self, host_ids: Sequence[int]) -> None:
        """These have been copied to the device."""
        self._drop(set(host_ids))

    def _drop(self, host_ids: Sequence[int] | set[int]) -> None:
        for host_id in host_ids:
            self._users[host_id] -= 1
            if not self._users[host_id]:
                del self._users[host_id]
                self._free.append(host_id)

    def check(self) -> None:
        """Free and used blocks are all there are; AssertionError with both sides."""
        assert len(self._free) == len(set(self._free)), f"a host block is free twice: {sorted(self._free)}"
        both = self._users.keys() & set(self._free)
        assert not both, f"host blocks are free and in use: {sorted(both)}"
        total = len(self._free) + len(self._users)
        assert total == self.capacity, f"{total} host blocks are accounted for, there are {self.capacity}"
        held: dict[int, int] = {}
        for table in self._tables.values():
            for host_id in table:
                held[host_id] = held.get(host_id, 0) + 1
        short = {host_id for host_id, count in held.items() if self._users.get(host_id, 0) < count}
        assert not short, f"host blocks with fewer users than tables: {sorted(short)}"
