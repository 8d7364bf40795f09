"""Runs a decoder-only model over a step's tokens: matrix products here, small operations by `Ops`, attention by the KV.

The residual stream stays in one buffer; every other result of a layer goes to a buffer of the same step, so that a step
allocates next to nothing and addresses stay. Nothing waits for the device and no shape depends on values: a step can be
captured in a CUDA graph. Makes no gradients.

A rank of several has its part of heads, MLP and vocabulary (`engine.model.share`): what it adds to the residual stream
is summed over the ranks, twice a layer, so that all have the same hidden states.

Letters: T tokens of the batch, S rows that need logits, E hidden size, I intermediate size, V vocabulary; as in
`engine.attention` beyond that.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from engine.attention.kv_scales import KVScales
from engine.model.architecture import Architecture
from engine.model.collectives import ALONE, Collectives
from engine.model.latent_projections import buffer_sizes, project
from engine.model.ops import Ops
from engine.model.vocabulary import Vocabulary
from engine.model.weights import LayerWeights, Weights

_MAX_NUM_SEQS = 256


class KVMemory(Protocol):
    """The KV of all layers, as a decoder sees it."""

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [NB, BS, KH, D] of a layer, strided views of its cache; latents [NB, BS, 1, R + P] as K."""
        ...

    def scales(self, layer: int) -> KVScales | None:
        """Of a layer whose cache is FP8."""
        ...

    def attend(self, layer: int, q: torch.Tensor, metadata: Any, out: torch.Tensor) -> None:
        """Attention of q [T, H, D] over what the step's metadata says, into out [T, H, DV]; K and V are written."""
        ...


class Decoder:
    """A model at work: ids and positions in, hidden states and logits out."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights,
        ops: Ops,
        kv: KVMemory,
        *,
        max_tokens: int,
        max_num_seqs: int | None = None,
        ranks: Collectives = ALONE,
    ) -> None:
        """Buffers for steps of up to `max_tokens` tokens with logits of up to `max_num_seqs` rows. Architecture and
        weights are those of this rank, the vocabulary's size is the whole one's.

        max_num_seqs defaults to 256, or max_tokens if that is less. Buffers lie where the weights lie and have their
        type. ValueError for a limit below 1.
        """
        rows = min(max_tokens, _MAX_NUM_SEQS) if max_num_seqs is None else max_num_seqs
        for name, limit in (("max_tokens", max_tokens), ("max_num_seqs", rows)):
            if limit < 1:
                raise ValueError(f"need {name} of at least 1, got {limit}")
        self.architecture = a = architecture
        self.weights = weights
        self.ops = ops
        self.kv = kv
        self.ranks = ranks
        self.max_tokens = max_tokens
        self.max_num_seqs = rows
        like = weights.embedding
        self._cos_sin = a.rope.cos_sin(a.max_model_len, a.rotary_size, like.device) if a.rope else None
        self._residual, self._normed, self._added = (like.new_empty(max_tokens, a.hidden_size) for _ in range(3))
        self._final = like.new_empty(rows, a.hidden_size)
        self._vocabulary = Vocabulary(a.vocab_size, like, rows, ranks)
        # A layer's attention is over before its MLP begins: both use the same memory.
        self._attention_sizes: tuple[int, ...] = (a.qkv_size, a.attention_size)
        if a.latent is not None:
            self._attention_sizes = buffer_sizes(a, a.latent)
        self._mlp_sizes: tuple[int, ...] = (a.gate_up_size, a.intermediate_size)
        widest = max(sum(self._attention_sizes), sum(self._mlp_sizes))
        self._scratch = like.new_empty(max_tokens * widest)

    @torch.no_grad()
    def forward(self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, metadata: Any) -> torch.Tensor:
        """Hidden states [T, E] before the final norm, in a buffer that the next step overwrites.

        ids, positions and slots [T] int64; tokens with a slot below 0 are padding: their K and V are not written, but
        their id and position must exist (0 does). ValueError for more than max_tokens tokens.
        """
        num_tokens = ids.shape[0]
        if num_tokens > self.max_tokens:
            raise ValueError(f"a step of {num_tokens} tokens in buffers for max_tokens={self.max_tokens}")
        residual, added = self._residual[:num_tokens], self._added[:num_tokens]
        self._embed(ids, positions, residual)
        first = self.weights.layers[0]
        normed = self._norm(residual, first.input_norm, first.input_norm_bias, self._normed[:num_tokens])
        for number, layer in enumerate(self.weights.layers):
            self._attend(number, layer, normed, positions, slots, metadata, added)
            normed = self._add_norm(added, residual, layer.post_norm, layer.post_norm_bias, normed)
            self._mlp(layer, normed, added)
            if number + 1 < len(self.weights.layers):
                following = self.weights.layers[number + 1]
                normed = self._add_norm(added, residual, following.input_norm, following.input_norm_bias, normed)
        return residual.add_(added)

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [S, V] of chosen rows [S, E] of `forward`'s result, in the model's type, in a buffer; [S, 0] on all
        ranks but the first.

        The final norm is applied here. ValueError for more than max_num_seqs rows.
        """
        num_rows = hidden.shape[0]
        if num_rows > self.max_num_seqs:
            raise ValueError(f"logits of {num_rows} rows in a buffer for max_num_seqs={self.max_num_seqs}")
        weights = self.weights
        final = self._norm(hidden, weights.final_norm, weights.final_norm_bias, self._final[:num_rows])
        return self._vocabulary.logits(weights.lm_head, final)

    def _embed(self, ids: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
        self._vocabulary.embed(self.weights.embedding, ids, out)
        learned = self.weights.positions
        if learned is not None:
            out.add_(learned.index_select(0, positions + self.architecture.position_offset))

    def _attend(
        self,
        number: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        metadata: Any,
        out: torch.Tensor,
    ) -> None:
        a = self.architecture
        *buffers, mixed = self._buffers(self._attention_sizes, normed.shape[0])
        _linear(normed, layer.qkv, layer.qkv_bias, buffers[0])
        if a.latent is not None:
            assert self._cos_sin is not None
            q = project(a, layer, buffers, self.ops, self._cos_sin, positions, slots, self.kv.views(number)[0][:, :, 0])
        else:
            q = self._rotate(number, layer, buffers[0], positions, slots)
        self.kv.attend(number, q, metadata, mixed.view(-1, a.num_heads, a.attention_size // a.num_heads))
        _linear(mixed, layer.o, layer.o_bias, out)
        self.ranks.all_reduce(out)

    def _rotate(
        self, number: int, layer: LayerWeights, qkv: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Queries [T, H, D], turned; K and V of the step are written."""
        a = self.architecture
        return self.ops.rotate_and_write(
            qkv,
            self._cos_sin,
            positions,
            *self.kv.views(number),
            slots,
            num_heads=a.num_heads,
            num_kv_heads=a.num_kv_heads,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=a.norm_eps,
            scales=self.kv.scales(number),
        )

    def _mlp(self, layer: LayerWeights, normed: torch.Tensor, out: torch.Tensor) -> None:
        gate_up, inner = self._buffers(self._mlp_sizes, normed.shape[0])
        _linear(normed, layer.gate_up, layer.gate_up_bias, gate_up)
        inner = self.ops.gate(gate_up, out=inner) if self.architecture.gated else torch.relu_(gate_up)
        _linear(inner, layer.down, layer.down_bias, out)
        self.ranks.all_reduce(out)

    def _buffers(self, sizes: tuple[int, ...], num_tokens: int) -> list[torch.Tensor]:
        """Contiguous buffers [T, size], one behind the other in the scratch memory; the same ones at each call."""
        starts = accumulate((self.max_tokens * size for size in sizes), initial=0)
        return [
            self._scratch[start : start + num_tokens * size].view(num_tokens, size)
            for start, size in zip(starts, sizes, strict=False)
        ]

    def _norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
    ) -> torch.Tensor:
        eps = self.architecture.norm_eps
        if bias is None:
            return self.ops.norm(x, weight, eps, out=out)
        return out.copy_(F.layer_norm(x, weight.shape, weight, bias, eps))

    def _add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> torch.Tensor:
        if bias is None:
            return self.ops.add_norm(x, residual, weight, self.architecture.norm_eps, out=out)
        return self._norm(residual.add_(x), weight, bias, out)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)
