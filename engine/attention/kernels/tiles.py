"""Parts that the attention kernels share: where the rows of a tile lie, and one tile of the online softmax.

A tile is BLOCK_N consecutive positions of one sequence. How positions become rows is the constexpr PAGES:

"contiguous"  row = base + position; there is no table
"whole"       blocks hold whole tiles (block_size % BLOCK_N == 0): one table entry a tile
"shift"       block_size is a power of two: an entry a position, by shift and mask
"divide"      any other block_size: an entry a position, by division

Positions are clamped to [first, last], the positions that somebody in the program attends to. So no entry beyond
ceil(length / block_size) is read, no slot beyond the length, no block that left a sliding window; the rows that stand
in for them repeat an attended one, whose probability is zero. Stale NaNs in V therefore never meet 0 * NaN, without a
mask on the loads and without a `where` on V, which would cost registers and shared memory.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def table_entries(table, start, rows, first, last, block_size, block_shift, PAGES: tl.constexpr):
    """Block ids of the tile at `start`: a scalar ("whole"), int32 [BLOCK_N], or nothing to load ("contiguous")."""
    position = tl.minimum(tl.maximum(start + rows, first), last)
    if PAGES == "contiguous":
        entries = 0
    elif PAGES == "whole":
        entries = tl.load(table + tl.minimum(start, last) // block_size)
    elif PAGES == "shift":
        entries = tl.load(table + (position >> block_shift))
    else:
        entries = tl.load(table + position // block_size)
    return entries


@triton.jit
def row_offsets(
    entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES: tl.constexpr, CLAMP: tl.constexpr
):  # fmt: skip
    """Elements from the head's base to each row of the tile, int64 [BLOCK_N]: block id x stride passes 2^31.

    CLAMP may be off where the whole tile lies in [first, last].
    """
    position = start + rows
    if CLAMP:
        position = tl.minimum(tl.maximum(position, first), last)
    if PAGES == "contiguous":
        offsets = position.to(tl.int64) * kv_t
    else:
        if PAGES == "whole":
            slot = position - start // block_size * block_size
        elif PAGES == "shift":
            slot = position & (block_size - 1)
        else:
            slot = position % block_size
        offsets = entries.to(tl.int64) * kv_b + slot.to(tl.int64) * kv_t
    return offsets


@triton.jit
def computed_query(q, UPCAST: tl.constexpr, FP8: tl.constexpr):
    """Q in the type of the products, and the power of two that it was divided by.

    Over an FP8 cache products are float16's, which holds every number of E4M3; a bfloat16 Q, of a wider range, is
    brought within it.
    """
    unit = 1.0
    if UPCAST:
        q = q.to(tl.float32)
    elif FP8 and q.dtype == tl.bfloat16:
        wide = q.to(tl.float32)
        unit = tl.exp2(tl.ceil(tl.log2(tl.maximum(tl.max(tl.abs(wide)), 1e-30))))
        q = (wide / unit).to(tl.float16)
    return q, unit


@triton.jit
def capped(scores, soft_cap):
    """soft_cap * tanh(scores / soft_cap) in float32; exact limits for any finite score, and no libdevice."""
    return soft_cap - 2 * soft_cap / (1 + tl.exp(scores * (2 / soft_cap)))


@triton.jit
def attend(
    q, k, v, maximum, total, acc, visible, scale, soft_cap,
    MASKED: tl.constexpr, SOFT_CAP: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One tile of the online softmax (Milakov and Gimelshein 2018) in base 2: the new (maximum, total, acc).

    q [M, D], k and v [N, D]; maximum and total float32 [M], acc float32 [M, D]. `scale` takes scores to base 2, or,
    with SOFT_CAP, to the argument of the cap, whose log2(e) is applied after it. Probabilities are relative to the
    new maximum; the division by `total` is the caller's, once. `maximum` starts finite, so that a row without a
    visible key in this tile adds exactly nothing.
    """
    if UPCAST:  # the interpreter computes bfloat16 wrongly; it only loads and stores it
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    else:  # another type only where a float32 Q meets an FP8 cache
        k = k.to(q.dtype)
        v = v.to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    return weigh(scores, v, maximum, total, acc, visible, scale, soft_cap, MASKED, SOFT_CAP)


@triton.jit
def weigh(
    scores, v, maximum, total, acc, visible, scale, soft_cap, MASKED: tl.constexpr, SOFT_CAP: tl.constexpr
):  # fmt: skip
    """`attend` from the products of queries and keys on: scores [M, N], v [N, D]."""
    if SOFT_CAP:
        scores = capped(scores * scale, soft_cap) * 1.4426950408889634
        factor = 1.0
    else:
        factor = scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * factor)
    weights = tl.exp2(scores * factor - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return new_maximum, total, acc
