"""One pool of K and V in one layout, one block table and slot mapping, and what any backend should read there.

Slots that no sequence has filled hold what earlier requests left, blocks of nobody NaN. What is expected is computed
from the definition, on K and V kept apart from the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from engine.attention import AttentionImpl, KVLayout, LayerConfig, get_backend
from tests.engine.attention.kernels.pools import causal

KINDS = {
    "decode": [(1, 1), (1, 700), (1, 63), (1, 64), (1, 2500)],
    "prefill": [(300, 300), (64, 64), (17, 17), (129, 129)],
    "mixed": [(1, 900), (1, 33), (1, 16), (200, 700), (70, 70)],
}
"""(query length, sequence length) of each row, decodes first."""


@dataclass
class SharedPool:
    """Sequences of a step whose blocks lie shuffled in one pool."""

    rows: list[tuple[int, int]]
    layout: KVLayout
    block_size: int = 16
    heads: tuple[int, int, int] = (32, 8, 128)
    """H, KH, D."""
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    spare_blocks: int = 3
    seed: int = 0
    cache: torch.Tensor = field(init=False)
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        needed = [-(-length // self.block_size) for _, length in self.rows]
        num_blocks = sum(needed) + self.spare_blocks
        ids = list(range(num_blocks))
        Random(self.seed).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        generator = torch.Generator(self.device).manual_seed(self.seed)
        num_heads, kv_heads, size = self.heads

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(self.dtype)

        self.cache = normal(*self.layout.shape(num_blocks, self.block_size, kv_heads, size))
        for view in self.views():
            view[torch.tensor(ids, device=self.device)] = torch.nan
        num_tokens = sum(new for new, _ in self.rows)
        self.q = normal(num_tokens, num_heads, size)
        self.k, self.v = normal(num_tokens, kv_heads, size), normal(num_tokens, kv_heads, size)
        self.held = [self._held(view, new) for view, new in zip(self.views(), (self.k, self.v), strict=True)]

    def views(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [NB, BS, KH, D] of the pool."""
        return self.layout.split(self.cache)

    def _held(self, view: torch.Tensor, new: torch.Tensor) -> list[torch.Tensor]:
        """[length, KH, D] of each sequence once the step is written."""
        found, at = [], 0
        for table, (queries, length) in zip(self.tables, self.rows, strict=True):
            tokens = view[torch.tensor(table, device=self.device)].flatten(0, 1)[:length].clone()
            tokens[length - queries :] = new[at : at + queries]
            found.append(tokens)
            at += queries
        return found

    def config(self, window: int = 0, soft_cap: float = 0.0) -> LayerConfig:
        """The layer."""
        num_heads, kv_heads, size = self.heads
        return LayerConfig(num_heads, kv_heads, size, size**-0.5, window, soft_cap)

    def impl(self, name: str, **asks: Any) -> AttentionImpl[Any]:
        """A backend's layer over the pool's layout; refused as a model's layer would be."""
        backend, config = get_backend(name), self.config(**asks)
        backend.check_layer(config, self.block_size, self.dtype)
        return backend.get_impl_cls()(config, backend.pick_layout(self.layout))

    def metadata(self, name: str, **options: Any) -> Any:
        """The step for a backend, made from the same lengths and tables for all of them."""
        builder = get_backend(name).get_builder_cls()(self.block_size, torch.device(self.device))
        queries, lengths = [new for new, _ in self.rows], [length for _, length in self.rows]
        return builder.build(queries, lengths, self.tables, **options)

    def expected(self, window: int = 0, soft_cap: float = 0.0) -> torch.Tensor:
        """[T, H, D] in float32."""
        outputs, at = [], 0
        scale = self.config().scale
        for (queries, length), keys, values in zip(self.rows, *self.held, strict=True):
            q = self.q[at : at + queries].float()
            outputs.append(causal(q, keys.float(), values.float(), length - queries, scale, window, soft_cap))
            at += queries
        return torch.cat(outputs)

    def worst(self, out: torch.Tensor, expected: torch.Tensor) -> float:
        """Largest relative error of a sequence in the Frobenius norm; infinite where anything is not finite."""
        if not bool(out.isfinite().all()):
            return float("inf")
        errors, at = [], 0
        for queries, _ in self.rows:
            got, wanted = out[at : at + queries].float(), expected[at : at + queries]
            errors.append(float((got - wanted).norm() / wanted.norm()))
            at += queries
        return max(errors)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that NaN equals itself."""
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
