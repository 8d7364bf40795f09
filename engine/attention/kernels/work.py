"""Who does what, worked out on the device from lengths: pieces of a decode's plan, query tiles of prefill programs.

A launch knows bounds only (sequences, the longest length), so that it can be captured in a CUDA graph. The lengths of a
batch (a few hundred bytes, from L2) are read in groups.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

LENGTHS = tl.constexpr(128)
GROUPS = (1, 8, 32, 128, 512)
"""Sizes of a group that is the whole batch."""


def group_of(num_seqs: int) -> tuple[int, bool]:
    """(GROUP, ONE_GROUP) for a batch: the smallest group that holds it, else groups of LENGTHS."""
    fitting = next((size for size in GROUPS if num_seqs <= size), 0)
    return (fitting, True) if fitting else (LENGTHS.value, False)


@triton.jit
def span_of(length, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """First visible position of the sequence's last token, first tile, number of tiles. Works on vectors too."""
    first = 0
    first_tile = 0
    if WINDOW:
        first = tl.maximum(length - window, 0)
        first_tile = first // BLOCK_N
    return first, first_tile, (length + BLOCK_N - 1) // BLOCK_N - first_tile


@triton.jit
def pieces_of(tiles, alive, per_piece):
    """Pieces of sequences of that many tiles, 0 for those that are not alive.

    A sequence has one item per `per_piece` tiles, rounded up, and at least one: an empty one still writes its zeros.
    """
    return tl.where(alive, tl.maximum((tiles + per_piece - 1) // per_piece, 1), 0)


@triton.jit
def piece_tiles(
    seq_lens, num_seqs, max_pieces, min_tiles, min_whole, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    GROUP: tl.constexpr, ONE_GROUP: tl.constexpr,
):  # fmt: skip
    """Most tiles of a piece: the batch's tiles spread evenly over `max_pieces`, at least `min_tiles`.

    Sequences of which none is a quarter longer than the mean are cut alike, into no more pieces than `max_pieces`
    together; `min_whole` of them or more stay whole: they fill the device as they are.
    """
    seqs = tl.arange(0, GROUP)
    lengths = tl.load(seq_lens + seqs, mask=seqs < num_seqs, other=0)
    _, _, counts = span_of(lengths, window, BLOCK_N, WINDOW)
    tiles = tl.sum(counts, 0)
    longest = tl.max(counts, 0)
    if not ONE_GROUP:
        for group in range(GROUP, num_seqs, GROUP):
            more = tl.load(seq_lens + group + seqs, mask=group + seqs < num_seqs, other=0)
            _, _, counts = span_of(more, window, BLOCK_N, WINDOW)
            tiles += tl.sum(counts, 0)
            longest = tl.maximum(longest, tl.max(counts, 0))
    per_piece = tl.maximum((tiles + max_pieces - 1) // max_pieces, min_tiles)
    even = longest <= tiles // num_seqs * 5 // 4
    share = tl.maximum(max_pieces // num_seqs, 1)
    per_piece = tl.where(even, tl.maximum((longest + share - 1) // share, min_tiles), per_piece)
    return tl.where(even & (num_seqs >= min_whole), tl.maximum(longest, per_piece), per_piece)


@triton.jit
def order_of(
    seq_lens, num_seqs, seq, tiles, per_piece, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """(first work item of sequence `seq`, items of all): longest first, among equals in their own order."""
    first_item = 0
    items = 0
    for group in range(0, num_seqs, GROUP):
        seqs = group + tl.arange(0, GROUP)
        alive = seqs < num_seqs
        lengths = tl.load(seq_lens + seqs, mask=alive, other=0)
        _, _, counts = span_of(lengths, window, BLOCK_N, WINDOW)
        pieces = pieces_of(counts, alive, per_piece)
        before = (counts > tiles) | ((counts == tiles) & (seqs < seq))
        first_item += tl.sum(tl.where(before, pieces, 0), 0)
        items += tl.sum(pieces, 0)
    return first_item, items


@triton.jit
def locate_tile(query_starts, num_seqs, item, tile_queries):
    """(sequence, its first item) of query tile `item`; the sequence is `num_seqs` past the last tile.

    A sequence has one item per `tile_queries` query tokens, rounded up; none without query tokens.
    """
    seq = 0
    first_item = 0
    end = 0
    for group in range(0, num_seqs, LENGTHS):
        seqs = group + tl.arange(0, LENGTHS)
        alive = seqs < num_seqs
        starts = tl.load(query_starts + seqs, mask=alive, other=0)
        stops = tl.load(query_starts + seqs + 1, mask=alive, other=0)
        ends = end + tl.cumsum((stops - starts + tile_queries - 1) // tile_queries, 0)
        before = (ends <= item) & alive
        seq += tl.sum(before.to(tl.int32), 0)
        first_item = tl.maximum(first_item, tl.max(tl.where(before, ends, 0), 0))
        end = tl.max(ends, 0)
    return seq, first_item
