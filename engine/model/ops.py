"""The small operations between a model's matrix products, and their specification in plain torch.

`Ops` is what a decoder calls; `TorchOps` says what each call means, on any device. Fused kernels with the same
interface are compared with it, never with themselves. Each computes in float32 (float64 inputs stay so) and rounds
once, to the type of its result.

Letters: T tokens of the batch, E hidden size, I intermediate size, H query heads, KH KV heads, D head size, NB blocks,
BS block size (tokens a block), P positions; of latent attention as in `engine.model.weights`.
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

    def write_latents(
        self,
        down: torch.Tensor,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_norm: torch.Tensor,
        *,
        eps: float,
        interleaved: bool,
        q_norm: torch.Tensor | None = None,
        q_out: torch.Tensor | None = None,
    ) -> None:
        """Norms each token's latent [R], turns its rotary key [P], and writes both into the cache by slot.

        down [T, any + R + P] ends with them. With q_norm [Q], its first Q elements, the queries' latent, are normed
        into q_out [T, Q]. cos_sin [positions, P], positions and slots as in `rotate_and_write`; kv_cache
        [NB, BS, R + P]. interleaved: element 2i turns with 2i + 1, else i with i + P/2; either stays in its place.
        """
        ...

    def rotate_queries(
        self, q: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        """Turns the last P elements of each head of q [T, H, N + P] in place, as `write_latents` turns keys; gives q.

        A token's heads lie side by side; tokens may have any distance.
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
        _write(slots, (k, as_bytes(k_cache)), (v, as_bytes(v_cache)))
        return q

    def write_latents(
        self,
        down: torch.Tensor,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_norm: torch.Tensor,
        *,
        eps: float,
        interleaved: bool,
        q_norm: torch.Tensor | None = None,
        q_out: torch.Tensor | None = None,
    ) -> None:
        """Norms, rotation and write one after the other."""
        if q_norm is not None and q_out is not None:
            q_out.copy_(_rms_norm(_wide(down[:, : len(q_norm)]), q_norm, eps))
        rotary = cos_sin.shape[1]
        latent, key = down[:, -len(kv_norm) - rotary : -rotary], down[:, -rotary:]
        turned = _turn(_wide(key), cos_sin[positions], interleaved)
        _write(slots, (torch.cat((_rms_norm(_wide(latent), kv_norm, eps), turned), dim=1), kv_cache))

    def rotate_queries(
        self, q: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        """The last elements turned, the others left alone."""
        tail = q[..., -cos_sin.shape[1] :]
        tail.copy_(_turn(_wide(tail), cos_sin[positions][:, None], interleaved))
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
    return heads if turns is None else _turn(heads, turns[:, None, :], interleaved=False)


def _turn(x: torch.Tensor, turns: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [..., P] turned by pairs, 2i and 2i + 1 or i and i + P/2; turns [..., P], cos then sin of the P/2 angles."""
    cos, sin = turns.chunk(2, dim=-1)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    parts = first * cos - second * sin, second * cos + first * sin
    return torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)


def _write(slots: torch.Tensor, *pairs: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Each values [T, ...] into its cache [NB, BS, ...] by slot, without a selection whose size depends on values.

    A token that is not to be written writes the first one that is over again; if there is none, what the cache has.
    """
    if not slots.numel():
        return
    kept = slots >= 0
    source = torch.where(kept, torch.arange(len(slots), device=slots.device), kept.int().argmax())
    target = slots[source].clamp(min=0)
    anything = kept.any()
    for values, cache in pairs:
        block, offset = target // cache.shape[1], target % cache.shape[1]
        cache[block, offset] = torch.where(anything, values[source].to(cache.dtype), cache[block, offset])
