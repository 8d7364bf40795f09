"""The allocator contract as a check that runs: a seeded random actor over a plain Python list as KV memory.

The actor behaves like a scheduler (chunks, prefix hits, decode runs, preemption, wrong calls; forks, groups and swaps
where the allocator has them) and after each action compares what the allocator says with what it did. One rule carries
most of it: every live request must read back its own tokens through its block table. Double allocation, wrong reference
counts, missing copies and wrong slots all break it, whatever the allocator looks like inside.
"""

from __future__ import annotations

from collections import deque
from random import Random

from engine.core.observer import Factory
from engine.core.registry import PoolConfig
from engine.core.shadow import ContractViolation, ShadowMemory, check_state, snapshot
from engine.core.sharing_actor import SharingActor
from engine.core.trials import random_config

__all__ = ["ContractViolation", "ShadowMemory", "check_state", "run_contract", "snapshot"]


def run_contract(make: Factory, *, seed: int, num_actions: int = 60, config: PoolConfig | None = None) -> int:
    """Drives one allocator through `num_actions` random actions; ContractViolation at the first broken rule.

    Without `config` the seed also draws the pool. Same arguments, same actions. How many requests were admitted."""
    rng = Random(seed)
    config = config or random_config(rng)
    history: deque[str] = deque(maxlen=12)
    try:
        actor = SharingActor(make, config, rng, history)
        for _ in range(num_actions):
            actor.act()
        actor.drain()
        return actor.num_admitted
    except Exception as error:
        tail = "\n  ".join(history)
        raise ContractViolation(f"{type(error).__name__}: {error}\nseed={seed}, {config}\n  {tail}") from error
