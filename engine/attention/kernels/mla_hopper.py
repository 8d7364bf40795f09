"""Multi-head latent attention of a decode for Hopper (sm_90) in Gluon: a producer warp, two consumer warpgroups, wgmma.

The function of `mla.mla_decode_kernel` for DeepSeek's latent of 512 + 64 elements of two bytes. A program takes a piece
of one sequence for 64 query heads. The weighted sum of 64 x 512 float32 fills the registers of two warpgroups, so each
keeps half of its columns; both compute all scores, which costs products but no exchange: one's exponentials fill the
time of the other's products. A tile of 64 latents lies once in shared memory, as K and as V, and is brought in two
parts: the left half of V with the rotary elements, and the right half. A part is free when one warpgroup has its
scores and the other its values of it. The last tile of a piece comes first: the only one that may hold slots behind the
sequence, which are masked as K by selection and cleared as V.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from engine.attention.kernels.hopper_consumer import clear_tail
from engine.attention.kernels.hopper_producer import HALF, rows_of_boxes
from engine.attention.kernels.hopper_softmax import weights
from engine.attention.kernels.prefill_hopper import barriers

HEADS = gl.constexpr(64)
"""Query heads a program: the M of a warpgroup's matrix instruction."""
SIDE = gl.constexpr(256)
"""Columns of the weighted sum that a warpgroup keeps."""
RANK = gl.constexpr(512)
ROTARY = gl.constexpr(64)


@gluon.jit
def load_query(Q_DESC, q, ready, seq, first_head):
    """64 heads of one token; heads that there are not are zeros."""
    left, right, rotary = q
    mbarrier.expect(ready, HEADS * (RANK + ROTARY) * 2)
    for part in gl.static_range(SIDE // HALF):
        buffers = left._reinterpret(Q_DESC.dtype, [SIDE // HALF, 1, HEADS, HALF], Q_DESC.layout)
        tma.async_copy_global_to_shared(Q_DESC, [seq, first_head, part * HALF], ready, buffers.index(part))
        buffers = right._reinterpret(Q_DESC.dtype, [SIDE // HALF, 1, HEADS, HALF], Q_DESC.layout)
        tma.async_copy_global_to_shared(Q_DESC, [seq, first_head, SIDE + part * HALF], ready, buffers.index(part))
    buffers = rotary._reinterpret(Q_DESC.dtype, [1, 1, HEADS, HALF], Q_DESC.layout)
    tma.async_copy_global_to_shared(Q_DESC, [seq, first_head, RANK], ready, buffers.index(0))


@gluon.jit
def load_columns(
    KV_DESC, buffers, stage, ready, rows, column,
    COLUMNS: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, BOXES: gl.constexpr,
):  # fmt: skip
    """COLUMNS columns of a tile from `column` on into `stage` of buffers [STAGES, BLOCK_N, COLUMNS]."""
    HALVES: gl.constexpr = COLUMNS // HALF
    boxes = buffers._reinterpret(KV_DESC.dtype, [STAGES * HALVES * BOXES, BOX, HALF], KV_DESC.layout)
    for half in gl.static_range(HALVES):
        for box in gl.static_range(BOXES):
            piece = boxes.index((stage * HALVES + half) * BOXES + box)
            tma.async_copy_global_to_shared(KV_DESC, [rows[box], column + half * HALF], ready, piece)


@gluon.jit
def _produce(
    Q_DESC, KV_DESC, q, q_ready, rings, TABLE, seq, first_head, end_tile, tiles, last, table_s, rows_b, block_size,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr,
):  # fmt: skip
    """Q, then the tiles [end_tile - tiles, end_tile), the last first. Table entries are loaded a tile ahead."""
    left, left_full, left_empty, right, right_full, right_empty, rotary = rings
    BOXES: gl.constexpr = BLOCK_N // BOX
    table = TABLE + seq.to(gl.int64) * table_s
    if tiles > 0:
        load_query(Q_DESC, q, q_ready, seq, first_head)
    start = gl.maximum(end_tile - 1, 0) * BLOCK_N
    rows = rows_of_boxes(table, start, last, 0, rows_b, block_size, BOX, BOXES, PAGES)
    for number in range(tiles):
        stage = number % STAGES
        phase = ((number // STAGES) & 1) ^ 1
        mbarrier.wait(left_empty.index(stage), phase)
        ready = left_full.index(stage)
        mbarrier.expect(ready, BLOCK_N * (SIDE + ROTARY) * 2)
        load_columns(KV_DESC, left, stage, ready, rows, 0, SIDE, STAGES, BOX, BOXES)
        load_columns(KV_DESC, rotary, stage, ready, rows, RANK, ROTARY, STAGES, BOX, BOXES)
        mbarrier.wait(right_empty.index(stage), phase)
        ready = right_full.index(stage)
        mbarrier.expect(ready, BLOCK_N * SIDE * 2)
        load_columns(KV_DESC, right, stage, ready, rows, SIDE, SIDE, STAGES, BOX, BOXES)
        start = gl.maximum(start - BLOCK_N, 0)
        rows = rows_of_boxes(table, start, last, 0, rows_b, block_size, BOX, BOXES, PAGES)


@gluon.jit
def _scores(q, rings, number, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, WHICH: gl.constexpr):
    """Products of the heads with the number-th tile, [HEADS, BLOCK_N]; gives the other warpgroup's part free."""
    q_left, q_right, q_rotary = q
    left, left_full, left_empty, right, right_full, right_empty, rotary = rings
    stage = number % STAGES
    phase = (number // STAGES) & 1
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    zeros = gl.zeros([HEADS, BLOCK_N], gl.float32, layout)
    mbarrier.wait(left_full.index(stage), phase)
    s = warpgroup_mma(q_left, left.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma(q_rotary, rotary.index(stage).permute((1, 0)), s, is_async=True)
    mbarrier.wait(right_full.index(stage), phase)
    s = warpgroup_mma(q_right, right.index(stage).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    if WHICH == 0:
        mbarrier.arrive(right_empty.index(stage), count=1)
    else:
        mbarrier.arrive(left_empty.index(stage), count=1)
    return s


@gluon.jit
def _step(
    q, rings, number, start, position, scale, maximum, total, acc,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """(maximum, total, acc) after the number-th tile, whose first key is `start`."""
    left, _, left_empty, right, _, right_empty, _ = rings
    stage = number % STAGES
    s = _scores(q, rings, number, BLOCK_N, STAGES, WHICH)
    new_maximum, p = weights(s, maximum, position, start, scale, BLOCK_N, MASKED)
    shrink = gl.exp2(maximum - new_maximum)
    total = total * shrink + gl.sum(p, 1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    p = gl.convert_layout(p.to(left.dtype), p_layout, assert_trivial=True)
    values = left if WHICH == 0 else right
    empty = left_empty if WHICH == 0 else right_empty
    acc = warpgroup_mma(p, values.index(stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index(stage), count=1)
    return new_maximum, total, acc


@gluon.jit
def store_side(OUT, PART, LSE, maximum, total, acc, place, out_s, out_h, num_heads, WHICH: gl.constexpr):
    """Half WHICH of the columns: of a sequence in one piece its output, else the piece's part, as in decode."""
    seq, item, pieces, first_head = place
    row_layout: gl.constexpr = total.type.layout
    o_layout: gl.constexpr = acc.type.layout
    factor = gl.convert_layout(1.0 / gl.where(total > 0, total, 1.0), gl.SliceLayout(1, o_layout))
    acc = acc * factor[:, None]
    heads = first_head + gl.arange(0, HEADS, gl.SliceLayout(1, o_layout))
    columns = WHICH * SIDE + gl.arange(0, SIDE, gl.SliceLayout(0, o_layout))
    mask = (heads < num_heads)[:, None]
    if pieces == 1:
        at = seq.to(gl.int64) * out_s + heads * out_h
        gl.store(OUT + at[:, None] + columns[None, :], acc.to(OUT.dtype.element_ty), mask=mask)
    else:
        row = item.to(gl.int64) * num_heads + heads
        gl.store(PART + row[:, None] * RANK + columns[None, :], acc, mask=mask)
        if WHICH == 0:
            head = first_head + gl.arange(0, HEADS, row_layout)
            row = item.to(gl.int64) * num_heads + head
            gl.store(LSE + row, maximum + gl.log2(total), mask=head < num_heads)


@gluon.jit
def _consume(
    q, q_ready, rings, OUT, PART, LSE, seq, item, pieces, first_head, end_tile, tiles, length, out_s, out_h, num_heads,
    scale, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Half WHICH of the columns of the weighted sum."""
    left, left_full, _, right, right_full, _, _ = rings
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    if tiles > 0:
        mbarrier.wait(q_ready, 0)
        start = gl.maximum(end_tile - 1, 0) * BLOCK_N
        if start + BLOCK_N > length:
            mbarrier.wait(left_full.index(0), 0)
            mbarrier.wait(right_full.index(0), 0)
            clear_tail(left if WHICH == 0 else right, 0, length - start, BLOCK_N, SIDE, STAGES)
        row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
        position = gl.zeros([HEADS], gl.int32, row_layout) + (length - 1)
        maximum = gl.full([HEADS], -1e30, gl.float32, row_layout)
        total = gl.zeros([HEADS], gl.float32, row_layout)
        acc = gl.zeros([HEADS, SIDE], gl.float32, o_layout)
        maximum, total, acc = _step(
            q, rings, 0, start, position, scale, maximum, total, acc, BLOCK_N, STAGES, True, WHICH
        )  # fmt: skip
        for number in range(1, tiles):
            maximum, total, acc = _step(
                q, rings, number, start, position, scale, maximum, total, acc, BLOCK_N, STAGES, False, WHICH
            )  # fmt: skip
        place = (seq, item, pieces, first_head)
        store_side(OUT, PART, LSE, maximum, total, acc, place, out_s, out_h, num_heads, WHICH)


@gluon.jit
def work_of(ITEMS, SEQ_LENS, item, BLOCK_N: gl.constexpr, SPLIT: gl.constexpr):
    """(sequence, its pieces, last tile + 1, tiles, tokens of the sequence) of an item; no tiles: nothing to do."""
    seq = item
    pieces = 1
    tile = 0
    end_tile = 0
    if SPLIT:
        seq = gl.load(ITEMS + item * 4)
        tile = gl.load(ITEMS + item * 4 + 1)
        end_tile = gl.load(ITEMS + item * 4 + 2)
        pieces = gl.load(ITEMS + item * 4 + 3)
    alive = seq >= 0
    seq = gl.maximum(seq, 0)
    length = gl.load(SEQ_LENS + seq)
    if not SPLIT:
        end_tile = (length + BLOCK_N - 1) // BLOCK_N
        pieces = gl.maximum(1 - length, 1)  # 1, but not as a constant: Triton 3.6 passes none to other warps
    return seq, pieces, end_tile, gl.where(alive, gl.maximum(end_tile - tile, 1), 0), length


@gluon.jit(do_not_specialize=["table_s", "rows_b", "num_heads", "block_size"])
def mla_hopper_kernel(
    Q_DESC, KV_DESC, TABLE, SEQ_LENS, ITEMS, OUT, PART, LSE, table_s, out_s, out_h, rows_b, scale, num_heads,
    block_size,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr, SPLIT: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Grid, ITEMS, PART and LSE as in mla_decode_kernel; Q_DESC [S, H, latent] by boxes of 64 heads and columns,
    KV_DESC the cache as a matrix by boxes of BOX slots and 64 columns."""
    item = gl.program_id(1)
    seq, pieces, end_tile, tiles, length = work_of(ITEMS, SEQ_LENS, item, BLOCK_N, SPLIT)
    dtype: gl.constexpr = KV_DESC.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    q_left = gl.allocate_shared_memory(dtype, [HEADS, SIDE], layout)
    q_right = gl.allocate_shared_memory(dtype, [HEADS, SIDE], layout)
    q_rotary = gl.allocate_shared_memory(dtype, [HEADS, ROTARY], layout)
    q = (q_left, q_right, q_rotary)
    left = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, SIDE], layout)
    right = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, SIDE], layout)
    rotary = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, ROTARY], layout)
    q_full = barriers(1, 1)
    rings = (
        left, barriers(STAGES, 1), barriers(STAGES, 2), right, barriers(STAGES, 1), barriers(STAGES, 2), rotary
    )  # fmt: skip
    fence_async_shared()
    first_head = gl.program_id(0) * HEADS
    gl.warp_specialize(
        [
            (_consume, (q, q_full.index(0), rings, OUT, PART, LSE, seq, item, pieces, first_head, end_tile, tiles,
                        length, out_s, out_h, num_heads, scale, BLOCK_N, STAGES, 0)),
            (_consume, (q, q_full.index(0), rings, OUT, PART, LSE, seq, item, pieces, first_head, end_tile, tiles,
                        length, out_s, out_h, num_heads, scale, BLOCK_N, STAGES, 1)),
            (_produce, (Q_DESC, KV_DESC, q, q_full.index(0), rings, TABLE, seq, first_head, end_tile, tiles,
                        length - 1, table_s, rows_b, block_size, BLOCK_N, STAGES, BOX, PAGES)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
