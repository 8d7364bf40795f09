"""A `Case` whose pool is FP8: poisoned with E4M3's NaN, scales of every head its own, and what it stands for."""

from __future__ import annotations

import torch

from engine.attention.kv_scales import FP8, KVScales, dequantized, quantized
from tests.engine.attention.kernels.pools import Case, poisoned_caches


class Fp8Case:
    """K and V of a case, quantized; `case.expected()` is attention over what is stored."""

    def __init__(self, case: Case, *, k_scale: float = 0.02, v_scale: float = 0.005, window: int = 0) -> None:
        """`window`: as of `Case.paged`."""
        self.case = case
        steps = [1.0 + 0.7 * head for head in range(case.num_kv_heads)]
        self.scales = KVScales.of([k_scale * s for s in steps], [v_scale * s for s in steps], case.num_kv_heads, "cpu")
        for name in ("keys", "values"):
            setattr(case, name, [self._stored(x, name).to(case.dtype) for x in getattr(case, name)])
        self.k_cache, self.v_cache, self.block_table = self._paged(window)
        *rows, starts = case.contiguous()
        self.rows = [_fp8(x) for x in rows], starts
        for name in ("keys", "values"):  # from here on what they stand for
            setattr(case, name, [dequantized(x, self._scale(name), torch.float64) for x in getattr(case, name)])
        self.scales = KVScales(self.scales.k.to(case.device), self.scales.v.to(case.device))

    def _scale(self, name: str) -> torch.Tensor:
        return (self.scales.k if name == "keys" else self.scales.v).cpu()

    def _stored(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Numbers of E4M3: every type here holds them."""
        return quantized(x, self._scale(name)).float()

    def _paged(self, window: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        case = self.case
        k, v, table = case.paged(window)
        caches = poisoned_caches(
            case.layout, k.shape[0], case.block_size, case.num_kv_heads, case.head_size, FP8, case.device
        )
        for cache, wide in zip(caches, (k, v), strict=True):
            cache.copy_(wide)
        return *caches, table


def _fp8(x: torch.Tensor) -> torch.Tensor:
    """[N, KH, D] in a storage of its own."""
    return x.contiguous().to(FP8)
