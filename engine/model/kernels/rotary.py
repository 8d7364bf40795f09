"""Rotary embedding of a step's queries and keys, and its keys and values into the paged cache, in one launch.

Half-split order (GPT-NeoX, as in Hugging Face's Llama): element i of the first half turns with element i of the
second. Qwen3 normalises each head of q and k before. Fusing the KV write saves a pass over k and v (vLLM has two
kernels: `rotary_embedding`, `reshape_and_cache_flash`).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.checks import FP8, shown
from engine.attention.kernels.fp8 import fp8_of, quantized, scales_of
from engine.attention.kv_scales import KVScales, as_bytes, check_scales
from engine.model.kernels.inputs import check_dense, check_floats, described
from engine.model.kernels.launching import on_device

PROGRAM_ELEMENTS = 1_024
"""Elements of each half of the heads of a program."""
THREAD_ELEMENTS = 8


@triton.jit
def rotate_kernel(
    QKV, COS_SIN, POSITIONS, SLOTS, K_CACHE, V_CACHE, K_SCALE, V_SCALE, Q_NORM, K_NORM, kv_b, kv_t, kv_h, eps,
    H: tl.constexpr, KH: tl.constexpr, D: tl.constexpr, BLOCK_HALF: tl.constexpr, FIRST: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROTATE: tl.constexpr, NORM: tl.constexpr, FP8: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Grid (T, ceil((H + 2 KH - FIRST) / HEADS)): HEADS heads of a token a program, queries, then keys, then values.

    FIRST: the first head with work, H where queries stay as they are. FP8: the caches are bytes of E4M3, K_SCALE and
    V_SCALE float32 [KH]; otherwise nobody looks at these.
    """
    half: tl.constexpr = D // 2
    token = tl.program_id(0)
    slot = tl.load(SLOTS + token)
    heads = (FIRST + tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dims = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (heads < H + 2 * KH) & (dims < half)
    at = QKV + token.to(tl.int64) * ((H + 2 * KH) * D) + heads * D + dims
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    turned = heads < H + KH
    if NORM:
        first, second = _normalised(first, second, heads, dims, Q_NORM, K_NORM, eps, H, KH, half)
    if ROTATE:
        angles = COS_SIN + tl.load(POSITIONS + token) * D + dims
        cos = tl.load(angles, mask=dims < half, other=0.0)
        sin = tl.load(angles + half, mask=dims < half, other=0.0)
        turned_first = tl.where(turned, first * cos - second * sin, first)
        second = tl.where(turned, second * cos + first * sin, second)
        first = turned_first
    dtype = QKV.dtype.element_ty
    first = first.to(dtype)
    second = second.to(dtype)
    if FIRST == 0:
        tl.store(at, first, mask=inside & (heads < H))
        tl.store(at + half, second, mask=inside & (heads < H))
    if FP8:
        scale = _scales_of_heads(K_SCALE, V_SCALE, heads, H, KH)
        first = quantized(first.to(tl.float32), scale, NATIVE)
        second = quantized(second.to(tl.float32), scale, NATIVE)
    to = slot // BLOCK_SIZE * kv_b + slot % BLOCK_SIZE * kv_t + dims
    keys = inside & turned & (heads >= H) & (slot >= 0)
    k = K_CACHE + to + (heads - H) * kv_h
    tl.store(k, first, mask=keys)
    tl.store(k + half, second, mask=keys)
    values = inside & (heads >= H + KH) & (slot >= 0)
    v = V_CACHE + to + (heads - (H + KH)) * kv_h
    tl.store(v, first, mask=values)
    tl.store(v + half, second, mask=values)


@triton.jit
def _scales_of_heads(K_SCALE, V_SCALE, heads, H: tl.constexpr, KH: tl.constexpr):
    """Of each head of K and of V; 1 for queries, which are not stored."""
    of_k = tl.load(K_SCALE + heads - H, mask=(heads >= H) & (heads < H + KH), other=1.0)
    of_v = tl.load(V_SCALE + heads - (H + KH), mask=(heads >= H + KH) & (heads < H + 2 * KH), other=1.0)
    return tl.where(heads < H + KH, of_k, of_v)


@triton.jit
def _normalised(
    first, second, heads, dims, Q_NORM, K_NORM, eps, H: tl.constexpr, KH: tl.constexpr, half: tl.constexpr
):  # fmt: skip
    """RMSNorm of each head of q and k, with a weight for each; values as they are."""
    known = dims < half
    q_first = tl.load(Q_NORM + dims, mask=known, other=0.0).to(tl.float32)
    q_second = tl.load(Q_NORM + half + dims, mask=known, other=0.0).to(tl.float32)
    k_first = tl.load(K_NORM + dims, mask=known, other=0.0).to(tl.float32)
    k_second = tl.load(K_NORM + half + dims, mask=known, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(first * first + second * second, 1) / (2 * half) + eps)[:, None]
    queries = heads < H
    turned = heads < H + KH
    first = tl.where(turned, first * factor * tl.where(queries, q_first, k_first), first)
    second = tl.where(turned, second * factor * tl.where(queries, q_second, k_second), second)
    return first, second


def rotate_and_write(
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
    """Queries [T, H, D] of qkv [T, (H + 2 KH) * D], normalised and turned in place; keys and values to their slots.

    cos_sin [P, D] float32, of which row p is [cos | sin] of position p's D/2 angles; None: nothing turns. positions,
    slots [T] int64; slot < 0: nowhere. Caches [NB, BS, KH, D], views of equal strides in any layout and of any block
    size. q_norm and k_norm [D], both or none: RMSNorm with `eps` of each head first. All in float32 between load and
    store; values keep their bits. `scales`: the caches are FP8, and hold what others would hold, quantized. ValueError
    before anything is launched.
    """
    block_size, head_size = check_caches(qkv, k_cache, v_cache, num_kv_heads)
    check_scales(k_cache, scales)
    check_tokens(qkv, cos_sin, positions, slots, (num_heads + 2 * num_kv_heads) * head_size, head_size)
    normalises = check_norms(qkv, q_norm, k_norm, head_size)
    num_tokens = qkv.shape[0]
    if num_tokens:
        options = rotate_options(num_heads, num_kv_heads, head_size, block_size, cos_sin is not None, normalises)
        options = options | fp8_of(rotate_kernel, k_cache)
        programs = -(-(num_heads + 2 * num_kv_heads - options["FIRST"]) // options["HEADS"])
        with on_device(qkv):
            rotate_kernel[(num_tokens, programs)](
                qkv, qkv if cos_sin is None else cos_sin, positions, slots, as_bytes(k_cache), as_bytes(v_cache),
                *scales_of(scales, qkv), qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm,
                k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), eps, **options,
            )  # fmt: skip
    return qkv.as_strided((num_tokens, num_heads, head_size), (qkv.shape[1], head_size, 1))


def check_caches(qkv: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, num_kv_heads: int) -> tuple[int, int]:
    """Block size and head size of caches [NB, BS, KH, D] that hold what qkv brings: equal strides, D innermost."""
    check_floats("qkv", qkv)
    shape = k_cache.shape
    fits = (
        len(shape) == 4
        and shape[2] == num_kv_heads
        and shape[3] % 2 == 0
        and v_cache.shape == shape
        and k_cache.dtype == v_cache.dtype
        and k_cache.dtype in (qkv.dtype, FP8)
        and k_cache.stride() == v_cache.stride()
        and k_cache.stride(3) == 1
        and k_cache.get_device() == v_cache.get_device() == qkv.get_device()
    )
    if not fits:
        raise ValueError(
            f"k_cache and v_cache: expected views {shown(('NB', 'BS', num_kv_heads, 'an even D'))} of equal strides, "
            f"the last 1, of qkv's type (or FP8) and device, got {described(k_cache)} and {described(v_cache)} "
            f"for {described(qkv)}"
        )
    return shape[1], shape[3]


def check_tokens(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor | None,
    positions: torch.Tensor,
    slots: torch.Tensor,
    columns: int,
    head_size: int,
) -> None:
    """What comes by token, and the table of rotations."""
    num_tokens = qkv.shape[0]
    check_dense("qkv", qkv, (num_tokens, columns), qkv.dtype, qkv)
    check_dense("slots", slots, (num_tokens,), torch.int64, qkv)
    check_dense("positions", positions, (num_tokens,), torch.int64, qkv)
    if cos_sin is not None:
        check_dense("cos_sin", cos_sin, (cos_sin.shape[0], head_size), torch.float32, qkv)


def check_norms(qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, head_size: int) -> bool:
    """Whether heads are normalised."""
    if q_norm is None or k_norm is None:
        if q_norm is not k_norm:
            raise ValueError("q_norm and k_norm: expected both or none, got one")
        return False
    check_dense("q_norm", q_norm, (head_size,), qkv.dtype, qkv)
    check_dense("k_norm", k_norm, (head_size,), qkv.dtype, qkv)
    return True


@functools.cache
def rotate_options(
    num_heads: int, num_kv_heads: int, head_size: int, block_size: int, rotates: bool, normalises: bool
) -> dict[str, Any]:
    """What is compiled into rotate_kernel."""
    first = 0 if rotates or normalises else num_heads
    block_half = triton.next_power_of_2(head_size // 2)
    heads = triton.next_power_of_2(num_heads + 2 * num_kv_heads - first)
    heads = min(heads, max(1, PROGRAM_ELEMENTS // block_half))
    num_warps = min(4, max(1, heads * block_half // (32 * THREAD_ELEMENTS)))
    return {
        "H": num_heads,
        "KH": num_kv_heads,
        "D": head_size,
        "BLOCK_HALF": block_half,
        "FIRST": first,
        "HEADS": heads,
        "BLOCK_SIZE": block_size,
        "ROTATE": rotates,
        "NORM": normalises,
        "num_warps": num_warps,
    }
