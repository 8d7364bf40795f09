"""Multi-head latent attention over a paged cache of latents, queries absorbed: decodes, and chunks of prompts.

A latent of `rank` + `rotary` elements is the K that all query heads share, its first `rank` elements are their V: a
tile of latents is loaded once, and both products read it from the same shared memory. Query heads are the rows of the
products. A decode's keys are cut into pieces as in `decode`, whose reduction merges them. A chunk's rows are heads of
neighbouring tokens. Absorbed chunks take more operations than expanded ones (2,176 against 640 a head and pair of
tokens in DeepSeek's sizes), but no K and V of the whole context: that expansion alone costs more for chunks of up to
about 170 tokens, and in any case memory for every head of every token.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from engine.attention.kernels.decode import merge_pieces
from engine.attention.kernels.tiles import row_offsets, table_entries, weigh
from engine.attention.kernels.work import locate_tile


@triton.jit
def _load_query(Q, offsets, alive, RANK: tl.constexpr, BLOCK_R: tl.constexpr, ROTARY: tl.constexpr,
                BLOCK_ROT: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Rows at `offsets` [M]: what meets the first RANK elements of a latent, [M, BLOCK_R], and the rest."""
    ranks = tl.arange(0, BLOCK_R)[None, :]
    rest = tl.arange(0, BLOCK_ROT)[None, :]
    c = tl.load(Q + offsets[:, None] + ranks, mask=alive[:, None] & (ranks < RANK), other=0.0)
    e = tl.load(Q + offsets[:, None] + RANK + rest, mask=alive[:, None] & (rest < ROTARY), other=0.0)
    if UPCAST:
        c = c.to(tl.float32)
        e = e.to(tl.float32)
    return c, e


@triton.jit
def _load_latents(
    KV, C_DESC, E_DESC, at, row, RANK: tl.constexpr, BLOCK_R: tl.constexpr, ROTARY: tl.constexpr,
    BLOCK_ROT: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """A tile of latents in its two parts: by descriptor from `row` on, or from elements `at` [N]."""
    if TMA:
        c = C_DESC.load([row, 0])
        e = E_DESC.load([row, RANK])
    else:
        ranks = tl.arange(0, BLOCK_R)[None, :]
        rest = tl.arange(0, BLOCK_ROT)[None, :]
        if RANK == BLOCK_R:
            c = tl.load(KV + at[:, None] + ranks)
        else:
            c = tl.load(KV + at[:, None] + ranks, mask=ranks < RANK, other=0.0)
        if ROTARY == BLOCK_ROT:
            e = tl.load(KV + at[:, None] + RANK + rest)
        else:
            e = tl.load(KV + at[:, None] + RANK + rest, mask=rest < ROTARY, other=0.0)
    if UPCAST:  # the interpreter computes bfloat16 wrongly; it only loads and stores it
        c = c.to(tl.float32)
        e = e.to(tl.float32)
    return c, e


@triton.jit
def attend_latents(
    q_c, q_e, maximum, total, acc, positions, KV, C_DESC, E_DESC, table, tile, end_tile, last, kv_b, kv_t, rows_b,
    block_size, block_shift, scale,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, ROTARY: tl.constexpr, BLOCK_ROT: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_STAGES: tl.constexpr, PAGES: tl.constexpr, MASKED: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """(maximum, total, acc) after the tiles [tile, end_tile); MASKED: rows see keys up to their positions [M] only, and
    no slot behind position `last` is read. Table entries are loaded a tile ahead, as in decode."""
    rows = tl.arange(0, BLOCK_N)
    entries = table_entries(table, tile * BLOCK_N, rows, 0, last, block_size, block_shift, PAGES)
    for step in tl.range(tile, end_tile, num_stages=NUM_STAGES):
        start = step * BLOCK_N
        at = rows.to(tl.int64)
        row = 0
        if TMA:
            row = entries * rows_b + start % block_size
        else:
            at = row_offsets(entries, start, rows, 0, last, kv_b, kv_t, block_size, PAGES, MASKED)
        entries = table_entries(table, start + BLOCK_N, rows, 0, last, block_size, block_shift, PAGES)
        c, e = _load_latents(KV, C_DESC, E_DESC, at, row, RANK, BLOCK_R, ROTARY, BLOCK_ROT, TMA, UPCAST)
        scores = tl.dot(q_c, tl.trans(c), input_precision="ieee")
        scores = tl.dot(q_e, tl.trans(e), scores, input_precision="ieee")
        visible = (start + rows)[None, :] <= positions[:, None]
        maximum, total, acc = weigh(scores, c, maximum, total, acc, visible, scale, 0.0, MASKED, False)
    return maximum, total, acc


@triton.jit
def _attend_rows(
    q_c, q_e, positions, KV, C_DESC, E_DESC, table, tile, whole, end_tile, last, kv_b, kv_t, rows_b, block_size,
    block_shift, scale,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, ROTARY: tl.constexpr, BLOCK_ROT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr, PAGES: tl.constexpr, TMA: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """(maximum, total, acc) of rows over the tiles [tile, end_tile); with TMA every row sees all of those before
    `whole`, which come by descriptor and need no mask. By pointers one loop is for all tiles: two would spill."""
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    if TMA:
        whole = tl.minimum(tl.maximum(whole, tile), end_tile)
        maximum, total, acc = attend_latents(
            q_c, q_e, maximum, total, acc, positions, KV, C_DESC, E_DESC, table, tile, whole, last, kv_b, kv_t, rows_b,
            block_size, block_shift, scale,
            RANK, BLOCK_R, ROTARY, BLOCK_ROT, BLOCK_N, NUM_STAGES, PAGES, False, True, UPCAST,
        )  # fmt: skip
        tile = whole
    maximum, total, acc = attend_latents(
        q_c, q_e, maximum, total, acc, positions, KV, C_DESC, E_DESC, table, tile, end_tile, last, kv_b, kv_t, rows_b,
        block_size, block_shift, scale,
        RANK, BLOCK_R, ROTARY, BLOCK_ROT, BLOCK_N, 1 if TMA else NUM_STAGES, PAGES, True, False, UPCAST,
    )  # fmt: skip
    return maximum, total, acc


@triton.jit(do_not_specialize=["table_s", "rows_b", "num_heads", "block_size", "block_shift"])
def mla_decode_kernel(
    Q, KV, C_DESC, E_DESC, TABLE, SEQ_LENS, ITEMS, OUT, PART, LSE, q_s, q_h, kv_b, kv_t, table_s, out_s, out_h, rows_b,
    scale, num_heads, block_size, block_shift,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, ROTARY: tl.constexpr, BLOCK_ROT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr, PAGES: tl.constexpr, TMA: tl.constexpr, SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(H / BLOCK_M), bound on work items): neighbours read the same latents. ITEMS, PART and LSE as in
    decode_kernel; with TMA, C_DESC and E_DESC show the cache as a matrix, block b from row b * rows_b on."""
    item = tl.program_id(1)
    seq, tile, pieces = item, 0, 1
    if SPLIT:
        seq = tl.load(ITEMS + item * 4)
        if seq < 0:
            return
    length = tl.load(SEQ_LENS + seq)
    end_tile = (length + BLOCK_N - 1) // BLOCK_N
    if SPLIT:
        tile = tl.load(ITEMS + item * 4 + 1)
        end_tile = tl.load(ITEMS + item * 4 + 2)
        pieces = tl.load(ITEMS + item * 4 + 3)
    heads = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    alive = heads < num_heads
    q_c, q_e = _load_query(Q + seq.to(tl.int64) * q_s, heads * q_h, alive, RANK, BLOCK_R, ROTARY, BLOCK_ROT, UPCAST)
    positions = tl.full([BLOCK_M], 0, tl.int32) + (length - 1)
    maximum, total, acc = _attend_rows(
        q_c, q_e, positions, KV, C_DESC, E_DESC, TABLE + seq.to(tl.int64) * table_s, tile, length // BLOCK_N, end_tile,
        tl.maximum(length - 1, 0), kv_b, kv_t, rows_b, block_size, block_shift, scale,
        RANK, BLOCK_R, ROTARY, BLOCK_ROT, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, TMA, UPCAST,
    )  # fmt: skip
    ranks = tl.arange(0, BLOCK_R)[None, :]
    mask = alive[:, None] & (ranks < RANK)
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    if pieces == 1:
        out = OUT + seq.to(tl.int64) * out_s
        tl.store(out + heads[:, None] * out_h + ranks, result.to(OUT.dtype.element_ty), mask=mask)
    else:
        row = item.to(tl.int64) * num_heads + heads
        tl.store(PART + row[:, None] * RANK + ranks, result, mask=mask)
        tl.store(LSE + row, maximum + tl.log2(total), mask=alive)


@triton.jit(do_not_specialize=["table_s", "num_seqs", "num_heads", "block_size", "block_shift"])
def mla_prefill_kernel(
    Q, KV, TABLE, QUERY_STARTS, SEQ_LENS, OUT, q_t, q_h, kv_b, kv_t, table_s, out_t, out_h, scale, num_seqs, num_heads,
    block_size, block_shift,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, ROTARY: tl.constexpr, BLOCK_ROT: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr, PAGES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(H / HEADS), bound on query tiles): row r is query r // HEADS of the tile, head r % HEADS of the
    program's. Late tiles of a sequence have the most keys and start first."""
    QUERIES: tl.constexpr = BLOCK_M // HEADS
    seq, first_item = locate_tile(QUERY_STARTS, num_seqs, tl.program_id(1), QUERIES)
    if seq >= num_seqs:
        return
    start = tl.load(QUERY_STARTS + seq)
    queries = tl.load(QUERY_STARTS + seq + 1) - start
    length = tl.load(SEQ_LENS + seq)
    first = ((queries + QUERIES - 1) // QUERIES - 1 - (tl.program_id(1) - first_item)) * QUERIES
    rows = tl.arange(0, BLOCK_M)
    query = first + rows // HEADS
    heads = tl.program_id(0) * HEADS + rows % HEADS
    alive = (query < queries) & (heads < num_heads)
    tokens = (start + query).to(tl.int64)
    q_c, q_e = _load_query(Q, tokens * q_t + heads * q_h, alive, RANK, BLOCK_R, ROTARY, BLOCK_ROT, UPCAST)
    high = tl.minimum(length - queries + first + QUERIES, length)
    _, total, acc = _attend_rows(
        q_c, q_e, length - queries + query, KV, KV, KV, TABLE + seq.to(tl.int64) * table_s, 0, 0,
        (tl.maximum(high, 0) + BLOCK_N - 1) // BLOCK_N, tl.maximum(high - 1, 0), kv_b, kv_t, 0, block_size,
        block_shift, scale,
        RANK, BLOCK_R, ROTARY, BLOCK_ROT, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, False, UPCAST,
    )  # fmt: skip
    ranks = tl.arange(0, BLOCK_R)[None, :]
    result = (acc / tl.where(total > 0, total, 1.0)[:, None]).to(OUT.dtype.element_ty)
    at = tokens[:, None] * out_t + heads[:, None] * out_h + ranks
    tl.store(OUT + at, result, mask=alive[:, None] & (ranks < RANK))


@triton.jit(do_not_specialize=["num_heads", "heads"])
def mla_reduce_kernel(
    SEQS, OUT, PART, LSE, out_s, out_h, num_heads, heads, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (S, ceil(H / heads)): `reduce_kernel` of `heads` heads, one after another."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    seq = tl.program_id(0)
    pieces = tl.load(SEQS + seq * 2 + 1)
    if pieces <= 1:
        return
    dims = tl.arange(0, BLOCK_D)
    first = tl.load(SEQS + seq * 2).to(tl.int64) * num_heads
    for head in range(tl.program_id(1) * heads, tl.minimum((tl.program_id(1) + 1) * heads, num_heads)):
        acc = tl.zeros([BLOCK_D], tl.float32)
        maximum = -1e30  # as variables: literals in a call are constants to some versions, and loops carry none
        total = 0.0
        _, total, acc = merge_pieces(
            maximum, total, acc, PART + (first + head) * D, LSE + first + head, pieces, num_heads, D, BLOCK_D, BLOCK_P
        )  # fmt: skip
        at = OUT + seq.to(tl.int64) * out_s + head * out_h + dims
        tl.store(at, (acc / total).to(OUT.dtype.element_ty), mask=dims < D)
