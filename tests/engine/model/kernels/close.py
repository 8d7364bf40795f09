"""How near a kernel's result must be: the rounding of its type, not a tolerance tuned by hand."""

from __future__ import annotations

import torch

ROUNDING = {torch.float32: 4e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Relative: float32 sums in another order; one unit in the last place of the half types (Triton's interpreter cuts
bfloat16 off where a device rounds)."""


def assert_rounded(got: torch.Tensor, expected: torch.Tensor, size: torch.Tensor | None = None) -> None:
    """Every element of `got` within the rounding of its type of `expected` (float64), relative to `size`.

    `size`: the magnitude of what was added up, where that is more than the result; else the result's own.
    """
    assert got.shape == expected.shape
    size = expected.abs() if size is None else size
    excess = (got.double() - expected).abs() - ROUNDING[got.dtype] * size - 1e-7
    assert not excess.isnan().any(), "NaN in the result"
    assert excess.max() <= 0, f"beyond the rounding of {got.dtype} by {excess.max():.3g}"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers: NaN equals NaN."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
