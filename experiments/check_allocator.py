"""The verb `check-allocator`: the allocator contract, run against anybody's allocator."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import partial

from experiments import exits
from experiments.console import say, say_json
from experiments.exits import UsageError
from experiments.resolve import see_own_modules

SHAPES = ((1, 1), (5, 3), (12, 4), (16, 16), (27, 2), (40, 8))
"""(blocks, block size) of the pools, besides one drawn by each seed: single blocks, odd ones, powers of two."""


def check_verb(name: str, seeds: int, actions: int, *, as_json: bool) -> int:
    """0, or 4 with the broken rule and the actions that led to it."""
    from engine.core.contract import ContractViolation, run_contract
    from engine.core.registry import PoolConfig, load_allocator, make_allocator

    if seeds < 1 or actions < 1:
        raise UsageError(f"need at least one seed and one action, got seeds={seeds}, actions={actions}")
    try:
        if ":" in name:
            see_own_modules()
            make = load_allocator(name)
        else:
            make_allocator(name, PoolConfig(16, 4, 32))
            make = partial(make_allocator, name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    pools = [None, *(PoolConfig(blocks, size, max_model_len=max(2, blocks * size)) for blocks, size in SHAPES)]
    pools += [PoolConfig(24, 4, max_model_len=64, enable_caching=False)]
    num_runs = num_admitted = 0
    for pool in pools:
        for seed in range(seeds):
            try:
                with redirect_stdout(sys.stderr):  # an allocator may print, but stdout is for results
                    num_admitted += run_contract(make, seed=seed, num_actions=actions, config=pool)
            except (ContractViolation, SystemExit) as violation:
                return _broken(name, num_runs, str(violation), as_json=as_json)
            num_runs += 1
    if not num_admitted:
        return _broken(name, num_runs, "it admitted not one request: nothing was put to the test", as_json=as_json)
    if as_json:
        say_json({"allocator": name, "holds": True, "num_runs": num_runs, "num_actions": num_runs * actions})
    else:
        say(
            f"{name} keeps the allocator contract: {num_runs} runs of {actions} actions over {len(pools)} kinds of pool"
        )
    return exits.OK


def _broken(name: str, num_runs: int, message: str, *, as_json: bool) -> int:
    if as_json:
        say_json({"allocator": name, "holds": False, "num_runs": num_runs + 1, "violation": message})
    else:
        say(f"{name} breaks the allocator contract, after {num_runs} runs that kept it:\n{message}")
    return exits.INVALID
