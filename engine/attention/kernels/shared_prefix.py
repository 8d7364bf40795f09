"""Decode attention of rows that share a prefix: the shared keys once for all queries, and the merge with their own.

`shared_kernel` takes a tile of BLOCK_M (member, query head) pairs of one group and one KV head, and a piece of the
shared keys: matrix products of whole tiles instead of a vector a sequence, so that K and V are read once a tile and not
once a sequence. `merge_kernel` merges what it leaves, (normalised output, log2-sum-exp) a pair and piece, with the
pieces of the members' own keys, which are `decode_kernel`'s. `shared_plan_kernel` says who takes which piece.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from engine.attention.kernels.decode import merge_pieces
from engine.attention.kernels.prefill import attend_tiles
from engine.attention.kernels.tiles import computed_query


@triton.jit
def _picked(values, chosen):
    """values [G] by the one-hot rows of chosen [N, G]: [N]."""
    return tl.sum(tl.where(chosen, values[None, :], 0), 1)


@triton.jit
def _cut_groups(
    GROUPS, num_groups, max_items, min_tiles, group, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """Of each group [BLOCK_G]: first member, members, shared tokens, tiles of pairs, tiles of keys, pieces of them,
    first item, end of its items. The keys of all groups are cut into pieces of about one length, at least `min_tiles`,
    that make about `max_items` items."""
    index = tl.arange(0, BLOCK_G)
    alive = index < num_groups
    first = tl.load(GROUPS + index * 3, mask=alive, other=0)
    members = tl.load(GROUPS + index * 3 + 1, mask=alive, other=0)
    tokens = tl.load(GROUPS + index * 3 + 2, mask=alive, other=0)
    rows = (members * group + BLOCK_M - 1) // BLOCK_M
    tiles = (tokens + BLOCK_N - 1) // BLOCK_N
    rows = tl.where(tiles > 0, rows, 0)
    total = tl.sum(rows * tiles, 0)
    per_piece = tl.maximum((total + max_items - 1) // max_items, min_tiles)
    pieces = (tiles + per_piece - 1) // per_piece
    ends = tl.cumsum(rows * pieces, 0)
    return first, members, tokens, rows, tiles, pieces, ends - rows * pieces, ends


@triton.jit(do_not_specialize=["num_seqs", "num_groups", "most_items", "max_items", "min_tiles", "group", "block_size"])
def shared_plan_kernel(
    GROUPS, MEMBERS, SEQ_LENS, ITEMS, SEQS, OWN_LENS, SKIP, num_seqs, num_groups, most_items, max_items, min_tiles,
    group, block_size,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(max(S, most_items) / BLOCK_I)). ITEMS int32 [most_items, 8] and SEQS int32 [S, 4] as in `SharedPlan`;
    OWN_LENS and SKIP int32 [S]: tokens behind a row's shared part, and table entries before them."""
    first, members, tokens, rows, tiles, pieces, first_item, ends = _cut_groups(
        GROUPS, num_groups, max_items, min_tiles, group, BLOCK_M, BLOCK_N, BLOCK_G
    )  # fmt: skip
    at = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    item = ITEMS + at * 8
    mine = (at[:, None] >= first_item[None, :]) & (at[:, None] < ends[None, :])
    count = _picked(pieces, mine)
    alive = at < most_items
    within = at - _picked(first_item, mine)
    width = tl.maximum(_picked(rows, mine), 1)
    piece = within // width
    keys = _picked(tiles, mine)
    leader = tl.load(MEMBERS + _picked(first, mine), mask=alive & (count > 0), other=0)
    tl.store(item, tl.where(count > 0, leader, -1), mask=alive)
    tl.store(item + 1, _picked(first, mine), mask=alive)
    tl.store(item + 2, _picked(members, mine) * group, mask=alive)
    tl.store(item + 3, within % width, mask=alive)
    tl.store(item + 4, keys * piece // tl.maximum(count, 1), mask=alive)
    tl.store(item + 5, keys * (piece + 1) // tl.maximum(count, 1), mask=alive)
    tl.store(item + 6, _picked(tokens, mine), mask=alive)

    inside = at < num_seqs
    seq = tl.load(MEMBERS + at, mask=inside, other=0)
    ours = (at[:, None] >= first[None, :]) & (at[:, None] < (first + members)[None, :]) & (rows > 0)[None, :]
    shared = _picked(tokens, ours)
    length = tl.load(SEQ_LENS + seq, mask=inside, other=0)
    tl.store(OWN_LENS + seq, tl.maximum(length - shared, 0), mask=inside)
    tl.store(SKIP + seq, shared // block_size, mask=inside)
    tl.store(SEQS + seq * 4, _picked(first_item, ours), mask=inside)
    tl.store(SEQS + seq * 4 + 1, _picked(pieces, ours), mask=inside)
    tl.store(SEQS + seq * 4 + 2, _picked(rows, ours), mask=inside)
    tl.store(SEQS + seq * 4 + 3, at - _picked(first, ours), mask=inside)


@triton.jit
def _item(item):
    """What a work item says beside its leader, as in `SharedPlan`."""
    first_member = tl.load(item + 1)
    pairs = tl.load(item + 2)
    tile_m = tl.load(item + 3)
    tile = tl.load(item + 4)
    end_tile = tl.load(item + 5)
    length = tl.load(item + 6)
    return first_member, pairs, tile_m, tile, end_tile, length


@triton.jit(do_not_specialize=["table_s", "group", "block_size", "block_shift"])
def shared_kernel(
    Q, K, V, K_SCALE, V_SCALE, TABLE, ITEMS, MEMBERS, PART, LSE, q_s, q_h, kv_b, kv_t, kv_h, table_s, scale, soft_cap,
    group, block_size, block_shift,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
    PAGES: tl.constexpr, SOFT_CAP: tl.constexpr, EARLY: tl.constexpr, UPCAST: tl.constexpr, FP8: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Grid (KV heads, most items). PART fp32 [items, KH, BLOCK_M, D] and LSE fp32 [items, KH, BLOCK_M]; EARLY as in
    decode. Pair r of a group is member r // group and query head r % group of the KV head's."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    item = tl.program_id(1)
    leader = tl.load(ITEMS + item * 8)
    if leader < 0:
        return
    first_member, pairs, tile_m, tile, end_tile, length = _item(ITEMS + item * 8)
    pair = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    alive = pair < pairs
    kv_head = tl.program_id(0)
    dims = tl.arange(0, BLOCK_D)[None, :]
    mask = alive[:, None] & (dims < D)
    seq = tl.load(MEMBERS + first_member + pair // group, mask=alive, other=0).to(tl.int64)
    head = kv_head * group + pair % group
    q, unit = computed_query(tl.load(Q + (seq * q_s + head * q_h)[:, None] + dims, mask=mask, other=0.0), UPCAST, FP8)
    if FP8:
        scale *= unit * tl.load(K_SCALE + kv_head)
    K += kv_head.to(tl.int64) * kv_h
    V += kv_head.to(tl.int64) * kv_h
    table = TABLE + leader.to(tl.int64) * table_s
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    last = length - 1
    positions = tl.zeros([BLOCK_M], tl.int32) + last
    whole = tl.minimum(end_tile, length // BLOCK_N)
    maximum, total, acc = attend_tiles(
        q, maximum, total, acc, positions, K, V, K, V, table, tile, whole, 0, last, 0, 0, kv_b, kv_t, 0, 0, block_size,
        block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_N, NUM_STAGES, PAGES, False, False, SOFT_CAP, False, UPCAST, FP8, NATIVE,
    )  # fmt: skip
    maximum, total, acc = attend_tiles(
        q, maximum, total, acc, positions, K, V, K, V, table, whole, end_tile, 0, last, 0, 0, kv_b, kv_t, 0, 0,
        block_size, block_shift, scale, soft_cap,
        D, BLOCK_D, BLOCK_N, 1, PAGES, True, False, SOFT_CAP, False, UPCAST, FP8, NATIVE,
    )  # fmt: skip
    if FP8:
        acc *= tl.load(V_SCALE + kv_head)
    row = (item.to(tl.int64) * tl.num_programs(0) + kv_head) * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(PART + row[:, None] * D + dims, acc / total[:, None], mask=mask)
    tl.store(LSE + row, maximum + tl.log2(total), mask=alive)


@triton.jit(do_not_specialize=["num_heads", "num_kv_heads"])
def merge_kernel(
    SEQS, OWN_SEQS, OUT, PART, LSE, OWN_PART, OWN_LSE, out_s, out_h, num_heads, num_kv_heads,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, SPLIT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (S, H): one head's output of one row from the pieces of its shared part and those of its own. Rows of one
    piece without a shared part are finished already. SPLIT: whether own parts are cut, as in decode."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    seq = tl.program_id(0)
    own_item = seq
    own_pieces = 1
    if SPLIT:
        own_item = tl.load(OWN_SEQS + seq * 2)
        own_pieces = tl.load(OWN_SEQS + seq * 2 + 1)
    pieces = tl.load(SEQS + seq * 4 + 1)
    if own_pieces + pieces <= 1:
        return
    head = tl.program_id(1)
    group = num_heads // num_kv_heads
    pair = tl.load(SEQS + seq * 4 + 3) * group + head % group
    width = tl.load(SEQS + seq * 4 + 2)
    item = tl.load(SEQS + seq * 4) + pair // BLOCK_M
    row = (item.to(tl.int64) * num_kv_heads + head // group) * BLOCK_M + pair % BLOCK_M
    maximum = -1e30
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    maximum, total, acc = merge_pieces(
        maximum, total, acc, PART + row * D, LSE + row, pieces, width * num_kv_heads * BLOCK_M, D, BLOCK_D, BLOCK_P
    )  # fmt: skip
    own = own_item.to(tl.int64) * num_heads + head
    maximum, total, acc = merge_pieces(
        maximum, total, acc, OWN_PART + own * D, OWN_LSE + own, own_pieces, num_heads, D, BLOCK_D, BLOCK_P
    )  # fmt: skip
    dims = tl.arange(0, BLOCK_D)
    out = OUT + seq.to(tl.int64) * out_s + head * out_h
    tl.store(out + dims, (acc / total).to(OUT.dtype.element_ty), mask=dims < D)
