"""Mixes of clients: classes with their own rate, burstiness and lengths, as production traffic is made of.

After ServeGen (NSDI'26): a service's arrivals are the sum of many clients', a few of which send most of it, each with
a rate, a coefficient of variation of its gaps and a distribution of lengths of its own. Here these are stated by the
user, not fitted to anything.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from workloads import arrivals
from workloads.columns import Trace
from workloads.synthetic import draw_lengths, pieces_of

Int64s = NDArray[np.int64]

CLIENT_ARRIVALS: Final = ("steady", "on-off:ON_S,OFF_S", "piecewise:WEIGHT@S,...")
LENGTHS_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class ClientClass:
    """Clients that are alike but for their rate. Raises ValueError for what means nothing."""

    name: str
    request_rate: float
    """Per second, of all its clients together, on average."""
    lengths: str = "sharegpt"
    """A recipe of `workloads.synthetic.LENGTHS`."""
    arrivals: str = "steady"
    """One of CLIENT_ARRIVALS; weights of piecewise are scaled to the client's rate."""
    cv: float = 1.0
    """Of the gaps while it sends: 1 is Poisson, more is burstier."""
    num_clients: int = 1
    rate_skew: float = 0.0
    """Zipf: client k of the class sends in proportion to 1 / k^skew; 0: all alike."""

    def __post_init__(self) -> None:
        if not 0 < self.request_rate < float("inf"):
            raise ValueError(f"client {self.name!r}: need a positive finite request_rate, got {self.request_rate}")
        if self.num_clients < 1 or not 0 <= self.rate_skew < float("inf"):
            got = f"{self.num_clients} and {self.rate_skew}"
            raise ValueError(f"client {self.name!r}: need num_clients >= 1 and rate_skew >= 0, got {got}")
        try:
            self.stamps(0, 1, 0)
            draw_lengths(self.lengths, 1, 0)
        except ValueError as error:
            raise ValueError(f"client {self.name!r}: {error}") from None

    def rate(self, client: int) -> float:
        """Requests per second of one client; the class's sum to `request_rate`."""
        weights = 1.0 / np.arange(1, self.num_clients + 1) ** self.rate_skew
        return float(self.request_rate * weights[client] / weights.sum())

    def stamps(self, client: int, num_requests: int, seed: int) -> Int64s:
        """Nanoseconds of one client's first requests. Time 0 is nobody's arrival, or all would begin together."""
        kind, _, text = self.arrivals.partition(":")
        rate, own_seed = self.rate(client), self._seed(seed, client, 0)
        if kind == "steady" and not text:
            return arrivals.piecewise([(rate, 1.0)], num_requests, own_seed, self.cv)
        if kind == "on-off":
            on_s, off_s = (float(word) for word in text.split(","))
            return arrivals.on_off(rate, on_s, off_s, num_requests, own_seed, self.cv)
        if kind == "piecewise":
            pieces = pieces_of(text)
            mean = sum(weight * seconds for weight, seconds in pieces) / sum(seconds for _, seconds in pieces)
            scaled = [(weight * rate / mean if mean else 0.0, seconds) for weight, seconds in pieces]
            return arrivals.piecewise(scaled, num_requests, own_seed, self.cv)
        raise ValueError(f"arrivals: need one of {', '.join(CLIENT_ARRIVALS)}, got {self.arrivals!r}")

    def pairs(self, client: int, num_requests: int, seed: int) -> tuple[Int64s, Int64s]:
        """(prompt, output) tokens of one client's first requests, in pieces: a longer list begins with a shorter."""
        starts = range(0, max(num_requests, 1), LENGTHS_AT_ONCE)
        drawn = [
            draw_lengths(self.lengths, LENGTHS_AT_ONCE, self._seed(seed, client, 1 + i)) for i in range(len(starts))
        ]
        prompt, output = (np.concatenate(column)[:num_requests] for column in zip(*drawn, strict=True))
        return prompt, output

    def _seed(self, seed: int, client: int, stream: int) -> int:
        # By name, not by place: a class put in front changes nobody's requests.
        key = [seed, zlib.crc32(self.name.encode()), client, stream]
        return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def client_mix(classes: Sequence[ClientClass], num_requests: int, seed: int = 0, *, name: str = "mix") -> Trace:
    """The first `num_requests` arrivals of all clients together, re-based to 0; ties go to the client named first.

    Every client draws from streams of its own: another class in the mix changes nobody's requests, only where the
    trace ends. Raises ValueError without classes, or where two have one name.
    """
    names = [one.name for one in classes]
    if not classes or num_requests < 1:
        raise ValueError(f"client_mix: need a class of clients and at least 1 request, got {num_requests}")
    if len(set(names)) < len(names):
        raise ValueError(f"client_mix: two classes have one name: {', '.join(sorted(names))}")
    clients = [(one, client) for one in classes for client in range(one.num_clients)]
    streams = _streams(clients, num_requests, seed)
    stamps = np.concatenate(streams)
    order = np.argsort(stamps, kind="stable")[:num_requests]
    pairs = [one.pairs(client, len(at), seed) for (one, client), at in zip(clients, streams, strict=True)]
    prompt, output = (np.concatenate(column)[order] for column in zip(*pairs, strict=True))
    source = {"format": "synthetic", "clients": "; ".join(map(str, classes)), "seed": str(seed)}
    return Trace.build(stamps[order] - stamps[order[0]], prompt, output, name=name, source=source)


def _streams(clients: Sequence[tuple[ClientClass, int]], num_requests: int, seed: int) -> list[Int64s]:
    """Stamps of each client, far enough that the first `num_requests` of all are among them."""
    time_s = num_requests / sum(one.rate(client) for one, client in clients)
    while True:
        streams = [one.stamps(client, 1 + int(one.rate(client) * time_s), seed) for one, client in clients]
        seen = np.sort(np.concatenate(streams))
        # Beyond the end of the shortest stream that client's next request is not known.
        known = int((seen <= min(int(at[-1]) for at in streams)).sum())
        if known >= num_requests:
            return streams
        time_s *= 1.5
