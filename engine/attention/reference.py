"""Attention over a paged cache in plain torch, on any device: the specification that kernels are compared with.

Written to be read, not to be fast: rows one after the other, exactly the slots that a row may see, the online softmax
of `engine.attention.merge` over tiles of tokens. Computes in float32, or in float64 where the inputs are float64.
Unlike a kernel it looks at the values of lengths, tables and slots (and so waits for the device) and refuses impossible
ones. Nothing here makes gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from engine.attention.checks import (
    FLOATS,
    FP8,
    AttentionInputError,
    check_caches,
    check_index,
    check_queries,
    check_same_device,
    check_scale,
    check_table,
    check_write,
)
from engine.attention.kv_scales import KVScales, as_bytes, check_scales, dequantized, quantized
from engine.attention.layouts import KVLayout
from engine.attention.merge import NEVER, SoftmaxState

STORED = (*FLOATS, FP8)
"""Types of caches; FP8 with scales."""
TILE = 1024
"""Queries and tokens of one product: bounds the memory for scores, not the result."""


@torch.no_grad()
def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: KVScales | None = None,
) -> None:
    """K [T, KH, D] and V [T, KH, DV] into the caches [NB, BS, KH, ...] at slot_mapping [T] int64; slots < 0 skipped.

    `scales` beside FP8 caches. AttentionInputError, before anything is written, for slots beyond the cache and for two
    tokens in one slot.
    """
    check_step(k, v, k_cache, v_cache, slot_mapping, scales)
    if scales is not None:
        k, v = quantized(k, scales.k), quantized(v, scales.v)
    kept = slot_mapping >= 0
    slots, block_size = slot_mapping[kept], k_cache.shape[1]
    block, offset = slots // block_size, slots % block_size
    k_cache[block, offset] = k[kept]
    v_cache[block, offset] = v[kept]


def check_step(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: KVScales | None = None,
) -> None:
    """All that `write_kv` asks of shapes, types, strides, scales and slots."""
    check_caches(k_cache, v_cache, STORED)
    check_scales(k_cache, scales)
    check_write(k, v, k_cache, v_cache, slot_mapping)
    num_blocks, block_size = k_cache.shape[:2]
    if len(slot_mapping) and int(slot_mapping.max()) >= num_blocks * block_size:
        raise AttentionInputError(
            f"slot_mapping: expected slots below {num_blocks} x {block_size} = {num_blocks * block_size}, "
            f"got {int(slot_mapping.max())}"
        )
    slots = slot_mapping[slot_mapping >= 0].sort().values
    again = slots[1:][slots[1:] == slots[:-1]]
    if len(again):
        raise AttentionInputError(f"slot_mapping: expected each slot once, got {again.tolist()} again")


@torch.no_grad()
def copy_blocks(kv_caches: Sequence[torch.Tensor], pairs: torch.Tensor, layout: KVLayout) -> None:
    """Whole blocks from source to destination, pairs [P, 2] int64, in every cache; all sources are read first.

    AttentionInputError, before anything is copied, for a block outside a cache or two copies to one destination.
    """
    check_index("pairs", pairs, ("P", 2), torch.int64)
    source, target = pairs.unbind(1)
    for cache in kv_caches:
        num_blocks = cache.shape[layout.block_axis]
        if len(pairs) and not 0 <= int(pairs.min()) <= int(pairs.max()) < num_blocks:
            raise AttentionInputError(
                f"pairs: expected blocks 0 to {num_blocks - 1}, got {int(pairs.min())} to {int(pairs.max())}"
            )
    if len(set(target.tolist())) < len(target):
        raise AttentionInputError(f"pairs: expected each destination once, got {target.tolist()}")
    for cache in map(as_bytes, kv_caches):
        cache.index_copy_(layout.block_axis, target, cache.index_select(layout.block_axis, source))


class Row(NamedTuple):
    """One sequence of a batch: which tokens ask, and how many tokens there are to see."""

    tokens: slice
    """Of Q and of the output."""
    context: int
    """Tokens before the step's own; negative in a padded row, whose token sees nothing."""
    length: int
    table: torch.Tensor
    """[max_blocks] int32."""


def pages_of(cache: torch.Tensor) -> tuple[int, int]:
    """(NB, BS) of a [NB, BS, KH, D] cache."""
    return cache.shape[0], cache.shape[1]


def rows_of(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    pages: tuple[int, int],
    num_tokens: int,
    window: int = 0,
) -> list[Row]:
    """The rows of a batch of T tokens over `pages` = (NB, BS).

    AttentionInputError for lengths or blocks that cannot be; looks only at table entries that the rows read.
    """
    check_table(block_table, seq_lens, pages[1], 0)
    check_index("query_start_loc", query_start_loc, (len(seq_lens) + 1,), torch.int32)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    if starts[0] != 0 or starts[-1] > num_tokens:
        raise AttentionInputError(f"query_start_loc: expected 0 to at most {num_tokens}, got {starts}")
    rows = []
    for row, (length, start, end) in enumerate(zip(lengths, starts[:-1], starts[1:], strict=True)):
        if not (start <= end and (length == 0 or end - start <= length)):
            raise AttentionInputError(
                f"row {row}: expected 0 <= query length <= sequence length (0: padding), got {end - start} and {length}"
            )
        if length > block_table.shape[1] * pages[1]:
            raise AttentionInputError(
                f"block_table: expected entries for the {length} tokens of row {row}, got {block_table.shape[1]} "
                f"blocks of {pages[1]}"
            )
        rows.append(Row(slice(start, end), length - (end - start), length, block_table[row]))
        _check_blocks(row, rows[-1], pages, window)
    return rows


def _check_blocks(index: int, row: Row, pages: tuple[int, int], window: int) -> None:
    num_blocks, block_size = pages
    if row.context == row.length:
        return
    first = first_seen(max(row.context, 0), window)
    read = row.table[first // block_size : -(-row.length // block_size)]
    if len(read) and not 0 <= int(read.min()) <= int(read.max()) < num_blocks:
        raise AttentionInputError(
            f"block_table: expected blocks 0 to {num_blocks - 1} for tokens {first} to {row.length - 1} "
            f"of row {index}, got {read.tolist()}"
        )


def query_tiles(row: Row, window: int, device: torch.device) -> Iterator[tuple[slice, torch.Tensor, int, int]]:
    """(tokens, their positions, first and past-the-last token that any of them sees) of a row, TILE queries each."""
    num_queries = row.tokens.stop - row.tokens.start
    for low in range(0, num_queries if row.length else 0, TILE):
        high = min(low + TILE, num_queries)
        begin, end = row.context + low, row.context + high
        tokens = slice(row.tokens.start + low, row.tokens.start + high)
        yield tokens, torch.arange(begin, end, device=device), first_seen(begin, window), end


def gather(cache: torch.Tensor, table: torch.Tensor, first: int, stop: int) -> torch.Tensor:
    """[stop - first, KH, D]: what a [NB, BS, KH, D] cache holds of a sequence's tokens `first` to `stop`.

    Reads those slots and the table's entries for them, nothing else.
    """
    block_size = cache.shape[1]
    positions = torch.arange(first, stop, device=cache.device)
    return cache[table[positions // block_size].long(), positions % block_size]


def gather_kv(
    caches: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor, first: int, stop: int, scales: KVScales | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as `gather`; of FP8 what they stand for, float32."""
    k, v = (gather(cache, table, first, stop) for cache in caches)
    return (k, v) if scales is None else (dequantized(k, scales.k), dequantized(v, scales.v))


def first_seen(position: int, window: int) -> int:
    """The first token that the token at `position` sees: it sees `window` tokens with itself, or all (0)."""
    return max(0, position - window + 1) if window else 0


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    first: int,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of Q [T, H, D] at `positions` [T] over K, V [N, KH, ...], tokens `first` to `first + N - 1`.

    Output [T, H, DV] and lse [T, H], in the type of computation.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    num_queries, num_heads, num_kv_heads = q.shape[0], q.shape[1], k.shape[1]
    group = num_heads // num_kv_heads
    # One row for each query and each head of the group that shares a KV head: [KH, T * G, D].
    grouped = q.to(dtype).reshape(num_queries, num_kv_heads, group, -1).transpose(0, 1).flatten(1, 2)
    asked = positions.repeat_interleave(group)[:, None]
    state = SoftmaxState.empty((num_kv_heads, num_queries * group), v.shape[2], dtype, q.device)
    for low in range(0, k.shape[0], TILE):
        keys, values = (x[low : low + TILE].to(dtype).transpose(0, 1) for x in (k, v))
        scores = grouped @ keys.transpose(1, 2) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        seen = torch.arange(first + low, first + low + keys.shape[1], device=q.device)
        visible = seen <= asked
        if window:
            visible &= seen > asked - window
        state = state.absorb(scores.masked_fill(~visible, NEVER), values)
    out, lse = state.finish()
    return (
        out.reshape(num_kv_heads, num_queries, group, -1).transpose(0, 1).flatten(1, 2),
        lse.reshape(num_kv_heads, num_queries, group).transpose(0, 1).flatten(1, 2),
    )


def check_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None,
    window: int = 0,
    scales: KVScales | None = None,
) -> list[Row]:
    """All that `paged_attention` asks of shapes, types, strides, scales, lengths and blocks; the rows."""
    check_caches(k_cache, v_cache, STORED)
    check_scales(k_cache, scales)
    check_queries(q, k_cache, v_cache, out)
    check_same_device(q=q, block_table=block_table, query_start_loc=query_start_loc)
    return rows_of(query_start_loc, seq_lens, block_table, pages_of(k_cache), len(q), window)


@torch.no_grad()
def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [T, H, DV] in Q's type and lse [T, H]: every token of Q over all tokens of its sequence up to itself.

    Caches [NB, BS, KH, ...], block_table [S, max_blocks], query_start_loc [S+1] and seq_lens [S], int32. A query of a
    row sits at position seq_len - query_len and following. `scales` beside FP8 caches. Padded rows, and tokens of no
    row, give 0 and -inf. `out` is written last, so it may share memory with what is read.
    """
    check_scale(scale, window, soft_cap)
    rows = check_paged(q, k_cache, v_cache, block_table, query_start_loc, seq_lens, out, window, scales)
    result = q.new_zeros(*q.shape[:2], v_cache.shape[3])
    lse = torch.full(q.shape[:2], NEVER, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for row in rows:
        for tokens, positions, first, stop in query_tiles(row, window, q.device):
            k, v = gather_kv((k_cache, v_cache), row.table, first, stop, scales)
            result[tokens], lse[tokens] = attend(
                q[tokens], k, v, positions, first, scale=scale, window=window, soft_cap=soft_cap
            )
    return (result if out is None else out.copy_(result)), lse
