"""The producer warp of the Hopper prefill kernel: finds query tiles, and brings their K and V into shared memory.

Work goes to the consumers as eight int32 in a ring of two slots, K and V tile by tile in rings of STAGES tiles. A tile
of BLOCK_N keys is BLOCK_N / BOX boxes of consecutive slots of one block, and two halves of 64 columns: in the 128-byte
swizzled layout a half is a run of 128-byte rows in which eight rows repeat the pattern, so that every box is a piece of
the tile by itself, whatever block it came from.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

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
def _send(work, full, empty, count, fields, layout: gl.constexpr):
    """Puts eight int32 into the slot of the count-th piece of work."""
    slot = count % WORK_SLOTS
    index = gl.arange(0, WORK_FIELDS, layout)
    value = gl.full([WORK_FIELDS], 0, gl.int32, layout)
    for field in gl.static_range(len(fields)):
        value = gl.where(index == field, fields[field], value)
    mbarrier.wait(empty.index(slot), ((count // WORK_SLOTS) & 1) ^ 1)
    work.index(slot).store(value)
    mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def _box_rows(
    table, start, last, base_row, rows_b, block_size, BOX: gl.constexpr, BOXES: gl.constexpr, PAGED: gl.constexpr
):  # fmt: skip
    """Matrix row of each box of the tile at `start`. Boxes beyond the block of position `last` repeat that block, so
    that no later entry of the table is read; without a table they may lie beyond the sequence."""
    rows = ()
    for box in gl.static_range(BOXES):
        position = start + box * BOX
        if PAGED:
            block = gl.minimum(position, last) // block_size
            slot = position - position // block_size * block_size
            row = gl.load(table + block) * rows_b + slot
        else:
            row = base_row + position
        rows = rows + (row,)
    return rows


@gluon.jit
def _load_tile(
    desc, buffers, full, empty, stage, phase, rows, column, BOX: gl.constexpr, BOXES: gl.constexpr
):  # fmt: skip
    """K or V of one tile into `stage`, when it is free; buffers [STAGES * 2 * BOXES, BOX, HALF]."""
    ready = full.index(stage)
    mbarrier.wait(empty.index(stage), phase ^ 1)
    mbarrier.expect(ready, BOX * BOXES * 2 * HALF * 2)
    for half in gl.static_range(2):
        for box in gl.static_range(BOXES):
            piece = buffers.index((stage * 2 + half) * BOXES + box)
            tma.async_copy_global_to_shared(desc, [rows[box], column + half * HALF], ready, piece)


@gluon.jit
def _load_keys(
    K_DESC, V_DESC, rings, table, tiles, last, base_row, column, rows_b, block_size, loaded,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGED: gl.constexpr,
):  # fmt: skip
    """K and V of a query tile, last tile of keys first; the number of tiles loaded so far."""
    k_buffers, v_buffers, k_full, k_empty, v_full, v_empty = rings
    BOXES: gl.constexpr = BLOCK_N // BOX
    k_boxes = k_buffers._reinterpret(K_DESC.dtype, [STAGES * 2 * BOXES, BOX, HALF], K_DESC.layout)
    v_boxes = v_buffers._reinterpret(V_DESC.dtype, [STAGES * 2 * BOXES, BOX, HALF], V_DESC.layout)
    start = (tiles - 1) * BLOCK_N
    rows = _box_rows(table, start, last, base_row, rows_b, block_size, BOX, BOXES, PAGED)
    for _ in range(tiles):
        stage = loaded % STAGES
        phase = (loaded // STAGES) & 1
        _load_tile(K_DESC, k_boxes, k_full, k_empty, stage, phase, rows, column, BOX, BOXES)
        start -= BLOCK_N
        ahead = _box_rows(table, gl.maximum(start, 0), last, base_row, rows_b, block_size, BOX, BOXES, PAGED)
        _load_tile(V_DESC, v_boxes, v_full, v_empty, stage, phase, rows, column, BOX, BOXES)
        rows = ahead
        loaded += 1
    return loaded


@gluon.jit
def produce(
    K_DESC, V_DESC, rings, work_ring, TABLE, QUERY_STARTS, SEQ_LENS, NEXT_ITEM, table_s, kv_h, rows_b, num_seqs,
    num_kv_heads, tile_queries, block_size,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, PAGED: gl.constexpr, DYNAMIC: gl.constexpr,
):  # fmt: skip
    """All work of this program. Items go head by head, sequence by sequence, the last query tile of each first."""
    work, work_full, work_empty = work_ring
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    fields: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    per_head = count_tiles(QUERY_STARTS, num_seqs, tile_queries, layout)
    item = gl.program_id(0)
    count = 0
    loaded = 0
    while item < per_head * num_kv_heads:
        kv_head = item // per_head
        seq, first_item = locate_tile(QUERY_STARTS, num_seqs, item % per_head, tile_queries, layout)
        start = gl.load(QUERY_STARTS + seq)
        queries = gl.load(QUERY_STARTS + seq + 1) - start
        length = gl.load(SEQ_LENS + seq)
        tile = (queries + tile_queries - 1) // tile_queries - 1 - (item % per_head - first_item)
        low = length - queries + tile * tile_queries
        high = gl.minimum(low + tile_queries, length)
        tiles = gl.maximum((high + BLOCK_N - 1) // BLOCK_N, 1)
        token = start + tile * tile_queries
        _send(work, work_full, work_empty, count, (tiles, token, queries - tile * tile_queries, low, length, kv_head), fields)
        base_row = 0
        if not PAGED:
            base_row = gl.load(TABLE + seq).to(gl.int32)
        loaded = _load_keys(
            K_DESC, V_DESC, rings, TABLE + seq.to(gl.int64) * table_s, tiles, gl.maximum(high - 1, 0), base_row,
            kv_head * kv_h, rows_b, block_size, loaded, BLOCK_N, STAGES, BOX, PAGED,
        )  # fmt: skip
        count += 1
        if DYNAMIC:
            item = gl.num_programs(0) + gl.atomic_add(NEXT_ITEM, 1, sem="relaxed")
        else:
            item += gl.num_programs(0)
    _send(work, work_full, work_empty, count, (0, 0, 0, 0, 0, 0), fields)
