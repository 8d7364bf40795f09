"""Routers: which replica of a fleet a request goes to.

Three, by the names and rules of the routers in front of vLLM and SGLang (vLLM's router and SGLang's gateway call the
third `cache_aware` and have the same three thresholds; production-stack calls it `prefixaware`, or `kvaware` where it
asks the engines). Ours asks the replicas: it sees the state at the instant of the arrival, without delay, and what is
really cached instead of a record of past requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

if TYPE_CHECKING:
    from engine.core.request import Request

Load = Literal["requests", "kv"]
RouterName = Literal["round-robin", "least-loaded", "prefix-aware"]


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """How many replicas there are, and who sends requests to them."""

    num_replicas: int = 1
    router: RouterName = "round-robin"
    load: Load = "requests"
    """What `least-loaded` compares: requests queued and running, or blocks in use."""
    cache_threshold: float = 0.3
    """Least share of a prompt that a replica must hold for `prefix-aware` to follow it."""
    balance_abs_threshold: int = 64
    """`prefix-aware` balances where the fullest replica has more requests than this over the emptiest, and ..."""
    balance_rel_threshold: float = 1.5
    """... more than so many times as many."""

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ValueError(f"a fleet needs at least one replica, got num_replicas={self.num_replicas}")
        if self.router not in get_args(RouterName):
            raise ValueError(f"router {self.router!r} is not known: use {', '.join(get_args(RouterName))}")


SINGLE: Final = FleetSpec()
"""One replica, and nothing to decide."""


class Seen(Protocol):
    """What a router sees of a replica at the instant in which a request arrives."""

    num_sent: int
    """Requests sent there so far."""

    @property
    def num_inside(self) -> int:
        """Requests queued and running."""
        ...

    @property
    def num_blocks_used(self) -> int:
        """Blocks that running requests hold; cached ones that nobody holds are free."""
        ...

    def num_held(self, request: Request) -> int:
        """Tokens of the request's prompt that are cached there, from its beginning on."""
        ...


class Router(Protocol):
    """Decides for one request after the other, in order of arrival."""

    reads_memory: bool
    """Whether it looks at blocks, so that no replica may be ahead of the arrival."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """Index of the replica that the request goes to."""
        ...


class RoundRobin:
    """The k-th request that reaches the fleet goes to replica k mod N. Requests that no replica could ever serve are
    turned away before they count."""

    reads_memory = False

    def __init__(self, spec: FleetSpec) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """O(1)."""
        index = self._next
        self._next = (index + 1) % len(replicas)
        return index


def _least(replicas: Sequence[Seen], loads: Sequence[int], among: Sequence[int] | None = None) -> int:
    """The least load; of equal ones the replica that was sent fewer requests so far, then the first."""
    indices = range(len(replicas)) if among is None else among
    return min(indices, key=lambda index: (loads[index], replicas[index].num_sent))


class LeastLoaded:
    """The replica with the fewest requests queued and running, or with the fewest blocks in use."""

    def __init__(self, spec: FleetSpec) -> None:
        self._by_kv = spec.load == "kv"
        self.reads_memory = self._by_kv

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """O(N)."""
        loads = [r.num_blocks_used if self._by_kv else r.num_inside for r in replicas]
        return _least(replicas, loads)


class PrefixAware:
    """The replica that holds the longest prefix of the prompt, unless the fleet is out of balance or it holds little.

    1. Out of balance: max - min > `balance_abs_threshold` and max > `balance_rel_threshold` x min, of requests queued
       and running: the least loaded.
    2. Otherwise the replica whose cache holds most tokens of the prompt, if they are more than `cache_threshold` of it;
       of equal ones the less loaded.
    3. Otherwise the least loaded (SGLang: the one with the smallest tree).
    """

    reads_memory = True

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """N lookups."""
        spec, loads = self._spec, [replica.num_inside for replica in replicas]
        low, high = min(loads), max(loads)
        if high - low > spec.balance_abs_threshold and high > spec.balance_rel_threshold * low:
            return _least(replicas, loads)
        held = [replica.num_held(request) for replica in replicas]
        most = max(held)
        if most > spec.cache_threshold * request.num_prompt_tokens:
            return _least(replicas, loads, [index for index, tokens in enumerate(held) if tokens == most])
        return _least(replicas, loads)


ROUTERS: Final[dict[str, Callable[[FleetSpec], Router]]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}
"""By the names in configurations, tables and legends."""
STATIC: Final = ("round-robin",)
"""Routers that decide without a look at the replicas: the trace can be split beforehand, unless turns wait for others'
ends."""


def make_router(spec: FleetSpec) -> Router:
    """A fresh one."""
    return ROUTERS[spec.router](spec)
