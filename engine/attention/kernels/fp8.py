"""E4M3 in the kernels, and decode attention over a cache of it.

Caches are seen by their bytes: Triton's own type is not there before compute capability 8.9, and its interpreter rounds
and reads it wrongly. NATIVE uses the instructions of those devices, which convert a pair at once; otherwise bits are
moved about, which every device and the interpreter can.

A decode waits for memory, and a byte a number leaves half the time that two leave: conversion must stay cheap. V is
the second operand of its product, whose registers hold neighbours along the keys, and only 16-bit elements are
transposed on their way from shared memory. So K and V are loaded as pairs, int16 [N, D / 2], and become two tiles of
float16 once they are in registers: even and odd elements of the head, each with products of its own.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.attention.checks import FP8, AttentionInputError, shown
from engine.attention.kernels.device import capability, interpreted
from engine.attention.kernels.tiles import capped, computed_query, row_offsets, table_entries
from engine.attention.kv_scales import KVScales

NATIVE_CAPABILITY = 89
"""From which on devices convert E4M3 by themselves."""
NOT_FP8 = {"FP8": False, "NATIVE": False}
UNPACK = tl.constexpr(
    "{ .reg .b32 sorted; .reg .b16 low, high; prmt.b32 sorted, $2, 0, 0x3120; mov.b32 {low, high}, sorted; "
    "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }"
)
"""Two pairs (a, b), (c, d) as bytes of a register: to (a, c) and (b, d)."""


@triton.jit
def _from_bits(codes):
    """float16 of the numbers 0 to 255, int16: the exponent's bias is 8 less, and the code of NaN is no number."""
    magnitude = codes & 0x7F
    moved = ((codes & 0x80) << 8) | (magnitude << 7)
    return tl.where(magnitude == 0x7F, float("nan"), moved.to(tl.int16).to(tl.float16, bitcast=True) * 256.0)


@triton.jit
def unpacked_pairs(pairs, NATIVE: tl.constexpr):
    """float16 of the low and of the high bytes of int16."""
    if NATIVE:
        low, high = tl.inline_asm_elementwise(
            UNPACK, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )  # fmt: skip
    else:
        low = _from_bits(pairs & 0xFF)
        high = _from_bits((pairs >> 8) & 0xFF)
    return low, high


@triton.jit
def unpacked(codes, NATIVE: tl.constexpr):
    """float16 of uint8."""
    if NATIVE:  # noqa: SIM108 - a branch that is not compiled
        numbers = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        numbers = _from_bits(codes.to(tl.int16))
    return numbers


@triton.jit
def quantized(x, scale, NATIVE: tl.constexpr):
    """uint8 of x / scale, float32: to nearest even, saturated; NaN stays NaN."""
    x = tl.div_rn(x, scale)
    x = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    if NATIVE:
        codes = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        bits = x.to(tl.int32, bitcast=True)
        size = tl.abs(x)
        size_bits = bits & 0x7FFFFFFF
        normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
        small = (size + 16384.0).to(tl.int32, bitcast=True) & 0xFF  # a step of 2^-9, E4M3's smallest, is one of float32
        codes = tl.where(size < 0.015625, small, normal)
        codes = tl.where(x != x, 0x7F, codes | ((bits >> 24) & 0x80)).to(tl.uint8)
    return codes


@triton.jit
def _paired_query(Q, heads, alive, q_h, D: tl.constexpr, HALF: tl.constexpr):
    """Even and odd elements of the query heads, [M, HALF] each, and what both were divided by."""
    dims = tl.arange(0, HALF)[None, :]
    mask = alive[:, None] & (dims < D // 2)
    at = Q + heads[:, None] * q_h + 2 * dims
    both = tl.join(tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0))
    both, unit = computed_query(both, False, True)
    even, odd = tl.split(both)
    return even, odd, unit


@triton.jit
def _attend_pairs(
    even, odd, k, v, maximum, total, acc_even, acc_odd, visible, scale, soft_cap,
    SOFT_CAP: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """As `tiles.attend`, of pairs."""
    k_even, k_odd = unpacked_pairs(k, NATIVE)
    scores = tl.dot(even, tl.trans(k_even.to(even.dtype)), input_precision="ieee")
    scores = tl.dot(odd, tl.trans(k_odd.to(odd.dtype)), scores, input_precision="ieee")
    if SOFT_CAP:
        scores = capped(scores * scale, soft_cap) * 1.4426950408889634
        factor = 1.0
    else:
        factor = scale
    scores = tl.where(visible, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * factor)
    weights = tl.exp2(scores * factor - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(weights, 1)
    weights = weights.to(even.dtype)
    v_even, v_odd = unpacked_pairs(v, NATIVE)
    acc_even = tl.dot(weights, v_even.to(even.dtype), acc_even * shrink[:, None], input_precision="ieee")
    acc_odd = tl.dot(weights, v_odd.to(odd.dtype), acc_odd * shrink[:, None], input_precision="ieee")
    return new_maximum, total, acc_even, acc_odd


@triton.jit
def attend_piece_of_pairs(
    Q, K, V, K_SCALE, V_SCALE, heads, alive, q_h, table, tile, end_tile, first, length, kv_b, kv_t, block_size,
    block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, SOFT_CAP: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """(maximum, total, acc) of the query heads over the keys [first, length) in the tiles [tile, end_tile): decode's
    piece over K and V of pairs, int16, whose strides count pairs. The scales are those of the KV head."""
    half: tl.constexpr = BLOCK_D // 2
    even, odd, unit = _paired_query(Q, heads, alive, q_h, D, half)
    scale *= unit * tl.load(K_SCALE)
    rows = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, half)[None, :]
    last = tl.maximum(length - 1, 0)
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc_even = tl.zeros([BLOCK_M, half], tl.float32)
    acc_odd = tl.zeros([BLOCK_M, half], tl.float32)
    entries = table_entries(table, tile * BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
    for step in tl.range(tile, end_tile, num_stages=NUM_STAGES):
        start = step * BLOCK_N
        at = row_offsets(entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES, True)
        offsets = at[:, None] + dims
        entries = table_entries(table, start + BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
        if D == BLOCK_D:
            k = tl.load(K + offsets)
            v = tl.load(V + offsets)
        else:
            k = tl.load(K + offsets, mask=dims < D // 2, other=0)
            v = tl.load(V + offsets, mask=dims < D // 2, other=0)
        position = start + rows
        visible = ((position >= first) & (position < length))[None, :]
        maximum, total, acc_even, acc_odd = _attend_pairs(
            even, odd, k, v, maximum, total, acc_even, acc_odd, visible, scale, soft_cap, SOFT_CAP, NATIVE
        )  # fmt: skip
    return maximum, total, tl.interleave(acc_even, acc_odd) * tl.load(V_SCALE)


def fp8_of(kernel: object, cache: torch.Tensor) -> dict[str, bool]:
    """What is compiled into a kernel over this cache."""
    stored = cache.dtype == FP8
    return {
        "FP8": stored,
        "NATIVE": stored and not interpreted(kernel) and capability(cache.device) >= NATIVE_CAPABILITY,
    }


def scales_of(scales: KVScales | None, instead: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K_SCALE and V_SCALE, or a tensor that nobody looks at."""
    return (instead, instead) if scales is None else (scales.k, scales.v)


def in_pairs(cache: torch.Tensor) -> torch.Tensor:
    """An FP8 cache [NB, BS, KH, D] as int16 [NB, BS, KH, D / 2], any other as it is. AttentionInputError for odd
    strides."""
    if cache.dtype != FP8:
        return cache
    if any(stride % 2 for stride in cache.stride()[:-1]) or cache.storage_offset() % 2:
        raise AttentionInputError(f"cache: expected strides and a start in whole pairs, got {shown(cache.stride())}")
    return cache.view(torch.int16)
