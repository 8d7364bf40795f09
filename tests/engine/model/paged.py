"""A KV memory for tests, poisoned and with shuffled block tables, and sequences that run through it in chunks."""

from __future__ import annotations

from random import Random

import torch

from engine.attention import AttentionLayer, AttentionMetadata, allocate_kv_caches, get_backend
from engine.model import Architecture, Decoder, Ops, Weights
from engine.model.latent_projections import up_projections

CPU = torch.device("cpu")


class PagedKV:
    """Every layer's cache of one backend, full of NaN: what is read before it is written shows in every logit."""

    def __init__(
        self,
        a: Architecture,
        backend: str,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        weights: Weights | None = None,
    ) -> None:
        """`weights`: of a model that caches latents."""
        kind = get_backend(backend)
        self.builder = kind.get_builder_cls()(block_size, device)
        self._layers = []
        up = [{"up": one} for one in up_projections(a, weights)] if weights and a.latent else [{}] * a.num_layers
        for layer in range(a.num_layers):
            config = a.layer_config(layer)
            (cache,) = allocate_kv_caches(
                kind, config, num_layers=1, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=device
            )
            self._layers.append(AttentionLayer(kind, config, cache.fill_(torch.nan), **up[layer]))

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        attention = self._layers[layer]
        return attention.impl.split(attention.kv_cache)

    def scales(self, layer: int) -> None:
        return None

    def attend(self, layer: int, q: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor) -> None:
        attention = self._layers[layer]
        attention.impl.attend(q, attention.kv_cache, metadata, out)


class Runner:
    """Sequences of known tokens, of which each step computes some more."""

    def __init__(
        self,
        a: Architecture,
        weights: Weights,
        ops: Ops,
        backend: str,
        sequences: list[list[int]],
        block_size: int = 4,
        seed: int = 0,
    ) -> None:
        sizes = [-(-len(tokens) // block_size) for tokens in sequences]
        ids = Random(seed).sample(range(1, sum(sizes) + 4), sum(sizes))
        self.device = weights.embedding.device
        self.kv = PagedKV(a, backend, sum(sizes) + 4, block_size, device=self.device, weights=weights)
        self.tables = [[ids.pop() for _ in range(size)] for size in sizes]
        self.sequences = sequences
        self.done = [0] * len(sequences)
        total = sum(map(len, sequences))
        self.decoder = Decoder(a, weights, ops, self.kv, max_tokens=total, max_num_seqs=total)

    def step(self, new: dict[int, int]) -> dict[int, torch.Tensor]:
        """Logits [new, V], on the CPU, of each row that computes `new` more tokens; rows with one token go first."""
        rows = sorted(new, key=lambda row: new[row] != 1)
        positions = [range(self.done[row], self.done[row] + new[row]) for row in rows]
        metadata = self.kv.builder.build(
            [new[row] for row in rows],
            [self.done[row] + new[row] for row in rows],
            [self.tables[row] for row in rows],
        )
        ids = [self.sequences[row][p] for row, part in zip(rows, positions, strict=True) for p in part]
        places = [p for part in positions for p in part]
        ids_and_places = torch.tensor([ids, places], device=self.device)
        hidden = self.decoder.forward(*ids_and_places, metadata.slot_mapping, metadata)
        logits = self.decoder.logits(hidden).cpu().clone()
        for row in rows:
            self.done[row] += new[row]
        return dict(zip(rows, logits.split([new[row] for row in rows]), strict=True))

    def run(self, steps: list[dict[int, int]]) -> list[torch.Tensor]:
        """Logits [tokens, V] of every sequence, after all steps."""
        parts: list[list[torch.Tensor]] = [[] for _ in self.sequences]
        for new in steps:
            for row, logits in self.step(new).items():
                parts[row].append(logits)
        assert self.done == [len(tokens) for tokens in self.sequences], "the steps do not cover the sequences"
        return [torch.cat(part) for part in parts]
