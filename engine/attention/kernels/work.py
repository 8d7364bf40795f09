"""How a flat grid of programs finds its work on the device: no plan on the host, no wait, nothing to capture anew.

A launch knows bounds only (sequences, the longest length), so that it can be captured in a CUDA graph. Each program
reads all lengths (a few hundred bytes, from L2), and derives which piece of which sequence is its own; programs past
the last piece leave at once. Lengths are read in groups of LENGTHS.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

LENGTHS = tl.constexpr(128)


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
def piece_tiles(
    seq_lens, num_seqs, max_pieces, min_tiles, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """Most tiles of a piece: the batch's tiles spread evenly over `max_pieces`, but at least `min_tiles`."""
    tiles = 0
    for group in range(0, num_seqs, LENGTHS):
        seqs = group + tl.arange(0, LENGTHS)
        lengths = tl.load(seq_lens + seqs, mask=seqs < num_seqs, other=0)
        _, _, counts = span_of(lengths, window, BLOCK_N, WINDOW)
        tiles += tl.sum(counts, 0)
    return tl.maximum((tiles + max_pieces - 1) // max_pieces, min_tiles)


@triton.jit
def locate_piece(
    seq_lens, num_seqs, item, per_piece, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """(sequence, its first item) of work item `item`; the sequence is `num_seqs` past the last piece.

    A sequence has one item per `per_piece` tiles, rounded up, and at least one: an empty one still writes its zeros.
    """
    seq = 0
    first_item = 0
    end = 0
    for group in range(0, num_seqs, LENGTHS):
        seqs = group + tl.arange(0, LENGTHS)
        lengths = tl.load(seq_lens + seqs, mask=seqs < num_seqs, other=0)
        _, _, counts = span_of(lengths, window, BLOCK_N, WINDOW)
        pieces = tl.maximum((counts + per_piece - 1) // per_piece, 1)
        ends = end + tl.cumsum(tl.where(seqs < num_seqs, pieces, 0), 0)
        before = (ends <= item) & (seqs < num_seqs)
        seq += tl.sum(before.to(tl.int32), 0)
        first_item = tl.maximum(first_item, tl.max(tl.where(before, ends, 0), 0))
        end = tl.max(ends, 0)
    return seq, first_item


@triton.jit
def first_item_of(
    seq_lens, seq, per_piece, window, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """First work item of sequence `seq`: the pieces of all sequences before it."""
    item = 0
    for group in range(0, seq, LENGTHS):
        seqs = group + tl.arange(0, LENGTHS)
        lengths = tl.load(seq_lens + seqs, mask=seqs < seq, other=0)
        _, _, counts = span_of(lengths, window, BLOCK_N, WINDOW)
        pieces = tl.maximum((counts + per_piece - 1) // per_piece, 1)
        item += tl.sum(tl.where(seqs < seq, pieces, 0), 0)
    return item


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
