"""Decode attention: one query token a sequence, over a paged (or contiguous) KV cache, split along the keys.

`decode_kernel` computes one piece of one sequence for one KV head: the group's query heads are the rows of the dot
products. A sequence of a single piece is finished there; the others leave (normalised output, log2-sum-exp) per piece,
and `reduce_kernel` merges them (the merge law of `engine.attention.merge`). A `plan` says who takes which piece: long
sequences are cut into pieces no longer than a fair share of the device, short ones stay whole.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from engine.attention.kernels.fp8 import attend_piece_of_pairs
from engine.attention.kernels.tiles import attend, row_offsets, table_entries
from engine.attention.kernels.work import span_of


@triton.jit
def _load_query(Q, heads, alive, q_h, D: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr):
    """Query heads `heads` of one token, [M, BLOCK_D], zero beyond the group and beyond the head size."""
    dims = tl.arange(0, BLOCK_D)[None, :]
    q = tl.load(Q + heads[:, None] * q_h + dims, mask=alive[:, None] & (dims < D), other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    return q


@triton.jit
def _attend_piece(
    q, K, V, table, tile, end_tile, first, length, kv_b, kv_t, block_size, block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_STAGES: tl.constexpr, PAGES: tl.constexpr, SOFT_CAP: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """(maximum, total, acc) of q over the keys [first, length) in the tiles [tile, end_tile).

    The next tile's table entries are loaded an iteration ahead, so that K and V wait for no load of their own
    iteration: an indirect load would otherwise take a stage of the pipeline (and its buffer) for itself.
    """
    rows = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)[None, :]
    last = tl.maximum(length - 1, 0)  # of an empty sequence nothing is attended to, but an entry is looked at
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    entries = table_entries(table, tile * BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
    for step in tl.range(tile, end_tile, num_stages=NUM_STAGES):
        start = step * BLOCK_N
        at = row_offsets(entries, start, rows, first, last, kv_b, kv_t, block_size, PAGES, True)
        offsets = at[:, None] + dims
        entries = table_entries(table, start + BLOCK_N, rows, first, last, block_size, block_shift, PAGES)
        if D == BLOCK_D:
            k = tl.load(K + offsets)
            v = tl.load(V + offsets)
        else:
            k = tl.load(K + offsets, mask=dims < D, other=0.0)
            v = tl.load(V + offsets, mask=dims < D, other=0.0)
        position = start + rows
        visible = ((position >= first) & (position < length))[None, :]
        maximum, total, acc = attend(
            q, k, v, maximum, total, acc, visible, scale, soft_cap, True, SOFT_CAP, UPCAST
        )  # fmt: skip
    return maximum, total, acc


@triton.jit
def _attend_heads(
    Q, K, V, K_SCALE, V_SCALE, heads, alive, q_h, table, tile, end_tile, first, length, kv_b, kv_t, block_size,
    block_shift, scale, soft_cap,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, SOFT_CAP: tl.constexpr, UPCAST: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """`_attend_piece` of the heads of one token, or its twin over pairs."""
    if FP8:
        maximum, total, acc = attend_piece_of_pairs(
            Q, K, V, K_SCALE, V_SCALE, heads, alive, q_h, table, tile, end_tile, first, length, kv_b, kv_t, block_size,
            block_shift, scale, soft_cap, D, BLOCK_D, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, SOFT_CAP, NATIVE,
        )  # fmt: skip
    else:
        q = _load_query(Q, heads, alive, q_h, D, BLOCK_D, UPCAST)
        maximum, total, acc = _attend_piece(
            q, K, V, table, tile, end_tile, first, length, kv_b, kv_t, block_size, block_shift, scale, soft_cap,
            D, BLOCK_D, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, SOFT_CAP, UPCAST,
        )  # fmt: skip
    return maximum, total, acc


@triton.jit
def _store_piece(
    maximum, total, acc, OUT, PART, LSE, heads, alive, out_h, whole, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Output rows of a sequence in one piece (`whole`), else this piece's part: normalised rows, and maximum +
    log2(total). The final division is here; without a key (length 0) the output is zero."""
    dims = tl.arange(0, BLOCK_D)[None, :]
    mask = alive[:, None] & (dims < D)
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    if whole:
        tl.store(OUT + heads[:, None] * out_h + dims, result.to(OUT.dtype.element_ty), mask=mask)
    else:
        tl.store(PART + heads[:, None] * D + dims, result, mask=mask)
        tl.store(LSE + heads, maximum + tl.log2(total), mask=alive)


@triton.jit(do_not_specialize=["table_s", "num_heads", "group", "window", "block_size", "block_shift"])
def decode_kernel(
    Q, K, V, K_SCALE, V_SCALE, TABLE, SEQ_LENS, ITEMS, SKIP, OUT, PART, LSE, q_s, q_h, kv_b, kv_t, kv_h, table_s, out_s,
    out_h, scale, soft_cap, num_heads, group, window, block_size, block_shift,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, SPLIT: tl.constexpr, SHARED: tl.constexpr,
    EARLY: tl.constexpr, UPCAST: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Grid (KV heads x ceil(group / BLOCK_M), bound on work items). TABLE is the block table, int32 [S, max_blocks],
    or with PAGES == "contiguous" the first row of each sequence, int64 [S]. ITEMS as in `plan`; unless SPLIT, item s
    is sequence s. SHARED: SEQ_LENS counts keys behind SKIP int32 [S] table entries; where there are such, the output is
    a piece even if it is the only one. EARLY (Hopper): not the launch waits for the kernel before it, the programs.
    FP8: K and V are pairs as in `fp8`, K_SCALE and V_SCALE float32 [KH]; otherwise nobody looks at these."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    item = tl.program_id(1)
    seq, pieces = item, 1
    if SPLIT:
        seq = tl.load(ITEMS + item * 4)
        if seq < 0:
            return
    length = tl.load(SEQ_LENS + seq)
    first, tile, tiles = span_of(length, window, BLOCK_N, WINDOW)
    end_tile = tile + tiles
    if SPLIT:
        tile = tl.load(ITEMS + item * 4 + 1)
        end_tile = tl.load(ITEMS + item * 4 + 2)
        pieces = tl.load(ITEMS + item * 4 + 3)
    head_tiles = (group + BLOCK_M - 1) // BLOCK_M
    kv_head = tl.program_id(0) // head_tiles
    in_group = tl.program_id(0) % head_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    heads = kv_head * group + in_group
    base = kv_head.to(tl.int64) * kv_h
    if PAGES == "contiguous":
        base += tl.load(TABLE + seq) * kv_t
    table = TABLE + seq.to(tl.int64) * table_s
    whole = pieces == 1
    if SHARED:
        skip = tl.load(SKIP + seq)
        table += tl.where(length > 0, skip, 0)  # of an empty sequence an entry is looked at, too
        whole = whole & (skip == 0)
    maximum, total, acc = _attend_heads(
        Q + seq.to(tl.int64) * q_s, K + base, V + base, K_SCALE + kv_head, V_SCALE + kv_head, heads, in_group < group,
        q_h, table, tile, end_tile, first, length, kv_b, kv_t, block_size, block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_M, BLOCK_N, NUM_STAGES, PAGES, SOFT_CAP, UPCAST, FP8, NATIVE,
    )  # fmt: skip
    part = item.to(tl.int64) * num_heads
    _store_piece(
        maximum, total, acc, OUT + seq.to(tl.int64) * out_s, PART + part * D, LSE + part, heads, in_group < group,
        out_h, whole, D, BLOCK_D,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_heads"])
def reduce_kernel(
    SEQS, OUT, PART, LSE, out_s, out_h, num_heads, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (S, H): merges a sequence's pieces of one head, BLOCK_P at a time; those of one piece are finished already.
    SEQS as in `plan`, EARLY as in decode."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    seq = tl.program_id(0)
    pieces = tl.load(SEQS + seq * 2 + 1)
    if pieces <= 1:
        return
    head = tl.program_id(1)
    out = OUT + seq.to(tl.int64) * out_s + head * out_h
    row = tl.load(SEQS + seq * 2).to(tl.int64) * num_heads + head
    maximum = -1e30
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    maximum, total, acc = merge_pieces(
        maximum, total, acc, PART + row * D, LSE + row, pieces, num_heads, D, BLOCK_D, BLOCK_P
    )  # fmt: skip
    dims = tl.arange(0, BLOCK_D)
    tl.store(out + dims, (acc / total).to(out.dtype.element_ty), mask=dims < D)


@triton.jit
def merge_pieces(
    maximum, total, acc, PART, LSE, pieces, stride, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr
):  # fmt: skip
    """(maximum, total, acc) of one head after more pieces, `stride` rows apart: weights 2^(lse - maximum).

    An empty piece has lse = -inf and adds nothing."""
    dims = tl.arange(0, BLOCK_D)
    for start in range(0, pieces, BLOCK_P):
        piece = start + tl.arange(0, BLOCK_P)
        at = piece.to(tl.int64) * stride
        lse = tl.load(LSE + at, mask=piece < pieces, other=float("-inf"))
        mask = (piece < pieces)[:, None] & (dims < D)[None, :]
        part = tl.load(PART + at[:, None] * D + dims[None, :], mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, tl.max(lse, 0))
        weights = tl.exp2(lse - new_maximum)
        shrink = tl.exp2(maximum - new_maximum)
        acc = acc * shrink + tl.sum(part * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        maximum = new_maximum
    return maximum, total, acc
