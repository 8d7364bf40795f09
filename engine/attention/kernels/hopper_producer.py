"""The producer warps of the Hopper prefill kernel: one finds query tiles and brings their Q and K, one brings their V.

Work goes to the other warps as eight int32 in a ring of two slots, beside Q; K and V come tile by tile in rings of
STAGES tiles, the last tile of a sequence first. A tile of BLOCK_N keys is BLOCK_N / BOX boxes of consecutive slots of
one block, by D / 64 halves of 64 columns: in the 128-byte swizzled layout a half is a run of 128-byte rows in which
eight rows repeat the pattern, so that every box is a piece of the tile by itself, whatever block it came from.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

LENGTHS = gl.constexpr(128)
WORK_SLOTS = gl.constexpr(2)
WORK_FIELDS = gl.constexpr(8)
HALF = gl.constexpr(64)
"""Columns of a 128-byte row of two-byte elements."""


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _tiles_of(query_starts, num_seqs, group, tile_queries, layout: gl.constexpr):
    """Query tiles of the sequences [group, group + LENGTHS)."""
    seqs = group + gl.arange(0, LENGTHS, layout)
    alive = seqs < num_seqs
    starts = gl.load(query_starts + seqs, mask=alive, other=0)
    stops = gl.load(query_starts + seqs + 1, mask=alive, other=0)
    return (stops - starts + tile_queries - 1) // tile_queries, alive


@gluon.jit
def count_tiles(query_starts, num_seqs, tile_queries, layout: gl.constexpr):
    """Query tiles of all sequences, for one KV head."""
    total = 0
    for group in range(0, num_seqs, LENGTHS):
        tiles, _ = _tiles_of(query_starts, num_seqs, group, tile_queries, layout)
        total += gl.sum(tiles, 0)
    return total


@gluon.jit
def locate_tile(query_starts, num_seqs, item, tile_queries, layout: gl.constexpr):
    """(sequence, its first item) of query tile `item`, which exists."""
    seq = 0
    first_item = 0
    end = 0
    for group in range(0, num_seqs, LENGTHS):
        tiles, alive = _tiles_of(query_starts, num_seqs, group, tile_queries, layout)
        ends = end + gl.associative_scan(tiles, 0, _add)
        before = (ends <= item) & alive
        seq += gl.sum(before.to(gl.int32), 0)
        first_item = gl.maximum(first_item, gl.max(gl.where(before, ends, 0), 0))
        end = gl.max(ends, 0)
    return seq, first_item


@gluon.jit
def _send(
    Q_DESC, q_buffers, work_ring, count, fields, GROUP: gl.constexpr, TMA_Q: gl.constexpr
):  # fmt: skip
    """The count-th piece of work into its slot: `fields`, int32 each, and, with TMA_Q, its rows of Q."""
    work, full, empty = work_ring
    slot = count % WORK_SLOTS
    ready = full.index(slot)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    index = gl.arange(0, WORK_FIELDS, layout)
    value = gl.full([WORK_FIELDS], 0, gl.int32, layout)
    for field in gl.static_range(len(fields)):
        value = gl.where(index == field, fields[field], value)
    mbarrier.wait(empty.index(slot), ((count // WORK_SLOTS) & 1) ^ 1)
    work.index(slot).store(value)
    tl.debug_barrier()
    if TMA_Q:
        BYTES: gl.constexpr = 2 * q_buffers.shape[1] * q_buffers.shape[2] * 2
        QUERIES: gl.constexpr = q_buffers.shape[1] // GROUP
        shape: gl.constexpr = [q_buffers.shape[0], QUERIES, GROUP, q_buffers.shape[2]]
        tiles = q_buffers._reinterpret(Q_DESC.dtype, shape, Q_DESC.layout)
        mbarrier.expect(ready, BYTES)
        for which in gl.static_range(2):
            place = [fields[1] + which * QUERIES, fields[5] * GROUP, 0]
            tma.async_copy_global_to_shared(Q_DESC, place, ready, tiles.index(slot * 2 + which))
    else:
        mbarrier.arrive(ready, count=1)


@gluon.jit
def _field(fields, index, which: gl.constexpr):
    return gl.sum(gl.where(index == which, fields, 0), 0)


@gluon.jit
def receive(work_ring, count, WARPS: gl.constexpr):
    """(tiles, token, queries, low, length, KV head, sequence, base row) of the count-th piece of work; no tiles: the
    end."""
    work, full, _ = work_ring
    layout: gl.constexpr = gl.BlockedLayout([WORK_FIELDS], [32], [WARPS], [0])
    slot = count % WORK_SLOTS
    mbarrier.wait(full.index(slot), (count // WORK_SLOTS) & 1)
    fields = work.index(slot).load(layout)
    index = gl.arange(0, WORK_FIELDS, layout)
    return (
        _field(fields, index, 0),
        _field(fields, index, 1),
        _field(fields, index, 2),
        _field(fields, index, 3),
        _field(fields, index, 4),
        _field(fields, index, 5),
        _field(fields, index, 6),
        _field(fields, index, 7),
    )


@gluon.jit
def rows_of_boxes(
    table, start, last, base_row, rows_b, block_size, BOX: gl.constexpr, BOXES: gl.constexpr, PAGES: gl.constexpr
):  # fmt: skip
    """Matrix row of each box of the tile at `start`. Boxes beyond the block of position `last` repeat that block, so
    that no later entry of the table is read, and none at all for `last` < 0; without a table they may lie beyond the
    sequence."""
    rows = ()
    for box in gl.static_range(BOXES):
        position = start + box * BOX
        if PAGES == "contiguous":
            row = base_row + position
        elif PAGES == "boxes":
            block = gl.maximum(gl.minimum(position, last), 0) // BOX
            row = gl.load(table + block, mask=last >= 0, other=0) * rows_b
        else:
            block = gl.maximum(gl.minimum(position, last), 0) // block_size
            slot = position - position // block_size * block_size
            row = gl.load(table + block, mask=last >= 0, other=0) * rows_b + slot
        rows = rows + (row,)  # type: ignore[assignment]  # noqa: RUF005 - Triton has no starred tuples
    return rows


@gluon.jit
def _load_tile(
    desc, buffers, full, empty, stage, phase, rows, column,
    BOX: gl.constexpr, BOXES: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    """K or V of one tile into `stage`, when it is free; buffers [STAGES * HALVES * BOXES, BOX, HALF]."""
    ready = full.index(stage)
    mbarrier.wait(empty.index(stage), phase ^ 1)
    mbarrier.expect(ready, BOX * BOXES * HALVES * HALF * 2)
    for half in gl.static_range(HALVES):
        for box in gl.static_range(BOXES):
            piece = buffers.index((stage * HALVES + half) * BOXES + box)
            tma.async_copy_global_to_shared(desc, [rows[box], column + half * HALF], ready, piece)


@gluon.jit
def _load_ring(
    desc, ring, table, tiles, last, base_row, column, rows_b, block_size, loaded,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr,
):  # fmt: skip
    """K or V of a query tile, last tile of keys first; the number of tiles loaded so far.

    Table entries are loaded before the wait for a free stage, so that their latency is not added to it.
    """
    buffers, full, empty = ring
    BOXES: gl.constexpr = BLOCK_N // BOX
    HALVES: gl.constexpr = buffers.shape[2] // HALF
    boxes = buffers._reinterpret(desc.dtype, [STAGES * HALVES * BOXES, BOX, HALF], desc.layout)
    start = (tiles - 1) * BLOCK_N
    rows = rows_of_boxes(table, start, last, base_row, rows_b, block_size, BOX, BOXES, PAGES)
    for _ in range(tiles):
        _load_tile(
            desc, boxes, full, empty, loaded % STAGES, (loaded // STAGES) & 1, rows, column, BOX, BOXES, HALVES
        )  # fmt: skip
        start = gl.maximum(start - BLOCK_N, 0)
        rows = rows_of_boxes(table, start, last, base_row, rows_b, block_size, BOX, BOXES, PAGES)
        loaded += 1
    return loaded


@gluon.jit
def _place(QUERY_STARTS, SEQ_LENS, item, num_seqs, tile_queries, layout: gl.constexpr):
    """(sequence, its first token, query tokens, length, query tile) of query tile `item` of a KV head."""
    seq, first_item = locate_tile(QUERY_STARTS, num_seqs, item, tile_queries, layout)
    start = gl.load(QUERY_STARTS + seq)
    queries = gl.load(QUERY_STARTS + seq + 1) - start
    tile = (queries + tile_queries - 1) // tile_queries - 1 - (item - first_item)
    return seq, start, queries, gl.load(SEQ_LENS + seq), tile


@gluon.jit
def produce_keys(
    Q_DESC, K_DESC, q_buffers, k_ring, work_ring, TABLE, QUERY_STARTS, SEQ_LENS, NEXT_ITEM, table_s, kv_h, rows_b,
    num_seqs, num_kv_heads, tile_queries, block_size,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr, DYNAMIC: gl.constexpr,
    GROUP: gl.constexpr, TMA_Q: gl.constexpr,
):  # fmt: skip
    """All work of this program, its Q and K. Items go head by head, sequence by sequence, the last query tile of each
    first."""
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    per_head = count_tiles(QUERY_STARTS, num_seqs, tile_queries, layout)
    item = gl.program_id(0)
    count = 0
    loaded = 0
    while item < per_head * num_kv_heads:
        kv_head = item // per_head
        seq, start, queries, length, tile = _place(
            QUERY_STARTS, SEQ_LENS, item % per_head, num_seqs, tile_queries, layout
        )  # fmt: skip
        first = tile * tile_queries
        low = length - queries + first
        high = gl.minimum(low + tile_queries, length)
        tiles = gl.maximum((high + BLOCK_N - 1) // BLOCK_N, 1)
        base_row = 0
        if PAGES == "contiguous":
            base_row = gl.load(TABLE + seq).to(gl.int32)
        fields = (tiles, start + first, queries - first, low, length, kv_head, seq, base_row)
        _send(Q_DESC, q_buffers, work_ring, count, fields, GROUP, TMA_Q)
        loaded = _load_ring(
            K_DESC, k_ring, TABLE + seq.to(gl.int64) * table_s, tiles, high - 1, base_row, kv_head * kv_h, rows_b,
            block_size, loaded, BLOCK_N, STAGES, BOX, PAGES,
        )  # fmt: skip
        count += 1
        if DYNAMIC:
            item = gl.num_programs(0) + gl.atomic_add(NEXT_ITEM, 1, sem="relaxed")
        else:
            item += gl.num_programs(0)
    _send(Q_DESC, q_buffers, work_ring, count, (0, 0, 0, 0, 0, 0, 0, 0), GROUP, False)


@gluon.jit
def produce_values(
    V_DESC, v_ring, work_ring, TABLE, table_s, kv_h, rows_b, tile_queries, block_size,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGES: gl.constexpr,
):  # fmt: skip
    """V of all work of this program."""
    count = 0
    loaded = 0
    tiles, _, _, low, length, kv_head, seq, base_row = receive(work_ring, count, 1)
    while tiles > 0:
        _, _, empty = work_ring
        mbarrier.arrive(empty.index(count % WORK_SLOTS), count=1)
        loaded = _load_ring(
            V_DESC, v_ring, TABLE + seq.to(gl.int64) * table_s, tiles, gl.minimum(low + tile_queries, length) - 1,
            base_row, kv_head * kv_h, rows_b, block_size, loaded, BLOCK_N, STAGES, BOX, PAGES,
        )  # fmt: skip
        count += 1
        tiles, _, _, low, length, kv_head, seq, base_row = receive(work_ring, count, 1)
