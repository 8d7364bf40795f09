"""Loads, stores and shares of the decode over latents for Hopper in Gluon: all but its products."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from engine.attention.kernels.hopper_producer import HALF

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
def load_part(
    KV_DESC, tiles, empty, full, stage, phase, rows,
    LEFT: gl.constexpr, WITH_ROTARY: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr, BOXES: gl.constexpr,
):  # fmt: skip
    """The left or the right half of V into its stage, when it is free; of one of them the rotary elements, too."""
    left, right, rotary = tiles
    mbarrier.wait(empty.index(stage), phase ^ 1)
    ready = full.index(stage)
    COLUMNS: gl.constexpr = SIDE + ROTARY if WITH_ROTARY else SIDE
    mbarrier.expect(ready, BLOCK_N * COLUMNS * 2)
    if LEFT:
        load_columns(KV_DESC, left, stage, ready, rows, 0, SIDE, 2, BOX, BOXES)
    else:
        load_columns(KV_DESC, right, stage, ready, rows, SIDE, SIDE, 2, BOX, BOXES)
    if WITH_ROTARY:
        load_columns(KV_DESC, rotary, stage, ready, rows, RANK, ROTARY, 2, BOX, BOXES)


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
