"""Latents and rotary keys of a step into the paged cache, normed and turned, and the turning of its queries.

DeepSeek-V2, section 2.1: a token's K and V are one latent behind an RMSNorm, and one rotary key of all heads. Norm of
the queries' latent, norm of that of K and V, rotation and write are one launch (vLLM has four: two `rms_norm`,
`rotary_embedding`, `concat_and_cache_mla`).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from engine.attention.checks import shown
from engine.model.kernels.inputs import check_dense, check_floats, described
from engine.model.kernels.launching import on_device

THREAD_ELEMENTS = 8
PROGRAM_ELEMENTS = 1_024
"""Turning elements of a program of rotate_queries_kernel."""


@triton.jit
def write_latents_kernel(
    DOWN, COS_SIN, POSITIONS, SLOTS, KV_NORM, Q_NORM, KV_CACHE, Q_OUT, down_t, kv_b, kv_t, eps,
    AT: tl.constexpr, R: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_SIZE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Grid (T, 2), or (T, 1) where queries have no latent (Q = 0): a token's K and V, and its queries' latent.

    A row of DOWN has the latent from column AT on, the rotary key behind it, the queries' latent in front.
    """
    token = tl.program_id(0)
    row = DOWN + token.to(tl.int64) * down_t
    if tl.program_id(1) == 0:
        slot = tl.load(SLOTS + token)
        if slot >= 0:
            to = KV_CACHE + slot // BLOCK_SIZE * kv_b + slot % BLOCK_SIZE * kv_t
            columns = tl.arange(0, BLOCK_R)
            known = columns < R
            c = tl.load(row + AT + columns, mask=known, other=0.0).to(tl.float32)
            weight = tl.load(KV_NORM + columns, mask=known, other=0.0).to(tl.float32)
            normed = c * tl.rsqrt(tl.sum(c * c, 0) / R + eps) * weight
            tl.store(to + columns, normed.to(KV_CACHE.dtype.element_ty), mask=known)
            heads = tl.arange(0, 1)[:, None]
            angles = COS_SIN + tl.load(POSITIONS + token) * P
            _turn(row + (AT + R) + heads, to + R + heads, heads < 1, angles, P, BLOCK_HALF, 1, INTERLEAVED)
    else:
        columns = tl.arange(0, BLOCK_Q)
        known = columns < Q
        c = tl.load(row + columns, mask=known, other=0.0).to(tl.float32)
        weight = tl.load(Q_NORM + columns, mask=known, other=0.0).to(tl.float32)
        normed = c * tl.rsqrt(tl.sum(c * c, 0) / Q + eps) * weight
        tl.store(Q_OUT + token.to(tl.int64) * Q + columns, normed.to(Q_OUT.dtype.element_ty), mask=known)


@triton.jit
def rotate_queries_kernel(
    QUERIES, COS_SIN, POSITIONS, q_t,
    H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BLOCK_HALF: tl.constexpr, HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Grid (T, ceil(H / HEADS)): the last P of each head's D elements, HEADS heads of a token a program."""
    token = tl.program_id(0)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    at = QUERIES + token.to(tl.int64) * q_t + heads * D + (D - P)
    angles = COS_SIN + tl.load(POSITIONS + token) * P
    _turn(at, at, heads < H, angles, P, BLOCK_HALF, HEADS, INTERLEAVED)


@triton.jit
def _turn(
    FROM, TO, inside, ANGLES, P: tl.constexpr, BLOCK_HALF: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr
):  # fmt: skip
    """P elements from each address of FROM [HEADS, 1], turned by pairs, to TO; ANGLES: P / 2 cosines, then sines."""
    dtype = TO.dtype.element_ty
    pairs = tl.arange(0, BLOCK_HALF)[None, :]
    known = pairs < P // 2
    cos = tl.load(ANGLES + pairs, mask=known, other=0.0)
    sin = tl.load(ANGLES + P // 2 + pairs, mask=known, other=0.0)
    if INTERLEAVED:
        elements = tl.arange(0, 2 * BLOCK_HALF)[None, :]
        mask = inside & (elements < P)
        both = tl.load(FROM + elements, mask=mask, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, (HEADS, BLOCK_HALF, 2)))
        turned = tl.join(first * cos - second * sin, second * cos + first * sin)
        tl.store(TO + elements, tl.reshape(turned, (HEADS, 2 * BLOCK_HALF)).to(dtype), mask=mask)
    else:
        mask = inside & known
        first = tl.load(FROM + pairs, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(FROM + P // 2 + pairs, mask=mask, other=0.0).to(tl.float32)
        tl.store(TO + pairs, (first * cos - second * sin).to(dtype), mask=mask)
        tl.store(TO + P // 2 + pairs, (second * cos + first * sin).to(dtype), mask=mask)


def write_latents(
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
    """What `Ops.write_latents` specifies, in one launch. ValueError, before it, for what it does not take.

    The kernel trusts positions to be in the table and slots in the cache.
    """
    check_floats("down", down)
    num_tokens, columns = down.shape
    rank, rotary = kv_norm.shape[0], cos_sin.shape[1]
    query = 0 if q_norm is None else q_norm.shape[0]
    check_dense("down", down, (num_tokens, columns), down.dtype, down)
    check_dense("kv_norm", kv_norm, (rank,), down.dtype, down)
    check_steps(down, cos_sin, positions)
    check_dense("slots", slots, (num_tokens,), torch.int64, down)
    check_cache(down, kv_cache, rank + rotary)
    if columns < query + rank + rotary:
        raise ValueError(
            f"down: expected at least {query} + {rank} + {rotary} columns (queries' latent, latent, rotary key), "
            f"got {columns}"
        )
    if (q_norm is None) != (q_out is None):
        raise ValueError("q_norm and q_out: expected both or none, got one")
    if q_norm is not None and q_out is not None:
        check_dense("q_norm", q_norm, (query,), down.dtype, down)
        check_dense("q_out", q_out, (num_tokens, query), down.dtype, down)
    if num_tokens:
        options = write_options(columns - rank - rotary, rank, rotary, query, kv_cache.shape[1], interleaved)
        with on_device(down):
            write_latents_kernel[(num_tokens, 2 if query else 1)](
                down, cos_sin, positions, slots, kv_norm, kv_norm if q_norm is None else q_norm, kv_cache,
                down if q_out is None else q_out, columns, kv_cache.stride(0), kv_cache.stride(1), eps, **options,
            )  # fmt: skip


def rotate_queries(q: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """What `Ops.rotate_queries` specifies, in one launch. ValueError, before it, for what it does not take."""
    check_floats("q", q)
    num_tokens, num_heads, head_size = q.shape
    check_steps(q, cos_sin, positions)
    rotary = cos_sin.shape[1]
    if q.stride(2) != 1 or q.stride(1) != head_size or rotary > head_size:
        raise ValueError(
            f"q: expected {shown(('T', 'H', 'D'))} with a token's heads side by side, D of at least {rotary} as "
            f"cos_sin has, got {described(q)}"
        )
    if num_tokens:
        options = rotate_options(num_heads, head_size, rotary, interleaved)
        with on_device(q):
            rotate_queries_kernel[(num_tokens, -(-num_heads // options["HEADS"]))](
                q, cos_sin, positions, q.stride(0), **options
            )
    return q


def check_steps(tokens: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
    """Positions of the tokens, and the table of rotations."""
    check_dense("positions", positions, (tokens.shape[0],), torch.int64, tokens)
    check_dense("cos_sin", cos_sin, tuple(cos_sin.shape), torch.float32, tokens)
    if cos_sin.dim() != 2 or cos_sin.shape[1] % 2:
        raise ValueError(f"cos_sin: expected {shown(('positions', 'an even P'))}, got {described(cos_sin)}")


def check_cache(down: torch.Tensor, kv_cache: torch.Tensor, size: int) -> None:
    """A view [NB, BS, R + P] of down's type and device, a token's elements side by side."""
    fits = (
        kv_cache.dim() == 3
        and kv_cache.shape[2] == size
        and kv_cache.stride(2) == 1
        and kv_cache.dtype == down.dtype
        and kv_cache.get_device() == down.get_device()
    )
    if not fits:
        raise ValueError(
            f"kv_cache: expected a view {shown(('NB', 'BS', size))}, the last stride 1, of down's type and device, "
            f"got {described(kv_cache)} for {described(down)}"
        )


@functools.cache
def write_options(at: int, rank: int, rotary: int, query: int, block_size: int, interleaved: bool) -> dict[str, Any]:
    """What is compiled into write_latents_kernel."""
    block_r, block_q = triton.next_power_of_2(rank), triton.next_power_of_2(max(query, 1))
    return {
        "AT": at,
        "R": rank,
        "P": rotary,
        "Q": query,
        "BLOCK_R": block_r,
        "BLOCK_HALF": triton.next_power_of_2(rotary // 2),
        "BLOCK_Q": block_q,
        "BLOCK_SIZE": block_size,
        "INTERLEAVED": interleaved,
        "num_warps": min(8, max(1, max(block_r, block_q) // (32 * THREAD_ELEMENTS))),
    }


@functools.cache
def rotate_options(num_heads: int, head_size: int, rotary: int, interleaved: bool) -> dict[str, Any]:
    """What is compiled into rotate_queries_kernel."""
    block_half = triton.next_power_of_2(rotary // 2)
    heads = min(triton.next_power_of_2(num_heads), max(1, PROGRAM_ELEMENTS // (2 * block_half)))
    return {
        "H": num_heads,
        "D": head_size,
        "P": rotary,
        "BLOCK_HALF": block_half,
        "HEADS": heads,
        "INTERLEAVED": interleaved,
        "num_warps": min(4, max(1, heads * 2 * block_half // (32 * THREAD_ELEMENTS))),
    }
