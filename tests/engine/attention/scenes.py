"""Batches of sequences as plain lists of K and V, the caches that hold them, and attention by loops in float64.

Nothing here uses the code under test: places in a cache are written out once more, and attention is the sum of its
definition, token by token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from engine.attention import AttentionLayer, KVLayout, LayerConfig, decodes_first, get_backend

POISONED_ENTRIES = (2**30, -7)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest difference over the largest value: rounding of the inputs is not counted, that of the output is."""


def attend_by_definition(
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    position: int,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> torch.Tensor:
    """One token's output [H, DV], of q [H, D] over lists of K [KH, D] and V [KH, DV]."""
    group = len(q) // len(keys[0])
    seen = [n for n in range(position + 1) if not window or position - n < window]
    heads = []
    for head, query in enumerate(q):
        scores = [float((query * keys[n][head // group]).sum()) * scale for n in seen]
        if soft_cap:
            scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        total = sum(weights)
        heads.append(sum(w / total * values[n][head // group] for w, n in zip(weights, seen, strict=True)))
    return torch.stack(heads)


def entry(cache: torch.Tensor, layout: KVLayout, block: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a cache keeps a token's K and V [KH, D], as views."""
    if layout is KVLayout.KV_FIRST:
        return cache[0, block, offset], cache[1, block, offset]
    if layout is KVLayout.BLOCK_FIRST:
        return cache[block, 0, offset], cache[block, 1, offset]
    heads = range(cache.shape[2] // 2)
    return (
        torch.as_strided(cache, (len(heads), cache.shape[3]), *_every_second(cache, block, offset, 0)),
        torch.as_strided(cache, (len(heads), cache.shape[3]), *_every_second(cache, block, offset, 1)),
    )


def _every_second(cache: torch.Tensor, block: int, offset: int, which: int) -> tuple[tuple[int, int], int]:
    per_block, per_slot, per_head, _ = cache.stride()
    return (2 * per_head, 1), block * per_block + offset * per_slot + which * per_head


def lengths_about(block_size: int) -> list[int]:
    """1, B-1, B, B+1 and a few blocks more."""
    return sorted({n for n in (1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3) if n > 0})


def batch(kind: str, block_size: int) -> list[tuple[int, int]]:
    """(query length, sequence length) of each row."""
    lengths = lengths_about(block_size)
    chunks = [(min(n, 1 + (n + 1) // 3), n) for n in lengths]
    match kind:
        case "decode":
            return [(1, n) for n in lengths]
        case "prefill":
            return [(n, n) for n in lengths]
        case "chunked":
            return chunks
        case "mixed":
            return [chunks[-1], (1, lengths[-1]), (lengths[-2], lengths[-2]), (1, 1), (1, lengths[1]), chunks[1]]
    raise ValueError(kind)


@dataclass
class Scene:
    """Sequences with their blocks, shuffled over a pool in which everything else is NaN."""

    rows: list[tuple[int, int]]
    """(query length, sequence length), decodes first."""
    block_size: int
    shape: tuple[int, int, int, int]
    """H, KH, D, DV."""
    dtype: torch.dtype = torch.float64
    seed: int = 0
    keys: list[list[torch.Tensor]] = field(init=False)
    values: list[list[torch.Tensor]] = field(init=False)
    queries: list[list[torch.Tensor]] = field(init=False)
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        order = decodes_first([new for new, _ in self.rows])
        self.rows = [self.rows[i] for i in order]
        generator = torch.Generator().manual_seed(self.seed)
        heads, kv_heads, size, size_v = self.shape

        def draw(count: int, *shape: int) -> list[torch.Tensor]:
            drawn = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
            return list(drawn.to(self.dtype).double())

        self.keys = [draw(length, kv_heads, size) for _, length in self.rows]
        self.values = [draw(length, kv_heads, size_v) for _, length in self.rows]
        self.queries = [draw(new, heads, size) for new, _ in self.rows]
        needed = [-(-length // self.block_size) for _, length in self.rows]
        ids = list(range(self.num_blocks))
        Random(self.seed).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]

    @property
    def num_blocks(self) -> int:
        """Three more than the sequences need."""
        return sum(-(-length // self.block_size) for _, length in self.rows) + 3

    def place(self, row: int, position: int) -> tuple[int, int]:
        """Block and offset of a token."""
        return self.tables[row][position // self.block_size], position % self.block_size

    def poisoned(self, backend: str, layout: KVLayout) -> torch.Tensor:
        """A cache of NaN."""
        _, kv_heads, size, _ = self.shape
        shape = get_backend(backend).get_kv_cache_shape(self.num_blocks, self.block_size, kv_heads, size, layout)
        return torch.full(shape, math.nan, dtype=self.dtype)

    def first_seen(self, row: int, window: int) -> int:
        """The first token that any query of the row sees."""
        new, length = self.rows[row]
        return max(0, length - new + 1 - window) if window else 0

    def fill(self, cache: torch.Tensor, layout: KVLayout, window: int = 0, *, step: bool = False) -> None:
        """Puts in what the sequences held before the step, as far as somebody sees it; with `step`, the step's too."""
        for row, (new, length) in enumerate(self.rows):
            for position in range(self.first_seen(row, window), length if step else length - new):
                k, v = entry(cache, layout, *self.place(row, position))
                k.copy_(self.keys[row][position])
                v.copy_(self.values[row][position])

    def new_tokens(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q [T, H, D], K and V [T, KH, D] of the step."""
        new_k = [k for row, (new, _) in enumerate(self.rows) for k in self.keys[row][-new:]]
        new_v = [v for row, (new, _) in enumerate(self.rows) for v in self.values[row][-new:]]
        new_q = [q for queries in self.queries for q in queries]
        q, k, v = (torch.stack(tensors).to(self.dtype) for tensors in (new_q, new_k, new_v))
        return q, k, v

    def metadata(self, builder: Any, window: int = 0) -> Any:
        """The step's metadata; entries of block tables that nobody reads are poisoned."""
        tables = [table + list(POISONED_ENTRIES) for table in self.tables]
        made = builder.build([new for new, _ in self.rows], [length for _, length in self.rows], tables)
        for row in range(len(self.rows)):
            entries, first = table_row(made, row), self.first_seen(row, window) // self.block_size
            entries[:first] = POISONED_ENTRIES[1]
            entries[len(self.tables[row]) :] = POISONED_ENTRIES[0]
        return made

    def expected(self, config: LayerConfig) -> torch.Tensor:
        """Outputs [T, H, DV] by definition."""
        return torch.stack(
            [
                attend_by_definition(
                    query,
                    self.keys[row],
                    self.values[row],
                    length - new + index,
                    scale=config.scale,
                    window=config.window,
                    soft_cap=config.soft_cap,
                )
                for row, (new, length) in enumerate(self.rows)
                for index, query in enumerate(self.queries[row])
            ]
        )


def table_row(metadata: Any, row: int) -> torch.Tensor:
    """A row's block table, under whatever name."""
    if hasattr(metadata, "block_tables"):
        return metadata.block_tables[row]
    if hasattr(metadata, "block_table"):
        return metadata.block_table[row]
    if row < metadata.num_decodes:
        return metadata.decode.block_table[row]
    return metadata.prefill.block_table[row - metadata.num_decodes]


def worst(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected value; NaN and infinity count as infinite."""
    difference = (got.double() - expected).abs().max() / expected.abs().max()
    return float(difference) if bool(torch.isfinite(difference)) else math.inf


def step(scene: Scene, backend: str, config: LayerConfig, layout: KVLayout | None = None) -> tuple[float, bool]:
    """Runs a scene through a layer: (error against the definition, whether the cache holds what it should)."""
    chosen = get_backend(backend)
    layout = chosen.pick_layout(layout)
    cache, held = (scene.poisoned(backend, layout) for _ in range(2))
    scene.fill(cache, layout, config.window)
    scene.fill(held, layout, config.window)
    q, k, v = scene.new_tokens()
    metadata = scene.metadata(chosen.get_builder_cls()(scene.block_size), config.window)
    layer = AttentionLayer(chosen, config, cache, layout)
    out = layer(q, k, v, metadata)
    write_by_hand(scene, held, layout)
    assert out.dtype == scene.dtype
    return worst(out, scene.expected(config)), torch.equal(cache.nan_to_num(1e30), held.nan_to_num(1e30))


def write_by_hand(scene: Scene, cache: torch.Tensor, layout: KVLayout) -> None:
    """The step's K and V, whoever sees them."""
    for row, (new, length) in enumerate(scene.rows):
        for position in range(length - new, length):
            k, v = entry(cache, layout, *scene.place(row, position))
            k.copy_(scene.keys[row][position])
            v.copy_(scene.values[row][position])
