"""Which part of a model one rank of several has: whole heads, and an even part of the MLP and of the vocabulary.

As Shoeybi et al. (Megatron-LM, 2019, section 3) cut a layer: the matrices that make q, k and v, and gate and up, by
their outputs, the two behind them by their inputs, so that a layer needs two sums over the ranks. KV heads are divided,
or repeated where there are fewer of them than ranks. Embedding and head are cut by the vocabulary, too: kept whole they
would take 4 GB more of each rank for a model of 70 billion parameters, which are KV blocks, and 0.3 ms of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from engine.model.architecture import Architecture
from engine.model.latent import LatentAttention
from engine.model.weights import Shape, layer_shapes, top_shapes


class Placement(NamedTuple):
    """What a rank keeps of one weight."""

    axis: int
    """Along which the weight is cut, by one rank as by several."""
    ranges: tuple[tuple[int, int], ...]
    """Parts (start, stop) of the whole, along that axis, one behind the other in the rank's tensor."""
    length: int
    """Of the rank's tensor along that axis; what the parts do not fill is zero."""

    def shape(self, whole: Shape) -> Shape:
        """Of the rank's tensor."""
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `size` that compute one model together."""

    rank: int = 0
    size: int = 1

    def check(self, a: Architecture) -> None:
        """ValueError for a model that cannot be divided evenly."""
        ranks = f"tensor_parallel_size={self.size}"
        if a.num_heads % self.size:
            raise ValueError(f"{ranks}: {a.num_heads} query heads cannot be divided evenly: use a divisor of them")
        if max(a.num_kv_heads, self.size) % min(a.num_kv_heads, self.size):
            raise ValueError(f"{ranks}: {a.num_kv_heads} KV heads can be neither divided nor repeated evenly")
        if a.intermediate_size % self.size:
            raise ValueError(f"{ranks}: an MLP of {a.intermediate_size} cannot be divided evenly")

    def architecture(self, a: Architecture) -> Architecture:
        """The sizes that this rank computes with; the vocabulary stays the whole one."""
        if self.size == 1:
            return a
        return replace(
            a,
            num_heads=a.num_heads // self.size,
            num_kv_heads=max(a.num_kv_heads // self.size, 1),
            intermediate_size=a.intermediate_size // self.size,
        )

    def vocabulary(self, vocab_size: int) -> range:
        """Token ids whose rows of embedding and head this rank has; the last ranks may have fewer than the others."""
        each = -(-vocab_size // self.size)
        return range(min(self.rank * each, vocab_size), min((self.rank + 1) * each, vocab_size))

    def placement(self, a: Architecture, field: str, shape: Shape) -> Placement:
        """What this rank keeps of a field of the whole model, whose shape is given."""
        stem, axis = field.removesuffix("_bias"), int(field in ("o", "down"))
        if self.size == 1:
            return Placement(axis, ((0, shape[axis]),), shape[axis])
        if stem == "qkv":
            return self._heads(a) if a.latent is None else self._latents(a, a.latent)
        if stem in ("q_up", "kv_up"):
            return _joined([self._even(0, shape[0])])
        if stem == "gate_up":
            starts = (0, a.intermediate_size) if a.gated else (0,)
            return _joined([self._even(start, a.intermediate_size) for start in starts])
        if axis == 1:
            return _joined([self._even(0, shape[1])], axis)
        if field in ("o_bias", "down_bias") and self.rank:
            return Placement(0, (), shape[0])  # what is summed over the ranks gets its bias once
        if field in ("embedding", "lm_head"):
            ids = self.vocabulary(shape[0])
            return Placement(0, ((ids.start, ids.stop),), -(-shape[0] // self.size))
        return Placement(0, ((0, shape[0]),), shape[0])

    def _heads(self, a: Architecture) -> Placement:
        """Rows of q, k and v: this rank's query heads, and the KV heads that these read."""
        d, own_kv = a.head_size, max(a.num_kv_heads // self.size, 1)
        first = self.rank * a.num_kv_heads // self.size
        keys = first * d, (first + own_kv) * d
        k_start, v_start = a.num_heads * d, (a.num_heads + a.num_kv_heads) * d
        return _joined([self._even(0, a.num_heads * d), *((s + keys[0], s + keys[1]) for s in (k_start, v_start))])

    def _latents(self, a: Architecture, latent: LatentAttention) -> Placement:
        """What makes latents, whole on each rank; queries that are made in one step by heads."""
        queries = latent.query_rows(a.num_heads)
        own = (0, queries) if latent.q_lora_rank else self._even(0, queries)
        return _joined([own, (queries, queries + latent.size)])

    def _even(self, start: int, length: int) -> tuple[int, int]:
        each = length // self.size
        return start + self.rank * each, start + (self.rank + 1) * each

    def weights_bytes(self, a: Architecture, dtype: torch.dtype) -> int:
        """Of this rank's tensors in `dtype`, before any is made."""
        top, layers = (
            sum(math.prod(self.placement(a, name, shape).shape(shape)) for name, shape in shapes.items())
            for shapes in (top_shapes(a), layer_shapes(a))
        )
        return (top + a.num_layers * layers) * dtype.itemsize


def _joined(ranges: list[tuple[int, int]], axis: int = 0) -> Placement:
    return Placement(axis, tuple(ranges), sum(stop - start for start, stop in ranges))


WHOLE = Share()
"""Of a model on one device."""
