"""Paged attention in JAX Pallas: one kernel for decodes and chunks, over the interleaved pool, by block table.

The grid is (tiles of queries, KV heads). Which row a tile belongs to follows from query_start_loc and is worked out on
the device, so that no length ever comes to the host. A program holds its queries times the query heads of its KV head
as the rows of one matrix, gathers K and V of tokens by the table's entries, whatever the block size, and keeps an
online softmax in float32.

Interpreted on a CPU, compiled by Pallas's Triton lowering on a GPU. That lowering wants every size a power of two
(so tiles are, and what sticks out is masked), knows no scalar prefetch (so tables are plain operands), and has had a
deprecation notice since jax 0.11; Mosaic GPU, which follows it, copies whole boxes and cannot gather tokens of blocks
smaller than a tile. This module imports jax: only `engine.attention.pallas_backend` imports it, where a layer is made.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

LOWEST = -1e30
"""Of scores that nobody sees: finite, as infinity less infinity is NaN."""
SMALLEST_DOT = 16
"""Rows, columns and depth that Triton's matrix product asks for at least."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a compiled kernel is made for, besides the shapes of its operands."""

    num_heads: int
    scale: float
    window: int
    soft_cap: float
    queries: int
    """Of a row in one tile; 1: a tile a token."""
    keys: int
    """Tokens of a step of the softmax, a power of two."""
    interpret: bool

    def rows(self, group: int) -> int:
        """Rows of the score matrix, with `group` query heads a KV head."""
        return max(SMALLEST_DOT, pl.next_power_of_2(self.queries * group))


class Step(NamedTuple):
    """A step's addresses as jax has them, int32."""

    block_tables: jax.Array
    """[S, max_blocks]"""
    context_lens: jax.Array
    """[S], the step's own tokens included."""
    query_start_loc: jax.Array
    """[S + 1]"""
    num_seqs: jax.Array
    """[1]"""


def paged_attention(q: jax.Array, kv_cache: jax.Array, step: Step, *, tiling: Tiling) -> jax.Array:
    """Output [T, H, D] of q [T, H, D] over kv_cache [NB, BS, 2*KH, D]; tokens of no row, and rows of length 0, give 0.

    Nothing waits for the device. Compiled once for each set of shapes and each tiling.
    """
    out: jax.Array = (interpreted if tiling.interpret else compiled)(q, kv_cache, step, tiling=tiling)
    return out


def _paged_attention(q: jax.Array, kv_cache: jax.Array, step: Step, *, tiling: Tiling) -> jax.Array:
    tile_rows, tile_queries = tiles_of(step, len(q), tiling.queries)
    num_kv_heads = kv_cache.shape[2] // 2
    operands = tile_rows, tile_queries, *step[:3], q, kv_cache, jnp.zeros_like(q)
    like: Any = jax.ShapeDtypeStruct
    attend = pl.pallas_call(
        functools.partial(_attend, tiling=tiling, group=tiling.num_heads // num_kv_heads),
        out_shape=like(q.shape, q.dtype),
        grid=(len(tile_rows), num_kv_heads),
        input_output_aliases={len(operands) - 1: 0},  # zeros where no tile writes
        interpret=tiling.interpret,
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=2),
        name="paged_attention",
    )
    out: jax.Array = attend(*operands)
    return out


compiled = jax.jit(_paged_attention, static_argnames="tiling")
interpreted = jax.jit(
    _paged_attention,
    static_argnames="tiling",
    # What the interpreter makes is long and run a few times: optimizing it takes longer than it saves.
    compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)


def tiles_of(step: Step, num_tokens: int, queries: int) -> tuple[jax.Array, jax.Array]:
    """Row of each tile (-1: of none) and its first query in that row, int32.

    Rows begin a tile of their own; there are at most as many tiles as their sizes can ask for.
    """
    num_rows = len(step.context_lens)
    most = num_tokens if queries == 1 else num_tokens // queries + num_rows
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    counts = jnp.where(rows < step.num_seqs, jnp.diff(step.query_start_loc), 0)
    ends = jnp.cumsum(-(-counts // queries), dtype=jnp.int32)
    tiles = jnp.arange(most, dtype=jnp.int32)
    row = jnp.sum(tiles[:, None] >= ends[None, :], axis=1, dtype=jnp.int32)
    used = row < num_rows
    begins = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    place = jnp.minimum(row, num_rows - 1)
    return jnp.where(used, row, -1), jnp.where(used, (tiles - begins[place]) * queries, 0)


class _Tile(NamedTuple):
    """What a program is about: some queries of one row, and all query heads of one KV head."""

    row: Any
    kv_head: Any
    stop: Any
    """Past the last token that any query sees."""
    begin: Any
    """The first token that any query sees."""
    positions: Any
    """[M] of each matrix row's query in its sequence."""
    at: Any
    """[M, D]: where those queries lie, and their outputs."""
    mask: Any
    """[M, D]"""


def _attend(
    tile_rows: Any,
    tile_queries: Any,
    block_tables: Any,
    context_lens: Any,
    query_start_loc: Any,
    q: Any,
    kv_cache: Any,
    zeros: Any,
    out: Any,
    *,
    tiling: Tiling,
    group: int,
) -> None:
    """One program: a tile of queries, one KV head."""
    del zeros  # the output's own memory
    tile = _tile(tile_rows, tile_queries, context_lens, query_start_loc, q.shape, tiling, group)
    queries = pltriton.load(q.at[tile.at], mask=tile.mask, other=0.0)

    def step(index: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        tokens = index * tiling.keys + jnp.arange(tiling.keys, dtype=jnp.int32)
        k, v = _gathered(kv_cache, block_tables, tile, tokens)
        scores = _dot(queries, k.T) * tiling.scale
        if tiling.soft_cap:
            scores = tiling.soft_cap * jnp.tanh(scores / tiling.soft_cap)
        seen = (tokens[None, :] <= tile.positions[:, None]) & (tokens < tile.stop)[None, :]
        if tiling.window:
            seen &= tokens[None, :] > tile.positions[:, None] - tiling.window
        return _absorbed(state, jnp.where(seen, scores, LOWEST), seen, v)

    rows, size = tile.mask.shape
    empty = (
        jnp.full((rows,), LOWEST, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows, size), jnp.float32),
    )
    _, total, weighted = lax.fori_loop(tile.begin // tiling.keys, pl.cdiv(tile.stop, tiling.keys), step, empty)
    result = weighted / jnp.where(total > 0, total, 1.0)[:, None]
    pltriton.store(out.at[tile.at], result.astype(out.dtype), mask=tile.mask)


def _tile(
    tile_rows: Any,
    tile_queries: Any,
    context_lens: Any,
    query_start_loc: Any,
    shape: tuple[int, ...],
    tiling: Tiling,
    group: int,
) -> _Tile:
    num_tokens, _, head_size = shape
    program, kv_head = pl.program_id(0), pl.program_id(1)
    used = tile_rows[program] >= 0
    row, first = jnp.maximum(tile_rows[program], 0), tile_queries[program]
    start, length = query_start_loc[row], context_lens[row]
    count = jnp.where(used, query_start_loc[row + 1] - start, 0)
    context = length - count
    matrix = jnp.arange(tiling.rows(group), dtype=jnp.int32)
    query = first + matrix // group
    live = (matrix < tiling.queries * group) & (query < count)
    elements = jnp.arange(pl.next_power_of_2(max(head_size, SMALLEST_DOT)), dtype=jnp.int32)
    mask = live[:, None] & (elements < head_size)[None, :]
    # What is masked lies outside: interpreted, a masked store puts back what it found, and would undo another's.
    tokens = jnp.where(live, start + query, num_tokens)
    at = tokens[:, None], (kv_head * group + matrix % group)[:, None], elements[None, :]
    last = jnp.minimum(first + tiling.queries, count)
    stop = jnp.where(used, jnp.minimum(length, context + last), 0)
    begin = jnp.maximum(context + first - tiling.window + 1, 0) if tiling.window else jnp.int32(0)
    return _Tile(row, kv_head, stop, begin, context + query, at, mask)


def _gathered(kv_cache: Any, block_tables: Any, tile: _Tile, tokens: Any) -> tuple[Any, Any]:
    """K and V [keys, D] of tokens of the tile's row, by block table; 0 for those that no query sees.

    Entries of others are not looked at, and their slots not read: they may be anything.
    """
    size = kv_cache.shape[3]
    wanted = (tokens >= tile.begin) & (tokens < tile.stop)
    place = jnp.where(wanted, tokens, 0)
    blocks = pltriton.load(block_tables.at[tile.row, place // kv_cache.shape[1]], mask=wanted, other=0)
    blocks = jnp.where(wanted, blocks, 0)
    elements = jnp.arange(tile.mask.shape[1], dtype=jnp.int32)
    mask = wanted[:, None] & (elements < size)[None, :]

    def head(index: Any) -> Any:
        at = blocks[:, None], (place % kv_cache.shape[1])[:, None], index, elements[None, :]
        return pltriton.load(kv_cache.at[at], mask=mask, other=0.0)

    return head(2 * tile.kv_head), head(2 * tile.kv_head + 1)


def _absorbed(state: tuple[Any, Any, Any], scores: Any, seen: Any, v: Any) -> tuple[Any, Any, Any]:
    """The online softmax: largest score [M], sum of weights [M] and weighted V [M, D] once these tokens are in."""
    highest, total, weighted = state
    higher = jnp.maximum(highest, scores.max(axis=1))
    kept = jnp.exp(highest - higher)
    weights = jnp.where(seen, jnp.exp(scores - higher[:, None]), 0.0)
    added = _dot(weights.astype(v.dtype), v)
    return higher, total * kept + weights.sum(axis=1), weighted * kept[:, None] + added


def _dot(a: Any, b: Any) -> Any:
    """a @ b in float32: of float32 exactly, without TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot(a, b, precision=precision, preferred_element_type=jnp.float32)
