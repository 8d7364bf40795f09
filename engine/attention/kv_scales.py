"""An FP8 KV cache: what is stored, and the scales that belong to it, per KV head, in plain torch.

Stored is x / scale in E4M3 (Micikevicius et al., 2022, "FP8 formats for deep learning": no infinities), rounded to
nearest even and saturated at +-448; read is the stored number times the scale. A scale for a whole tensor is one that
all heads have. Kernels are compared with these functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.attention.checks import FP8, AttentionInputError, check_index, check_same_device

FP8_MAX = 448.0
"""Largest number in E4M3."""
FITTED_MAX = FP8_MAX / 4
"""What the largest magnitude that was seen is stored as: later ones may be four times as large. It costs no precision,
as numbers have an exponent, only the smallest ones come nearer to zero's step."""

Scale = float | Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class KVScales:
    """Of one layer; the tensors are on the cache's device, so that a captured kernel sees new contents."""

    k: torch.Tensor
    """[KH] float32, above 0."""
    v: torch.Tensor
    """[KH] float32, above 0."""

    @classmethod
    def of(cls, k: Scale, v: Scale, num_kv_heads: int, device: torch.device | str = "cpu") -> KVScales:
        """From one number a tensor, or one a head. AttentionInputError for what is not finite and above 0."""
        return cls(*(_per_head(*given, num_kv_heads).to(device) for given in (("k scale", k), ("v scale", v))))

    @classmethod
    def fitted(cls, k: torch.Tensor, v: torch.Tensor, *, per_head: bool = True) -> KVScales:
        """Those that store the largest magnitude of K and of V [..., KH, D] as FITTED_MAX; 1 where all is zero."""
        return cls(_fitted(k, per_head), _fitted(v, per_head))

    def copy_(self, other: KVScales) -> None:
        """New contents in the same place."""
        self.k.copy_(other.k)
        self.v.copy_(other.v)

    def check(self, cache: torch.Tensor) -> None:
        """AttentionInputError where shape, type or device are not those of a cache [NB, BS, KH, D]."""
        for name, tensor in (("k scales", self.k), ("v scales", self.v)):
            check_index(name, tensor, (cache.shape[2],), torch.float32)
        check_same_device(k_cache=cache, k_scales=self.k, v_scales=self.v)


def check_scales(cache: torch.Tensor, scales: KVScales | None) -> None:
    """Scales beside an FP8 cache [NB, BS, KH, D], and beside no other."""
    if (scales is None) is (cache.dtype == FP8):
        expected, got = ("KVScales", "None") if scales is None else ("None", "KVScales")
        raise AttentionInputError(f"scales: expected {expected} for a cache of {cache.dtype}, got {got}")
    if scales is not None:
        scales.check(cache)


def quantized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x [..., KH, D] as stored with scale [KH]; NaN stays NaN."""
    return (x.to(torch.float32) / scale[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def dequantized(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What x [..., KH, D] of an FP8 cache stands for."""
    return x.to(dtype) * scale[:, None].to(dtype)


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """An FP8 cache by its bytes, for those who only move them; others as they are."""
    return cache.view(torch.uint8) if cache.dtype == FP8 else cache


def _per_head(name: str, scale: Scale, num_kv_heads: int) -> torch.Tensor:
    given = [scale] * num_kv_heads if isinstance(scale, int | float) else list(scale)
    odd = [one for one in given if isinstance(one, bool) or not isinstance(one, int | float)]
    if odd:
        raise AttentionInputError(f"{name}: expected numbers, got {odd[0]!r}")
    numbers = [_single(one) for one in given]
    if len(numbers) != num_kv_heads:
        raise AttentionInputError(f"{name}: expected one number, or one a KV head ({num_kv_heads}), got {len(numbers)}")
    wrong = [one for one in numbers if not (math.isfinite(one) and one > 0)]
    if wrong:
        raise AttentionInputError(f"{name}: expected finite numbers above 0, got {wrong[0]}")
    return torch.tensor(numbers, dtype=torch.float32)


def _single(number: float) -> float:
    """As float32 has it: infinite or 0 where that has no such number."""
    try:
        return float(torch.tensor(float(number), dtype=torch.float32))
    except OverflowError:  # an integer that is too long for any float
        return math.inf


def _fitted(x: torch.Tensor, per_head: bool) -> torch.Tensor:
    largest = x.to(torch.float32).abs().movedim(-2, 0).flatten(1).amax(1)  # [KH]
    if not per_head:
        largest = largest.amax().expand_as(largest)
    return torch.where(largest > 0, largest / FITTED_MAX, 1.0).contiguous()
