"""Triton's own uniform numbers, the kernels' noise of given ones and the tokens of both, to compare with the
specification's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.model.kernels import sample
from engine.model.sampling import POSITION_STEP, SamplingTensors

STEP = tl.constexpr(POSITION_STEP)
GUMBEL = sample._gumbel


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


@triton.jit
def gumbel_kernel(UNIFORM, OUT, COUNT: tl.constexpr, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    uniform = tl.load(UNIFORM + at, mask=at < COUNT, other=0.5)
    noise = GUMBEL(uniform, APPROXIMATE)  # first: in the interpreter a call changes what tl.store is
    tl.store(OUT + at, noise, mask=at < COUNT)


def gumbel_by_triton(uniform: torch.Tensor, *, approximate: bool) -> torch.Tensor:
    """Noise of uniform numbers [N]."""
    out = torch.empty_like(uniform)
    gumbel_kernel[(-(-len(uniform) // 1024),)](
        uniform, out, COUNT=len(uniform), BLOCK=1024, APPROXIMATE=approximate, num_warps=4
    )
    return out


def tokens_drawn(logits: torch.Tensor, params: SamplingTensors, positions: torch.Tensor) -> torch.Tensor:
    """[S] int32, by the fused sampler."""
    out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    sample.sample_fused(logits, params, positions, out)
    return out


def uniform_numbers(count: int) -> torch.Tensor:
    """[3 * count + 4] float32 in [0, 1): dense at both ends and evenly between, with the extremes."""
    near = 2.0 ** torch.linspace(-32, -1, count, dtype=torch.float64)
    even = torch.linspace(0, 1, count, dtype=torch.float64)
    ends = torch.tensor([0.0, 2.0**-31, 0.0625, 1 - 2.0**-24], dtype=torch.float64)
    return torch.cat((near, 1 - near, even, ends)).clamp(max=1 - 2.0**-24).float()


def gumbel_in_float64(uniform: torch.Tensor) -> torch.Tensor:
    """The noise by its definition, of at least 2^-32."""
    return -torch.log(-torch.log1p(-uniform.double().clamp(min=2.0**-32)))
