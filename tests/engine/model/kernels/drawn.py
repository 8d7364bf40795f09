"""Triton's own uniform numbers, to compare the specification's with."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.model.sampling import POSITION_STEP

STEP = tl.constexpr(POSITION_STEP)


@triton.jit
def draw_kernel(SEEDS, POSITIONS, FOUR, ONE, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    key = tl.load(SEEDS + row) + tl.load(POSITIONS + row) * STEP
    counter = tl.arange(0, BLOCK)
    mask = counter < GROUPS
    u0, u1, u2, u3 = tl.rand4x(key, counter)
    at = FOUR + (row * GROUPS + counter) * 4
    tl.store(at, u0, mask=mask)
    tl.store(at + 1, u1, mask=mask)
    tl.store(at + 2, u2, mask=mask)
    tl.store(at + 3, u3, mask=mask)
    tl.store(ONE + row * GROUPS + counter, tl.rand(key, counter), mask=mask)


def drawn_by_triton(seeds: torch.Tensor, positions: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[S, 4 * groups] of rand4x, and [S, groups] of rand, at counters 0, 1, ..."""
    four = torch.empty(len(seeds), 4 * groups, device=seeds.device)
    one = torch.empty(len(seeds), groups, device=seeds.device)
    draw_kernel[(len(seeds),)](
        seeds, positions, four, one, GROUPS=groups, BLOCK=triton.next_power_of_2(groups), num_warps=4
    )
    return four, one
