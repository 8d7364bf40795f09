"""Paged pools and contiguous rows for kernel tests, poisoned wherever nobody should read, and attention in float64.

Every slot that holds no token of a sequence is NaN; table entries beyond a sequence's blocks are ids far outside the
pool; blocks lie in random order. What a kernel returns is compared with `expected`, which never saw a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

GARBAGE = (2**31 - 1, -7, 2**30 + 5)
"""Ids in table entries that nobody should read: as an address, each is a fault or a NaN."""
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest difference, relative to the output's spread; half types round p and the output."""


@dataclass
class Case:
    """Sequences of `lengths` tokens, whose last `query_lens` tokens are queries (1 each: decode)."""

    lengths: Sequence[int]
    query_lens: Sequence[int] = ()
    num_kv_heads: int = 1
    group: int = 4
    head_size: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    layout: str = "kv_first"
    device: str = "cpu"
    seed: int = 0
    block_gap: int = 1
    """Only every block_gap-th block of the pool is used: a larger pool for far addresses."""
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.query_lens = tuple(self.query_lens) or (1,) * len(self.lengths)
        self.scale = self.head_size**-0.5
        self._draw()

    def _draw(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.num_kv_heads, self.head_size)

        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator).to(self.dtype)

        self.keys = [normal(length, *shape) for length in self.lengths]
        self.values = [normal(length, *shape) for length in self.lengths]
        self.q = normal(sum(self.query_lens), self.num_kv_heads * self.group, self.head_size).to(self.device)
        starts = torch.tensor([0, *self.query_lens]).cumsum(0)
        self.query_start_loc = starts.to(torch.int32).to(self.device)
        self.seq_lens = torch.tensor(self.lengths, dtype=torch.int32).to(self.device)
        self.generator = generator

    @property
    def max_seq_len(self) -> int:
        return max(self.lengths, default=0)

    @property
    def max_query_len(self) -> int:
        return max(self.query_lens, default=0)

    def paged(self, window: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """k_cache, v_cache [NB, BS, KH, D] as views of one poisoned storage, and block_table [S, max_blocks + 2].

        With a window, blocks that no query sees any more have left the table, and their contents are gone.
        """
        blocks = [-(-length // self.block_size) for length in self.lengths]
        order = torch.randperm(sum(blocks) + 3, generator=self.generator) * self.block_gap
        num_blocks = (sum(blocks) + 3) * self.block_gap
        k_cache, v_cache = poisoned_caches(
            self.layout, num_blocks, self.block_size, self.num_kv_heads, self.head_size, self.dtype, self.device
        )
        table = torch.tensor(GARBAGE, dtype=torch.int32).repeat(len(blocks), max(blocks, default=0) + 3)
        table = table[:, : max(blocks, default=0) + 2].contiguous()
        used = 0
        for row, (count, length) in enumerate(zip(blocks, self.lengths, strict=True)):
            ids = order[used : used + count]
            used += count
            table[row, :count] = ids.to(torch.int32)
            ids, position = ids.to(self.device), torch.arange(length, device=self.device)
            at = ids[position // self.block_size], position % self.block_size
            k_cache[at] = self.keys[row].to(self.device)
            v_cache[at] = self.values[row].to(self.device)
            if window:
                gone = max(0, length - self.query_lens[row] + 1 - window) // self.block_size
                table[row, :gone] = torch.tensor(GARBAGE, dtype=torch.int32).repeat(gone)[:gone]
                k_cache[ids[:gone]] = v_cache[ids[:gone]] = torch.nan
        return k_cache, v_cache, table.to(self.device)

    def contiguous(self, gap: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """k, v [N, KH, D] with `gap` poisoned rows around every sequence, and starts [S] int64."""
        num_rows = sum(self.lengths) + gap * (len(self.lengths) + 1)
        rows = torch.full(
            (num_rows, 2, self.num_kv_heads, self.head_size), torch.nan, dtype=self.dtype, device=self.device
        )
        starts, at = [], gap
        for keys, values in zip(self.keys, self.values, strict=True):
            rows[at : at + len(keys), 0] = keys.to(self.device)
            rows[at : at + len(keys), 1] = values.to(self.device)
            starts.append(at)
            at += len(keys) + gap
        return rows[:, 0], rows[:, 1], torch.tensor(starts, dtype=torch.int64).to(self.device)

    def expected(self, window: int = 0, soft_cap: float = 0.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The output [T, H, D], computed on the device in `dtype`."""
        outputs = []
        for row, (length, queries) in enumerate(zip(self.lengths, self.query_lens, strict=True)):
            first = int(self.query_start_loc[row])
            q = self.q[first : first + queries].to(dtype)
            keys, values = (x[row].to(self.device).to(dtype) for x in (self.keys, self.values))
            outputs.append(causal(q, keys, values, length - queries, self.scale, window, soft_cap))
        return torch.cat(outputs)


def causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int, scale: float, window: int, soft_cap: float
) -> torch.Tensor:
    """Plain attention of queries at positions context, context + 1, ... over k, v [L, KH, D]; no key: zero."""
    num_kv_heads = k.shape[1]
    q = q.unflatten(1, (num_kv_heads, -1))
    scores = torch.einsum("qhgd,khd->hgqk", q, k) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    behind = context + torch.arange(len(q), device=q.device)[:, None] - torch.arange(len(k), device=q.device)
    hidden = behind < 0
    if window:
        hidden |= behind >= window
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0)
    return torch.einsum("hgqk,khd->qhgd", weights, v).flatten(1, 2)


def poisoned_caches(
    layout: str, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [NB, BS, KH, D] of a layer's cache full of NaN, as strided views of one storage."""

    def nans(*sizes: int) -> torch.Tensor:
        if dtype == torch.float8_e4m3fn:
            return torch.full(sizes, 0x7F, dtype=torch.uint8, device=device).view(dtype)
        return torch.full(sizes, torch.nan, dtype=dtype, device=device)

    if layout == "kv_first":
        cache = nans(2, num_blocks, block_size, num_kv_heads, head_size)
        return cache[0], cache[1]
    if layout == "block_first":
        cache = nans(num_blocks, 2, block_size, num_kv_heads, head_size)
        return cache[:, 0], cache[:, 1]
    assert layout == "interleaved", layout
    cache = nans(num_blocks, block_size, 2 * num_kv_heads, head_size)
    return cache[:, :, 0::2], cache[:, :, 1::2]


def assert_close(got: torch.Tensor, expected: torch.Tensor, times: float = 1.0) -> None:
    """Within `times` the type's tolerance of the expected values' spread, and no NaN anywhere."""
    assert got.shape == expected.shape
    difference = (got.to(expected.dtype) - expected).abs().max().item() if got.numel() else 0.0
    spread = max(expected.abs().max().item() if got.numel() else 0.0, 1e-3)
    assert difference <= times * TOLERANCE[got.dtype] * spread, f"differs by {difference:.3g} of {spread:.3g}"
