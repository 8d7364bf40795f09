"""Prefill attention: chunks of query tokens of many sequences, causal, over a paged (or contiguous) KV cache.

A program takes one tile of query rows for one KV head: row r is query r // group of the tile and head r % group of the
group, so that K and V are loaded once for all heads that share them, by TMA where the cache allows it. Tiles that every
row sees whole take no mask. Late tiles of a sequence have the most keys and start first.

The sum over V runs a tile late: the tensor cores take the weights of the tile before, while this tile's scores go
through the softmax (the overlap inside a warp group of FlashAttention-3, section 3.2 of Shah et al. 2024).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from engine.attention.kernels.tiles import capped, computed, factor_of, row_offsets, soften, table_entries
from engine.attention.kernels.work import locate_tile


@triton.jit
def _load(base, offsets, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of K or of V [BLOCK_N, BLOCK_D] at `offsets` [BLOCK_N], zero beyond the head size."""
    dims = tl.arange(0, BLOCK_D)[None, :]
    if D == BLOCK_D:
        rows = tl.load(base + (offsets[:, None] + dims))
    else:
        rows = tl.load(base + (offsets[:, None] + dims), mask=dims < D, other=0.0)
    return rows


@triton.jit
def _bits(weights, like: tl.constexpr):
    """Weights in the type of V, as integers: a dot product whose left side a loop carries is otherwise taken through
    shared memory, and waited for, where one that is computed stays in registers."""
    if like.primitive_bitwidth == 32:
        bits = weights.to(like).to(tl.int32, bitcast=True)
    else:
        bits = weights.to(like).to(tl.int16, bitcast=True)
    return bits


@triton.jit
def _add(acc, shrink, bits, v):
    """acc of the tiles so far, shrunk, plus the weights (`_bits`) of one more tile times its V."""
    return tl.dot(bits.to(v.dtype, bitcast=True), v, acc * shrink[:, None], input_precision="ieee")


@triton.jit
def _matrix_row(entries, start, base_row, rows_b, block_size, PAGES: tl.constexpr):
    """Row of the tile at `start` in the matrix of a descriptor."""
    row = base_row + start
    if PAGES == "whole":
        row = entries * rows_b + start % block_size
    return row


@triton.jit
def _masked(scores, positions, start, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Scores [M, BLOCK_N] of the tile at `start`, -inf where the rows at `positions` do not see a key."""
    behind = positions[:, None] - (start + tl.arange(0, BLOCK_N))[None, :]
    visible = behind >= 0
    if WINDOW:
        visible = visible & (behind < window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _attend_tiles(
    q, maximum, total, shrink, bits, acc, at, positions, K, V, K_DESC, V_DESC, table, tile, end_tile, first, last,
    base_row, column, kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr, PAGES: tl.constexpr,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The state after the scores of tiles [tile, end_tile) and the V of the tile before each, which lies `at`.

    Every row sees every key unless MASKED. As in decode, table entries come a tile ahead of what they lead to.
    """
    rows = tl.arange(0, BLOCK_N)
    entries = table_entries(table, tile * BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
    for step in tl.range(tile, end_tile, num_stages=NUM_STAGES):
        start = step * BLOCK_N
        before = at
        if TMA:
            at = _matrix_row(entries, start, base_row, rows_b, block_size, PAGES)
            k = K_DESC.load([at, column])
            v = V_DESC.load([before, column])
        else:
            at = row_offsets(entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES)
            k = _load(K, at, D, BLOCK_D)
            v = _load(V, before, D, BLOCK_D)
        entries = table_entries(table, start + BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
        scores = tl.dot(q, tl.trans(computed(k, UPCAST)), input_precision="ieee")
        acc = _add(acc, shrink, bits, computed(v, UPCAST))
        if SOFT_CAP:
            scores = capped(scores * scale, soft_cap)
        if MASKED:
            scores = _masked(scores, positions, start, window, BLOCK_N, WINDOW)
        maximum, total, weights, shrink = soften(scores, maximum, total, factor_of(scale, SOFT_CAP))
        bits = _bits(weights, q.dtype)
    return maximum, total, shrink, bits, acc, at


@triton.jit
def _attend_rows(
    q, k, at, positions, low, high, K, V, K_DESC, V_DESC, table, base_row, column, kv_b, kv_t, rows_b, window,
    block_size, block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, TMA: tl.constexpr, PEEL: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """(total, acc) of query rows at `positions` within [low, high), high > 0, over all keys that they see.

    `k` is the first tile, loaded already from the rows `at`. With PEEL the tiles that every row sees whole come next,
    in a loop without masks. The V of the last tile, which may hold slots of nobody, is added after the loops, by
    clamped pointers; such K is masked.
    """
    first = 0
    if WINDOW:
        first = tl.maximum(low - window + 1, 0)
    last = high - 1
    tile = first // BLOCK_N
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SOFT_CAP:
        scores = capped(scores * scale, soft_cap)
    scores = _masked(scores, positions, tile * BLOCK_N, window, BLOCK_N, WINDOW)
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    maximum, total, weights, shrink = soften(scores, maximum, total, factor_of(scale, SOFT_CAP))
    bits = _bits(weights, q.dtype)
    rows = tl.arange(0, BLOCK_N)
    if TMA:
        entries = table_entries(table, tile * BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
        at = _matrix_row(entries, tile * BLOCK_N, base_row, rows_b, block_size, PAGES)
    tile += 1
    if PEEL:
        whole = tl.maximum((low + 1) // BLOCK_N, tile)
        maximum, total, shrink, bits, acc, at = _attend_tiles(
            q, maximum, total, shrink, bits, acc, at, positions, K, V, K_DESC, V_DESC, table, tile, whole, first, last,
            base_row, column, kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
            D, BLOCK_D, BLOCK_N, NUM_STAGES, PAGES, False, WINDOW, SOFT_CAP, TMA, UPCAST,
        )  # fmt: skip
        tile = whole
    maximum, total, shrink, bits, acc, at = _attend_tiles(
        q, maximum, total, shrink, bits, acc, at, positions, K, V, K_DESC, V_DESC, table, tile, last // BLOCK_N + 1,
        first, last, base_row, column, kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_N, NUM_STAGES, PAGES, True, WINDOW, SOFT_CAP, TMA, UPCAST,
    )  # fmt: skip
    if TMA:
        start = last // BLOCK_N * BLOCK_N
        entries = table_entries(table, start, rows, first, last, block_size, block_shift, PAGES)
        at = row_offsets(entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES)
    return total, _add(acc, shrink, bits, computed(_load(V, at, D, BLOCK_D), UPCAST))


@triton.jit
def _first_keys(
    K, table, low, high, kv_b, kv_t, window, block_size, block_shift,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PAGES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """K of the first tile that rows at [low, high) see, and where its rows lie. Loaded beside Q, not after it."""
    first = 0
    if WINDOW:
        first = tl.maximum(low - window + 1, 0)
    start = first // BLOCK_N * BLOCK_N
    rows = tl.arange(0, BLOCK_N)
    entries = table_entries(table, start, rows, first, high - 1, block_size, block_shift, PAGES)
    at = row_offsets(entries, start, rows, first, high - 1, kv_b, kv_t, block_size, PAGES)
    return _load(K, at, D, BLOCK_D), at


@triton.jit
def _tile_rows(tile, first_head, queries, group, BLOCK_M: tl.constexpr):
    """Query index in the sequence, query head, and whether there is such a row: [BLOCK_M] each."""
    rows = tl.arange(0, BLOCK_M)
    tile_queries = BLOCK_M // group
    query = tile * tile_queries + rows // group
    return query, first_head + rows % group, (rows < tile_queries * group) & (query < queries)


@triton.jit(do_not_specialize=["table_s", "rows_b", "num_seqs", "group", "window", "block_size", "block_shift"])
def prefill_kernel(
    Q, K, V, K_DESC, V_DESC, TABLE, QUERY_STARTS, SEQ_LENS, OUT, q_t, q_h, kv_b, kv_t, kv_h, table_s, out_t, out_h,
    rows_b, scale, soft_cap, num_seqs, group, window, block_size, block_shift,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, TMA: tl.constexpr, PEEL: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (bound on query tiles, KV heads). TABLE as in decode; with TMA, K_DESC and V_DESC show the cache as a
    matrix of kv_t elements a row, in which block b starts at row b * rows_b and KV head h at column h * kv_h."""
    tile_queries = BLOCK_M // group
    seq, first_item = locate_tile(QUERY_STARTS, num_seqs, tl.program_id(0), tile_queries)
    if seq >= num_seqs:
        return
    start = tl.load(QUERY_STARTS + seq)
    queries = tl.load(QUERY_STARTS + seq + 1) - start
    length = tl.load(SEQ_LENS + seq)
    tile = (queries + tile_queries - 1) // tile_queries - 1 - (tl.program_id(0) - first_item)
    kv_head = tl.program_id(1)
    query, heads, alive = _tile_rows(tile, kv_head * group, queries, group, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)[None, :]
    mask = alive[:, None] & (dims < D)
    tokens = (start + query).to(tl.int64)[:, None]
    out = OUT + tokens * out_t + heads[:, None] * out_h + dims
    low = length - queries + tile * tile_queries
    high = tl.minimum(low + tile_queries, length)
    if high <= 0:  # padded rows: nothing before them, not even themselves
        tl.store(out, tl.zeros([BLOCK_M, BLOCK_D], OUT.dtype.element_ty), mask=mask)
        return
    base = kv_head.to(tl.int64) * kv_h
    base_row = 0
    if PAGES == "contiguous":
        first_row = tl.load(TABLE + seq)
        base += first_row * kv_t
        base_row = first_row.to(tl.int32)
    table = TABLE + seq.to(tl.int64) * table_s
    k, at = _first_keys(K + base, table, low, high, kv_b, kv_t, window, block_size, block_shift,
                        D, BLOCK_D, BLOCK_N, PAGES, WINDOW)  # fmt: skip
    q = computed(tl.load(Q + tokens * q_t + heads[:, None] * q_h + dims, mask=mask, other=0.0), UPCAST)
    total, acc = _attend_rows(
        q, computed(k, UPCAST), at, length - queries + query, low, high, K + base, V + base, K_DESC, V_DESC, table,
        base_row, kv_head * kv_h, kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, WINDOW, SOFT_CAP, TMA, PEEL, UPCAST,
    )  # fmt: skip
    result = (acc / tl.where(total > 0, total, 1.0)[:, None]).to(OUT.dtype.element_ty)
    tl.store(out, result, mask=mask)
