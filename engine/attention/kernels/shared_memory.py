"""Shared memory of a program, before anything is compiled: a rule may only give what its device has room for.

A bound from above, read off code that was compiled ahead of time (`resources`): tiles of K and V on their way, the
query, the weights. Tests hold it against the compiled variants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

OPT_IN_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""Of a program at most, by compute capability: the table of technical specifications of NVIDIA's CUDA C++ programming
guide."""
SLACK_BYTES = 1024
"""Barriers of descriptors, and scratch of reductions."""
WARP_GROUP_ROWS = 64
"""Rows of a product from which on a warp group computes it (compute capability 9 to 11): on Hopper with the weights in
registers, but with a tile more in shared memory."""
C = TypeVar("C")


def room(capability: int) -> int:
    """Bytes; of a device that is not in the table the least that any has."""
    return 1024 * OPT_IN_KIB.get(capability, min(OPT_IN_KIB.values()))


def program_bytes(
    block_m: int,
    block_n: int,
    num_stages: int,
    width: int,
    stored_bytes: int,
    capability: int,
    *,
    kept: int = 2,
    converts: bool = False,
) -> int:
    """Of attention over tiles of block_n keys, [block_n, width] elements of `stored_bytes`, for block_m query rows.

    `kept`: tiles a stage, K's and V's; 1 where V is a part of K. `converts`: what is stored in a byte is laid out again
    as 16 bits, once; where a warp group computes it always is.
    """
    computed = max(2, stored_bytes)
    by_warp_groups = 9 <= capability // 10 <= 11 and block_m >= WARP_GROUP_ROWS and computed == 2
    again = 2 * kept if stored_bytes == 1 and (converts or by_warp_groups) else 0
    tiles = num_stages if by_warp_groups and not again else max(1, num_stages - 1)
    keys = block_n * width * (tiles * kept * stored_bytes + again)
    weights = 0 if by_warp_groups and capability // 10 == 9 else block_n
    return keys + block_m * (width + weights) * computed + SLACK_BYTES


def fitting(config: C, needs: Callable[[C], int], capability: int) -> C:
    """`config` where a device has room for it, else with fewer stages, then with smaller tiles.

    Has num_stages and block_n; what one query group takes by itself stays.
    """
    changed: Any = config
    while needs(changed) > room(capability) and (changed.num_stages > 1 or changed.block_n > 16):
        if changed.num_stages > 1:
            changed = dataclasses.replace(changed, num_stages=changed.num_stages - 1)
        else:
            changed = dataclasses.replace(changed, block_n=changed.block_n // 2)
    return changed  # type: ignore[no-any-return]
