"""Multi-head latent attention of a decode for Hopper (sm_90) in Gluon: a producer warp, two consumer warpgroups, wgmma.

The function of `mla.mla_decode_kernel` for DeepSeek's latent of 512 + 64 elements of two bytes. A program takes a piece
of one sequence for 64 query heads. The weighted sum of 64 x 512 float32 fills the registers of two warpgroups, so each
keeps half of its columns. Tiles of 64 latents go in pairs, so that no product is computed twice (the schedule of
FlashMLA, DeepSeek 2025): warpgroup 0 takes the scores of the even tiles, warpgroup 1 of the odd ones; each adds the
weighted values of both to its half of the columns, its own weights from registers, the other's from where the tile's
rotary elements were, which nobody needs after the scores. Maxima go from even to odd to even. A tile lies once in
shared memory, as K and as V. What is free when: the left half of V after warpgroup 0's values, the right half after
warpgroup 1's, weights with whichever half the other one reads last. The last tile of a piece comes first: the only one
that may hold slots behind the sequence, which are masked as K by selection and cleared as V.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from engine.attention.kernels.hopper_consumer import clear_tail
from engine.attention.kernels.hopper_producer import rows_of_boxes
from engine.attention.kernels.hopper_softmax import visible
from engine.attention.kernels.mla_pair_parts import (
    HEADS,
    ROTARY,
    SIDE,
    load_part,
    load_query,
    store_side,
    work_of,
)
from engine.attention.kernels.prefill_hopper import barriers


@gluon.jit
def _produce(
    Q_DESC, KV_DESC, q, q_ready, tiles, rings, TABLE, seq, first_head, end_tile, num_tiles, last, table_s, rows_b,
    block_size, BLOCK_N: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr,
):  # fmt: skip
    """Q, then the tiles from end_tile - 1 down. Table entries are loaded a tile ahead."""
    left_full, left_empty, right_full, right_empty = rings
    BOXES: gl.constexpr = BLOCK_N // BOX
    table = TABLE + seq.to(gl.int64) * table_s
    if num_tiles > 0:
        load_query(Q_DESC, q, q_ready, seq, first_head)
    start = gl.maximum(end_tile - 1, 0) * BLOCK_N
    rows = rows_of_boxes(table, start, last, 0, rows_b, block_size, BOX, BOXES, PAGES)
    for pair in range((num_tiles + 1) // 2):
        phase = pair & 1
        load_part(KV_DESC, tiles, left_empty, left_full, 0, phase, rows, True, False, BLOCK_N, BOX, BOXES)
        load_part(KV_DESC, tiles, right_empty, right_full, 0, phase, rows, False, True, BLOCK_N, BOX, BOXES)
        start = gl.maximum(start - BLOCK_N, 0)
        rows = rows_of_boxes(table, start, last, 0, rows_b, block_size, BOX, BOXES, PAGES)
        if 2 * pair + 1 < num_tiles:
            load_part(KV_DESC, tiles, left_empty, left_full, 1, phase, rows, True, True, BLOCK_N, BOX, BOXES)
            load_part(KV_DESC, tiles, right_empty, right_full, 1, phase, rows, False, False, BLOCK_N, BOX, BOXES)
        start = gl.maximum(start - BLOCK_N, 0)
        rows = rows_of_boxes(table, start, last, 0, rows_b, block_size, BOX, BOXES, PAGES)


@gluon.jit
def _stages(pair):
    """0 and 1, computed anew for each pair: as constants their addresses would be kept in registers, and spilled."""
    first = pair >> 30
    return first, first + 1


@gluon.jit
def _scores(q, tiles, rings, phase, stage, BLOCK_N: gl.constexpr):
    """Products of the heads with the tile in `stage`, [HEADS, BLOCK_N]; rotary elements come with either half."""
    q_left, q_right, q_rotary = q
    left, right, rotary = tiles
    left_full, _, right_full, _ = rings
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    zeros = gl.zeros([HEADS, BLOCK_N], gl.float32, layout)
    mbarrier.wait(left_full.index(stage), phase)
    s = warpgroup_mma(q_left, left.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(right_full.index(stage), phase)
    s = warpgroup_mma(q_right, right.index(stage).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(q_rotary, rotary.index(stage).permute((1, 0)), s, is_async=True)
    return warpgroup_mma_wait(0, deps=(s,))


@gluon.jit
def _shrunk(acc, factor):
    """Rows of acc times a factor of the scores' layout."""
    return acc * gl.convert_layout(factor, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def _publish(values, buffer, ready):
    """Into shared memory, for the other warpgroup and its matrix instructions."""
    buffer.store(values)
    fence_async_shared()
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _even(
    q, tiles, rings, exchange, pair, start, length, scale, maximum, total, acc,
    BLOCK_N: gl.constexpr, PAIR: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Warpgroup 0: scores of the even tile, left half of the values of both."""
    left, _, rotary = tiles
    left_full, left_empty, _, _ = rings
    maxima, even_maximum, even_weights, odd_weights = exchange
    phase = pair & 1
    first, second = _stages(pair)
    s = _scores(q, tiles, rings, phase, first, BLOCK_N)
    if MASKED:
        keys = start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s.type.layout))
        s = visible(s, keys, gl.zeros_like(maximum).to(gl.int32) + (length - 1))
    here = gl.maximum(maximum, gl.max(s, 1) * scale)
    _publish(here, maxima.index(0), even_maximum)
    p = gl.exp2(s * scale - here[:, None])
    p16 = p.to(left.dtype)
    _publish(p16, rotary.index(first), even_weights)
    shrink = gl.exp2(maximum - here)
    acc = _shrunk(acc, shrink)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    acc = warpgroup_mma(gl.convert_layout(p16, p_layout, assert_trivial=True), left.index(first), acc, is_async=True)
    total = total * shrink + gl.sum(p, 1)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(left_empty.index(first), count=1)
    if PAIR:
        mbarrier.wait(odd_weights, phase)
        both = maxima.index(1).load(maximum.type.layout)
        shrink = gl.exp2(here - both)
        total = total * shrink
        acc = _shrunk(acc, shrink)
        mbarrier.wait(left_full.index(second), phase)
        acc = warpgroup_mma(rotary.index(second), left.index(second), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(left_empty.index(second), count=1)
        here = both
    return here, total, acc


@gluon.jit
def _odd(
    q, tiles, rings, exchange, pair, scale, maximum, total, acc, BLOCK_N: gl.constexpr, PAIR: gl.constexpr
):  # fmt: skip
    """Warpgroup 1: scores of the odd tile, right half of the values of both. Values of the even tile run while the
    weights of the odd one are made."""
    _, right, rotary = tiles
    _, _, right_full, right_empty = rings
    maxima, even_maximum, even_weights, odd_weights = exchange
    phase = pair & 1
    first, second = _stages(pair)
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    s = gl.zeros([HEADS, BLOCK_N], gl.float32, s_layout)
    if PAIR:
        s = _scores(q, tiles, rings, phase, second, BLOCK_N)
    mbarrier.wait(even_maximum, phase)
    even = maxima.index(0).load(maximum.type.layout)
    acc = _shrunk(acc, gl.exp2(maximum - even))
    mbarrier.wait(even_weights, phase)
    mbarrier.wait(right_full.index(first), phase)
    acc = warpgroup_mma(rotary.index(first), right.index(first), acc, is_async=True)
    if PAIR:
        here = gl.maximum(even, gl.max(s, 1) * scale)
        p = gl.exp2(s * scale - here[:, None])
        p16 = p.to(right.dtype)
        maxima.index(1).store(here)
        _publish(p16, rotary.index(second), odd_weights)
        total = total * gl.exp2(maximum - here) + gl.sum(p, 1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(right_empty.index(first), count=1)
        acc = _shrunk(acc, gl.exp2(even - here))
        p_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
        acc = warpgroup_mma(
            gl.convert_layout(p16, p_layout, assert_trivial=True), right.index(second), acc, is_async=True
        )
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(right_empty.index(second), count=1)
    else:
        here = even
        total = total * gl.exp2(maximum - here)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(right_empty.index(first), count=1)
    return here, total, acc


@gluon.jit
def _pair(
    q, tiles, rings, exchange, pair, start, length, scale, maximum, total, acc,
    BLOCK_N: gl.constexpr, PAIR: gl.constexpr, MASKED: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """The pair-th pair of tiles, or with PAIR off the last tile of an odd number; `start` is the first key of all."""
    if WHICH == 0:
        first = start - 2 * pair * BLOCK_N
        maximum, total, acc = _even(
            q, tiles, rings, exchange, pair, first, length, scale, maximum, total, acc, BLOCK_N, PAIR, MASKED
        )  # fmt: skip
    else:
        maximum, total, acc = _odd(q, tiles, rings, exchange, pair, scale, maximum, total, acc, BLOCK_N, PAIR)
    return maximum, total, acc


@gluon.jit
def _consume(
    q, q_ready, tiles, rings, exchange, sums, OUT, PART, LSE, place, end_tile, num_tiles, length, out_s, out_h,
    num_heads, scale, BLOCK_N: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Half WHICH of the columns of the weighted sum."""
    left, right, _ = tiles
    left_full, _, right_full, _ = rings
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    if num_tiles > 0:
        mbarrier.wait(q_ready, 0)
        start = gl.maximum(end_tile - 1, 0) * BLOCK_N
        if start + BLOCK_N > length:
            mbarrier.wait((left_full if WHICH == 0 else right_full).index(0), 0)
            clear_tail(left if WHICH == 0 else right, 0, length - start, BLOCK_N, SIDE, 2)
        maximum = gl.full([HEADS], -1e30, gl.float32, row_layout)
        total = gl.zeros([HEADS], gl.float32, row_layout)
        acc = gl.zeros([HEADS, SIDE], gl.float32, o_layout)
        pairs = num_tiles // 2
        masked = gl.minimum(pairs, 1)
        for pair in range(masked):
            maximum, total, acc = _pair(
                q, tiles, rings, exchange, pair, start, length, scale, maximum, total, acc, BLOCK_N, True, True, WHICH
            )  # fmt: skip
        for pair in range(masked, pairs):
            maximum, total, acc = _pair(
                q, tiles, rings, exchange, pair, start, length, scale, maximum, total, acc, BLOCK_N, True, False, WHICH
            )  # fmt: skip
        if num_tiles % 2 == 1:
            maximum, total, acc = _pair(
                q, tiles, rings, exchange, pairs, start, length, scale, maximum, total, acc, BLOCK_N, False, True, WHICH
            )  # fmt: skip
        totals, told = sums
        totals.index(WHICH).store(total)
        mbarrier.arrive(told.index(WHICH), count=1)
        mbarrier.wait(told.index(1 - WHICH), 0)
        total = total + totals.index(1 - WHICH).load(row_layout)
        store_side(OUT, PART, LSE, maximum, total, acc, place, out_s, out_h, num_heads, WHICH)


@gluon.jit(do_not_specialize=["table_s", "rows_b", "num_heads", "block_size"])
def mla_pair_kernel(
    Q_DESC, KV_DESC, TABLE, SEQ_LENS, ITEMS, OUT, PART, LSE, table_s, out_s, out_h, rows_b, scale, num_heads,
    block_size,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr, SPLIT: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Grid, ITEMS, PART and LSE as in mla_decode_kernel; Q_DESC [S, H, latent] by boxes of 64 heads and columns,
    KV_DESC the cache as a matrix by boxes of BOX slots and 64 columns."""
    gl.static_assert(STAGES == 2)
    item = gl.program_id(1)
    seq, pieces, end_tile, num_tiles, length = work_of(ITEMS, SEQ_LENS, item, BLOCK_N, SPLIT)
    dtype: gl.constexpr = KV_DESC.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    q_left = gl.allocate_shared_memory(dtype, [HEADS, SIDE], layout)
    q_right = gl.allocate_shared_memory(dtype, [HEADS, SIDE], layout)
    q_rotary = gl.allocate_shared_memory(dtype, [HEADS, ROTARY], layout)
    q = (q_left, q_right, q_rotary)
    left = gl.allocate_shared_memory(dtype, [2, BLOCK_N, SIDE], layout)
    right = gl.allocate_shared_memory(dtype, [2, BLOCK_N, SIDE], layout)
    rotary = gl.allocate_shared_memory(dtype, [2, BLOCK_N, ROTARY], layout)
    tiles = (left, right, rotary)
    q_full = barriers(1, 1)
    rings = (barriers(2, 1), barriers(2, 1), barriers(2, 1), barriers(2, 1))
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    maxima = gl.allocate_shared_memory(gl.float32, [2, HEADS], vector)
    totals = gl.allocate_shared_memory(gl.float32, [2, HEADS], vector)
    handed = barriers(3, 1)
    exchange = (maxima, handed.index(0), handed.index(1), handed.index(2))
    sums = (totals, barriers(2, 1))
    fence_async_shared()
    first_head = gl.program_id(0) * HEADS
    place = (seq, item, pieces, first_head)
    gl.warp_specialize(
        [
            (_consume, (q, q_full.index(0), tiles, rings, exchange, sums, OUT, PART, LSE, place, end_tile, num_tiles,
                        length, out_s, out_h, num_heads, scale, BLOCK_N, 0)),
            (_consume, (q, q_full.index(0), tiles, rings, exchange, sums, OUT, PART, LSE, place, end_tile, num_tiles,
                        length, out_s, out_h, num_heads, scale, BLOCK_N, 1)),
            (_produce, (Q_DESC, KV_DESC, q, q_full.index(0), tiles, rings, TABLE, seq, first_head, end_tile, num_tiles,
                        length - 1, table_s, rows_b, block_size, BLOCK_N, BOX, PAGES)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
