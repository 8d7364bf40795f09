"""The small operations between a model's matrix products, and their specification in plain torch.

`Ops` is what a decoder calls; `TorchOps` says what each call means, on any device. Fused kernels with the same
interface are compared with it, never with themselves. Each computes in float32 (float64 inputs stay so) and rounds
once, to the type of its result.

Letters: T tokens of the batch, E hidden size, I intermediate size, H query heads, KH KV heads, D head size, NB blocks,
BS block size (tokens a block), P positions.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from engine.attention.kv_scales import KVScales, as_bytes, quantized


class Ops(Protocol):
    """No call waits for the device or has a shape that depends on values: a step can be captured in a CUDA graph."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
        """RMS norm of x [T, E] times weight [E] (Zhang and Sennrich, 2019); `out` may be x."""
        ...

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Adds x [T, E] to residual [T, E] in place, rounded to its type, and gives the norm of that sum.

        `out` may be x, but not residual.
        """
        ...

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor | None,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 0.0,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Rotates q and k by position, writes k and v into the cache, and gives q [T, H, D].

        qkv [T, (H + 2 KH) D] has q, k and v of each token side by side. q_norm and k_norm [D]: an RMS norm of each head
        first (Qwen3). cos_sin [P, D] float32: row p is cos(D/2) then sin(D/2) of position p, for pairs (i, i + D/2);
        None: no rotation. positions [T] int64. q is rotated in place and returned as a view of qkv, whose k part may be
        anything afterwards. k_cache and v_cache [NB, BS, KH, D], views with any strides; slots [T] int64, none twice;
        a token with a slot below 0 is not written, but its position must be in the table. `scales`: the caches are FP8,
        and hold, quantized, what others would hold.
        """
        ...

    def gate(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """silu(first half) * second half of gate_up [T, 2 I]: [T, I] (SwiGLU; Shazeer, 2020)."""
        ...


class TorchOps:
    """The specification: plain torch, any device and floating type. Makes float32 copies of what it works on."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
        return _given(_rms_norm(_wide(x), weight, eps), x.dtype, out)

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `norm` of the sum, after it was rounded to residual's type."""
        residual.add_(x)
        return self.norm(residual, weight, eps, out)

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor | None,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 0.0,
        scales: KVScales | None = None,
    ) -> torch.Tensor:
        """Norm, rotation and write one after the other."""
        num_all = num_heads + 2 * num_kv_heads
        heads = qkv.view(-1, num_all, qkv.shape[1] // num_all)
        q = heads[:, :num_heads]
        k, v = heads[:, num_heads : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
        turns = None if cos_sin is None else cos_sin[positions]
        if q_norm is not None or turns is not None:
            q.copy_(_rotate(_normed(q, q_norm, eps), turns))
        k = _rotate(_normed(k, k_norm, eps), turns).to(qkv.dtype)
        if scales is not None:
            k, v = as_bytes(quantized(k, scales.k)), as_bytes(quantized(v, scales.v))
        _write(k, v, as_bytes(k_cache), as_bytes(v_cache), slots)
        return q

    def gate(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """g / (1 + exp(-g)) * u."""
        gate, up = _wide(gate_up).chunk(2, dim=-1)
        return _given(F.silu(gate) * up, gate_up.dtype, out)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _given(result: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None) -> torch.Tensor:
    """The result in `out` if there is one, else as a new tensor of that type."""
    return result.to(dtype) if out is None else out.copy_(result)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _normed(heads: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = _wide(heads)
    return wide if weight is None else _rms_norm(wide, weight, eps)


def _rotate(heads: torch.Tensor, turns: torch.Tensor | None) -> torch.Tensor:
    """heads [T, heads, D] turned by [T, D], cos then sin of the D/2 angles; as they are without."""
    if turns is None:
        return heads
    cos, sin = turns[:, None, :].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _write(k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """k and v [T, KH, D] into the caches by slot, without a selection whose size depends on values.

    A token that is not to be written writes the first one that is over again; if there is none, what the cache has.
    """
    if not slots.numel():
        return
    kept = slots >= 0
    source = torch.where(kept, torch.arange(len(slots), device=slots.device), kept.int().argmax())
    target = slots[source].clamp(min=0)
    block, offset = target // k_cache.shape[1], target % k_cache.shape[1]
    anything = kept.any()
    for values, cache in ((k, k_cache), (v, v_cache)):
        cache[block, offset] = torch.where(anything, values[source].to(cache.dtype), cache[block, offset])
