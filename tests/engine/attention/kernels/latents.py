"""Pools of latents for kernel tests, poisoned wherever nobody should read; what should come out is the reference's.

Every slot that holds no token is NaN, and table entries beyond a sequence's blocks are ids far outside the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.attention import LayerConfig, get_backend
from tests.engine.attention.kernels.pools import GARBAGE


@dataclass
class LatentCase:
    """Sequences of `lengths` latents, whose last `query_lens` tokens are absorbed queries (1 each: decode)."""

    lengths: Sequence[int]
    query_lens: Sequence[int] = ()
    num_heads: int = 4
    rank: int = 32
    rotary: int = 16
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    gap: int = 0
    """Elements between two slots, and between two tokens of q: strides of their own."""
    block_gap: int = 1
    """Only every block_gap-th block of the pool is used: far addresses."""
    latents: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.query_lens = tuple(self.query_lens) or (1,) * len(self.lengths)
        generator = torch.Generator().manual_seed(len(self.lengths))
        size, total = self.rank + self.rotary, sum(self.query_lens)

        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator).to(self.dtype).to(self.device)

        self.latents = [normal(length, size) for length in self.lengths]
        self.q = normal(total, self.num_heads, size + self.gap)[..., :size]
        self.counts = [-(-length // self.block_size) for length in self.lengths]
        self.order = torch.randperm(sum(self.counts) + 3, generator=generator).tolist()
        starts = torch.tensor([0, *self.query_lens]).cumsum(0)
        self.query_start_loc = starts.to(torch.int32).to(self.device)
        self.seq_lens = torch.tensor(self.lengths, dtype=torch.int32).to(self.device)
        self.scale = 1.7 * size**-0.5

    @property
    def max_seq_len(self) -> int:
        return max(self.lengths, default=0)

    @property
    def max_query_len(self) -> int:
        return max(self.query_lens, default=0)

    def pool(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The cache [NB, BS, latent] and block_table [S, max_blocks + 2]."""
        size = self.rank + self.rotary
        shape = len(self.order) * self.block_gap, self.block_size, size + self.gap
        cache = torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)[..., :size]
        width = max(self.counts, default=0) + 2
        table = torch.tensor(GARBAGE, dtype=torch.int32).repeat(len(self.counts), width)[:, :width].contiguous()
        used = 0
        for row, (count, latents) in enumerate(zip(self.counts, self.latents, strict=True)):
            ids = torch.tensor(self.order[used : used + count], dtype=torch.int64) * self.block_gap
            used += count
            table[row, :count] = ids.to(torch.int32)
            position = torch.arange(len(latents))
            cache[ids[position // self.block_size].to(self.device), (position % self.block_size).to(self.device)] = (
                latents
            )
        return cache, table.to(self.device)

    def expected(self) -> torch.Tensor:
        """[T, H, rank] of the reference in float64 on the CPU, over the same latents in a pool of its own."""
        config = LayerConfig(self.num_heads, 1, self.rank + self.rotary, self.scale, kv_lora_rank=self.rank)
        size, layer = self.block_size, get_backend("reference-mla")
        tables, blocks = [], 0
        cache = torch.zeros(sum(self.counts) + 1, size, config.head_size, dtype=torch.float64)
        kept = [row for row, length in enumerate(self.lengths) if length and self.query_lens[row]]
        for row in kept:
            ids = list(range(blocks, blocks + self.counts[row]))
            blocks += len(ids)
            tables.append(ids)
            flat = cache[ids].flatten(0, 1)
            flat[: self.lengths[row]] = self.latents[row].double().cpu()
            cache[ids] = flat.unflatten(0, (len(ids), size))
        out = torch.zeros(*self.q.shape[:2], self.rank, dtype=torch.float64)
        ones = [index for index, row in enumerate(kept) if self.query_lens[row] == 1]
        order = ones + [index for index in range(len(kept)) if index not in ones]  # decodes first, as metadata wants
        rows = [kept[index] for index in order]
        if not rows:
            return out
        firsts = self.query_start_loc.tolist()
        places = torch.cat([torch.arange(firsts[row], firsts[row + 1]) for row in rows])
        lengths = [self.query_lens[row] for row in rows], [self.lengths[row] for row in rows]
        metadata = layer.get_builder_cls()(size).build(*lengths, [tables[index] for index in order])
        impl = layer.get_impl_cls()(config, layer.pick_layout())
        out[places] = impl.attend(self.q.double().cpu()[places], cache, metadata)
        return out
