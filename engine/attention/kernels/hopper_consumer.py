"""A consumer warpgroup of the Hopper prefill kernel: the online softmax of 64 query rows.

Scores of the next tile and the weighted sum of values of this one are on the tensor cores together, while the
exponentials of the next tile wait for the former only (Shah et al. 2024, FlashAttention-3, section 3.2). Two such
warpgroups share K and V; one's exponentials fill the time of the other's products.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from engine.attention.kernels.hopper_producer import HALF, WORK_SLOTS, receive
from engine.attention.kernels.hopper_softmax import after, await_turn, pack, pass_turn, unpack, weights

ROWS = gl.constexpr(64)
"""Query rows of a warpgroup: the M of its matrix instruction."""
PIECE = gl.constexpr(32)
"""Rows of V that `clear_tail` handles at a time."""


@gluon.jit
def _row_places(queries, group, tile_queries, FIRST_ROW: gl.constexpr, layout: gl.constexpr):
    """Query within the tile, head within the group, and whether there is such a row, of each row."""
    rows = FIRST_ROW + gl.arange(0, ROWS, layout)
    query = rows // group
    return query, rows - query * group, (query < tile_queries) & (query < queries)


@gluon.jit
def load_queries(Q, q_buffer, token, queries, kv_head, q_t, q_h, group, tile_queries, FIRST_ROW: gl.constexpr):
    """The warpgroup's rows of Q into its own buffer [ROWS, D]; zeros where there is no query."""
    D: gl.constexpr = q_buffer.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    query, head, alive = _row_places(queries, group, tile_queries, FIRST_ROW, gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, gl.SliceLayout(0, layout))
    offsets = (token + query).to(gl.int64) * q_t + (kv_head * group + head) * q_h
    q = gl.load(Q + offsets[:, None] + dims[None, :], mask=alive[:, None], other=0.0)
    q_buffer.store(q)
    fence_async_shared()
    tl.debug_barrier()


@gluon.jit
def store_rows(
    OUT, q_buffer, free, result, token, queries, kv_head, out_t, out_h, group, tile_queries, FIRST_ROW: gl.constexpr
):  # fmt: skip
    """Results [ROWS, D] to their tokens and heads, turned in the buffer of Q, which nobody needs any more."""
    D: gl.constexpr = q_buffer.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    tl.debug_barrier()
    q_buffer.store(result.to(q_buffer.dtype))
    tl.debug_barrier()
    turned = q_buffer.load(layout)
    fence_async_shared()
    mbarrier.arrive(free, count=1)
    query, head, alive = _row_places(queries, group, tile_queries, FIRST_ROW, gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, gl.SliceLayout(0, layout))
    offsets = (token + query).to(gl.int64) * out_t + (kv_head * group + head) * out_h
    gl.store(OUT + offsets[:, None] + dims[None, :], turned, mask=alive[:, None])


@gluon.jit
def clear_tail(v_buffers, stage, valid, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """Zeros into the rows of V from `valid` on: slots that no token filled may hold NaN, and 0 x NaN is NaN.

    Both warpgroups write the same; each waits for its own writes only.
    """
    PIECES: gl.constexpr = BLOCK_N // PIECE
    HALVES: gl.constexpr = D // HALF
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    pieces = v_buffers._reinterpret(v_buffers.dtype, [STAGES * HALVES * PIECES, PIECE, HALF], v_buffers.layout)
    rows = gl.arange(0, PIECE, gl.SliceLayout(1, layout))
    for piece in range(gl.maximum(valid, 0) // PIECE, PIECES):
        alive = (piece * PIECE + rows < valid)[:, None]
        for half in gl.static_range(HALVES):
            buffer = pieces.index((stage * HALVES + half) * PIECES + piece)
            v = buffer.load(layout)
            buffer.store(gl.where(alive, v, gl.zeros_like(v)))
    fence_async_shared()
    tl.debug_barrier()


@gluon.jit
def _step(
    q_buffer, rings, number, start, position, scale, p, maximum, total, acc,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr, PINGPONG: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Scores of the number-th loaded tile, whose first key is `start`, and values of the one before."""
    k_ring, v_ring = rings
    k_buffers, k_full, k_empty = k_ring
    v_buffers, v_full, v_empty = v_ring
    stage = number % STAGES
    before = (number - 1) % STAGES
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    mbarrier.wait(k_full.index(stage), (number // STAGES) & 1)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    if PINGPONG:
        total = await_turn(total, WHICH)
    s = warpgroup_mma(q_buffer, k_buffers.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), ((number - 1) // STAGES) & 1)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    acc = warpgroup_mma(unpack(p, v_buffers.dtype, p_layout), v_buffers.index(before), acc, is_async=True)
    if PINGPONG:
        total = pass_turn(total, WHICH)
    s = warpgroup_mma_wait(1, deps=(s,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    new_maximum, p = weights(s, maximum, position, start, scale, BLOCK_N, MASKED)
    shrink = gl.exp2(maximum - new_maximum)
    total = total * shrink + gl.sum(p, 1)
    total = after(total)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(v_empty.index(before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    p = pack(p, v_buffers.dtype)
    return p, new_maximum, total, acc


@gluon.jit
def _attend(
    q_buffer, rings, consumed, tiles, low, length, position, scale,
    BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, PINGPONG: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """(total, acc) of the rows over `tiles` tiles of keys, the last first, which is masked whether it needs it or not.

    Tiles below low + 1 are seen whole by every row.
    """
    k_ring, v_ring = rings
    k_buffers, k_full, k_empty = k_ring
    v_buffers, v_full, _ = v_ring
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    stage = consumed % STAGES
    start = (tiles - 1) * BLOCK_N
    mbarrier.wait(k_full.index(stage), (consumed // STAGES) & 1)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    s = warpgroup_mma(q_buffer, k_buffers.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    maximum = gl.full([ROWS], -1e30, gl.float32, gl.SliceLayout(1, s_layout))
    maximum, p = weights(s, maximum, position, start, scale, BLOCK_N, True)
    total = gl.sum(p, 1)
    p = pack(p, v_buffers.dtype)
    acc = gl.zeros([ROWS, D], gl.float32, o_layout)
    if tiles * BLOCK_N > length:
        mbarrier.wait(v_full.index(stage), (consumed // STAGES) & 1)
        clear_tail(v_buffers, stage, length - start, BLOCK_N, D, STAGES)
    whole = gl.maximum(low + 1, 0) // BLOCK_N
    masked = gl.maximum(tiles - whole, 1)
    for step in range(1, masked):
        p, maximum, total, acc = _step(
            q_buffer, rings, consumed + step, start - step * BLOCK_N, position, scale, p, maximum, total, acc,
            BLOCK_N, STAGES, True, PINGPONG, WHICH,
        )  # fmt: skip
    for step in range(masked, tiles):
        p, maximum, total, acc = _step(
            q_buffer, rings, consumed + step, start - step * BLOCK_N, position, scale, p, maximum, total, acc,
            BLOCK_N, STAGES, False, PINGPONG, WHICH,
        )  # fmt: skip
    return total, _last_values(v_ring, consumed + tiles - 1, p, acc, STAGES)


@gluon.jit
def _last_values(v_ring, number, p, acc, STAGES: gl.constexpr):
    v_buffers, v_full, v_empty = v_ring
    stage = number % STAGES
    mbarrier.wait(v_full.index(stage), (number // STAGES) & 1)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    acc = warpgroup_mma(unpack(p, v_buffers.dtype, p_layout), v_buffers.index(stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(v_empty.index(stage), count=1)
    return acc


@gluon.jit
def consume(
    Q, OUT, q_buffers, rings, work_ring, q_t, q_h, out_t, out_h, scale, group, tile_queries,
    BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, PINGPONG: gl.constexpr, GROUP: gl.constexpr,
    TMA_Q: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """All work of warpgroup WHICH of the program."""
    group = GROUP if TMA_Q else group  # a power of two: rows are cheap to divide anew, dear to keep
    _, _, empty = work_ring
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    count = 0
    consumed = 0
    if PINGPONG and WHICH == 1:
        pass_turn(gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout)), WHICH)
    tiles, token, queries, low, length, kv_head, _, _ = receive(work_ring, count, 4)
    while tiles > 0:
        q_buffer = q_buffers.index(count % WORK_SLOTS * 2 + WHICH)
        if not TMA_Q:
            load_queries(Q, q_buffer, token, queries, kv_head, q_t, q_h, group, tile_queries, WHICH * ROWS)
        query, _, _ = _row_places(queries, group, tile_queries, WHICH * ROWS, gl.SliceLayout(1, s_layout))
        total, acc = _attend(
            q_buffer, rings, consumed, tiles, low, length, low + query, scale, BLOCK_N, D, STAGES, PINGPONG, WHICH
        )  # fmt: skip
        factor = gl.convert_layout(1.0 / gl.where(total > 0, total, 1.0), gl.SliceLayout(1, o_layout))
        store_rows(
            OUT, q_buffer, empty.index(count % WORK_SLOTS), acc * factor[:, None], token, queries, kv_head, out_t,
            out_h, group, tile_queries, WHICH * ROWS,
        )  # fmt: skip
        consumed += tiles
        count += 1
        tiles, token, queries, low, length, kv_head, _, _ = receive(work_ring, count, 4)
    if PINGPONG and WHICH == 0:
        await_turn(gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout)), WHICH)
