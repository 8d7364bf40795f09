"""Prefill attention: chunks of query tokens of many sequences, causal, over a paged (or contiguous) KV cache.

A program takes one tile of query rows for one KV head: row r is query r // group of the tile and head r % group of the
group, so that K and V are loaded once for all heads that share them. Keys come in three stretches: tiles that start
before some row's window, tiles that every row sees whole (no mask, K and V by TMA where the cache allows it), and the
tiles of the causal diagonal or of a partly filled last block. Late tiles of a sequence have the most keys and start
first.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from engine.attention.kernels.fp8 import unpacked
from engine.attention.kernels.tiles import attend, computed_query, row_offsets, table_entries
from engine.attention.kernels.work import locate_tile


@triton.jit
def _load_tile(
    K, V, K_DESC, V_DESC, offsets, row, column, D: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr,
    FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """K and V [BLOCK_N, BLOCK_D]: by descriptor from (row, column) of the cache seen as a matrix, or by pointers."""
    if TMA:
        k = K_DESC.load([row, column])
        v = V_DESC.load([row, column])
    elif D == BLOCK_D:
        k = tl.load(K + offsets)
        v = tl.load(V + offsets)
    else:
        mask = tl.arange(0, BLOCK_D)[None, :] < D
        k = tl.load(K + offsets, mask=mask, other=0)
        v = tl.load(V + offsets, mask=mask, other=0)
    if FP8:
        k = unpacked(k, NATIVE)
        v = unpacked(v, NATIVE)
    return k, v


@triton.jit
def attend_tiles(
    q, maximum, total, acc, positions, K, V, K_DESC, V_DESC, table, tile, end_tile, first, last, base_row, column,
    kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr, PAGES: tl.constexpr,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
    FP8: tl.constexpr = False, NATIVE: tl.constexpr = False,
):  # fmt: skip
    """(maximum, total, acc) after the tiles [tile, end_tile), of which every row sees every key unless MASKED.

    As in decode, table entries are loaded a tile ahead of the K and V that they lead to.
    """
    rows = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)[None, :]
    entries = table_entries(table, tile * BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
    for step in tl.range(tile, end_tile, num_stages=NUM_STAGES):
        start = step * BLOCK_N
        offsets = dims
        row = base_row + start
        if not TMA:
            at = row_offsets(entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES, MASKED)
            offsets = at[:, None] + dims
        elif PAGES == "whole":
            row = entries * rows_b + start % block_size
        entries = table_entries(table, start + BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
        k, v = _load_tile(K, V, K_DESC, V_DESC, offsets, row, column, D, BLOCK_D, TMA, FP8, NATIVE)
        keys = (start + rows)[None, :]
        visible = keys <= positions[:, None]
        if WINDOW:
            visible = visible & (keys > positions[:, None] - window)
        maximum, total, acc = attend(
            q, k, v, maximum, total, acc, visible, scale, soft_cap, MASKED, SOFT_CAP, UPCAST
        )  # fmt: skip
    return maximum, total, acc


@triton.jit
def _stretches(low, high, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Of rows at positions [low, high): first visible key, first tile, first and last end of the whole tiles, end.

    Tiles [first, whole) and [whole_end, end) need a mask. Without a window the first stretch is empty.
    """
    first = 0
    whole = 0
    if WINDOW:
        first = tl.maximum(low - window + 1, 0)
        whole = (tl.maximum(high - window, 0) + BLOCK_N - 1) // BLOCK_N
    end = (tl.maximum(high, 0) + BLOCK_N - 1) // BLOCK_N
    whole = tl.minimum(whole, end)
    whole_end = tl.maximum(tl.maximum(low + 1, 0) // BLOCK_N, whole)
    return first, first // BLOCK_N, whole, whole_end, end


@triton.jit
def _attend_rows(
    q, positions, low, high, K, V, K_DESC, V_DESC, table, base_row, column, kv_b, kv_t, rows_b, window, block_size,
    block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
    FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """(total, acc) of query rows at `positions` within [low, high) over all keys that they see."""
    first, tile, whole, whole_end, end = _stretches(low, high, window, BLOCK_N, WINDOW)
    last = tl.maximum(high - 1, 0)  # nothing is attended to before the first token, but an entry is looked at
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if WINDOW:
        maximum, total, acc = attend_tiles(
            q, maximum, total, acc, positions, K, V, K_DESC, V_DESC, table, tile, whole, first, last, base_row, column,
            kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
            D, BLOCK_D, BLOCK_N, NUM_STAGES, PAGES, True, WINDOW, SOFT_CAP, False, UPCAST, FP8, NATIVE,
        )  # fmt: skip
    maximum, total, acc = attend_tiles(
        q, maximum, total, acc, positions, K, V, K_DESC, V_DESC, table, whole, whole_end, first, last, base_row, column,
        kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_N, NUM_STAGES, PAGES, False, WINDOW, SOFT_CAP, TMA, UPCAST, FP8, NATIVE,
    )  # fmt: skip
    maximum, total, acc = attend_tiles(
        q, maximum, total, acc, positions, K, V, K_DESC, V_DESC, table, whole_end, end, first, last, base_row, column,
        kv_b, kv_t, rows_b, window, block_size, block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_N, NUM_STAGES, PAGES, True, WINDOW, SOFT_CAP, False, UPCAST, FP8, NATIVE,
    )  # fmt: skip
    return total, acc


@triton.jit
def _tile_rows(tile, first_head, queries, group, BLOCK_M: tl.constexpr):
    """Query index in the sequence, query head, and whether there is such a row: [BLOCK_M] each."""
    rows = tl.arange(0, BLOCK_M)
    tile_queries = BLOCK_M // group
    query = tile * tile_queries + rows // group
    return query, first_head + rows % group, (rows < tile_queries * group) & (query < queries)


@triton.jit(do_not_specialize=["table_s", "rows_b", "num_seqs", "group", "window", "block_size", "block_shift"])
def prefill_kernel(
    Q, K, V, K_DESC, V_DESC, K_SCALE, V_SCALE, TABLE, QUERY_STARTS, SEQ_LENS, OUT, q_t, q_h, kv_b, kv_t, kv_h, table_s,
    out_t, out_h, rows_b, scale, soft_cap, num_seqs, group, window, block_size, block_shift,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
    FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Grid (bound on query tiles, KV heads). TABLE as in decode; with TMA, K_DESC and V_DESC show the cache as a
    matrix of kv_t elements a row, in which block b starts at row b * rows_b and KV head h at column h * kv_h. FP8: K
    and V are bytes of E4M3, K_SCALE and V_SCALE float32 [KH]."""
    tile_queries = BLOCK_M // group
    seq, first_item = locate_tile(QUERY_STARTS, num_seqs, tl.program_id(0), tile_queries)
    if seq >= num_seqs:
        return
    start = tl.load(QUERY_STARTS + seq)
    queries = tl.load(QUERY_STARTS + seq + 1) - start
    length = tl.load(SEQ_LENS + seq)
    context = length - queries
    tile = (queries + tile_queries - 1) // tile_queries - 1 - (tl.program_id(0) - first_item)
    kv_head = tl.program_id(1)
    query, heads, alive = _tile_rows(tile, kv_head * group, queries, group, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)[None, :]
    mask = alive[:, None] & (dims < D)
    tokens = (start + query).to(tl.int64)[:, None]
    q = tl.load(Q + tokens * q_t + heads[:, None] * q_h + dims, mask=mask, other=0.0)
    q, unit = computed_query(q, UPCAST, FP8)
    if FP8:
        scale *= unit * tl.load(K_SCALE + kv_head)
    base = kv_head.to(tl.int64) * kv_h
    base_row = 0
    if PAGES == "contiguous":
        first_row = tl.load(TABLE + seq)
        base += first_row * kv_t
        base_row = first_row.to(tl.int32)
    low = context + tile * tile_queries
    total, acc = _attend_rows(
        q, context + query, low, tl.minimum(low + tile_queries, length), K + base, V + base, K_DESC, V_DESC,
        TABLE + seq.to(tl.int64) * table_s, base_row, kv_head * kv_h, kv_b, kv_t, rows_b, window, block_size,
        block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, WINDOW, SOFT_CAP, TMA, UPCAST, FP8, NATIVE,
    )  # fmt: skip
    if FP8:
        acc *= tl.load(V_SCALE + kv_head)
    result = (acc / tl.where(total > 0, total, 1.0)[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + tokens * out_t + heads[:, None] * out_h + dims, result, mask=mask)
