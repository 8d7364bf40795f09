"""Multi-head latent attention in plain torch (DeepSeek-V2, section 2.1): the specification of the `mla` backends.

A token's cache entry is one latent: kv_lora_rank elements c, and the rotary part of the key, which all heads share. K
of head h is (c @ w_uk[h], rotary part), V of head h is c @ w_uv[h]. A decode never makes them: the up-projections move
to the other side of the products (*absorbed*), and the latents serve as the K and V of one head that all query heads
share. A prefill expands the latents to K and V of every head. Both give the same numbers; they differ in work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionImpl, LayerConfig
from engine.attention.checks import (
    FLOATS,
    AttentionInputError,
    check_caches,
    check_dtype,
    check_inner_stride,
    check_places,
    check_same_device,
    check_shape,
)
from engine.attention.layouts import KVLayout
from engine.attention.metadata import MLADecode, MLAMetadata, MLAPrefill
from engine.attention.reference import (
    attend,
    check_step,
    gather,
    paged_attention,
    pages_of,
    query_tiles,
    rows_of,
    write_kv,
)


@dataclass(frozen=True, slots=True, eq=False)
class UpProjections:
    """What turns a latent into K and V of H heads; one floating type. AttentionInputError where shapes do not fit."""

    w_uk: torch.Tensor
    """[H, kv_lora_rank, qk_nope_head_dim]."""
    w_uv: torch.Tensor
    """[H, kv_lora_rank, v_head_dim]."""

    def __post_init__(self) -> None:
        check_shape("w_uk", self.w_uk, ("H", "kv_lora_rank", "qk_nope_head_dim"))
        check_shape("w_uv", self.w_uv, (*self.w_uk.shape[:2], "v_head_dim"))
        check_dtype("w_uk", self.w_uk, FLOATS)
        check_dtype("w_uv", self.w_uv, (self.w_uk.dtype,))
        check_same_device(w_uk=self.w_uk, w_uv=self.w_uv)

    def absorb(self, q: torch.Tensor) -> torch.Tensor:
        """Queries [T, H, nope + rotary] as queries of latents [T, H, kv_lora_rank + rotary]."""
        nope = self.w_uk.shape[2]
        return torch.cat((torch.einsum("thn,hrn->thr", q[..., :nope], self.w_uk), q[..., nope:]), dim=-1)

    def lift(self, out: torch.Tensor) -> torch.Tensor:
        """Weighted latents [T, H, kv_lora_rank] as outputs [T, H, v_head_dim]."""
        return torch.einsum("thr,hrv->thv", out, self.w_uv)

    def expand(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents [N, 1, kv_lora_rank + rotary] as K [N, H, nope + rotary] and V [N, H, v_head_dim]."""
        num_heads, rank, _ = self.w_uk.shape
        c, rotary = latents[..., :rank].squeeze(1), latents[..., rank:].expand(-1, num_heads, -1)
        k = torch.cat((torch.einsum("nr,hrd->nhd", c, self.w_uk), rotary), dim=-1)
        return k, torch.einsum("nr,hrd->nhd", c, self.w_uv)


class ReferenceMLAImpl(AttentionImpl[MLAMetadata]):
    """As vLLM's MLA layers, `key` is c [T, 1, kv_lora_rank] and `value` the rotary part [T, 1, rotary].

    With `up`, of the cache's type, queries are [T, H, nope + rotary] and outputs [T, H, v_head_dim]; absorbed queries
    are rounded to their own type, as a model rounds them. Without, the caller has absorbed: queries are [T, H, latent]
    and outputs [T, H, kv_lora_rank], for chunks as for decodes.
    """

    def __init__(self, config: LayerConfig, layout: KVLayout, up: UpProjections | None = None) -> None:
        super().__init__(config, layout)
        self.up = up
        if up is not None:
            expected = (config.num_heads, config.kv_lora_rank)
            if tuple(up.w_uk.shape[:2]) != expected:
                raise AttentionInputError(f"w_uk: expected (H, kv_lora_rank) = {expected}, got {up.w_uk.shape[:2]}")

    @property
    def rotary(self) -> int:
        """Elements of the latent behind kv_lora_rank."""
        return self.config.head_size - self.config.kv_lora_rank

    @property
    def query_shape(self) -> tuple[int, int]:
        """Of one token: heads and elements."""
        size = self.config.head_size if self.up is None else self.up.w_uk.shape[2] + self.rotary
        return self.config.num_heads, size

    @property
    def output_shape(self) -> tuple[int, int]:
        """Of one token: heads and elements."""
        size = self.config.kv_lora_rank if self.up is None else self.up.w_uv.shape[2]
        return self.config.num_heads, size

    def check_write(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata
    ) -> None:
        latents, _ = self._caches(kv_cache)
        check_shape("key", key, (len(metadata.slot_mapping), 1, self.config.kv_lora_rank))
        check_shape("value", value, (len(key), 1, self.rotary))
        check_step(key, value, *self._parts(latents), metadata.slot_mapping)

    def check_attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata, out: torch.Tensor | None
    ) -> None:
        latents, _ = self._caches(kv_cache)
        num_tokens = len(metadata.slot_mapping)
        check_shape("query", query, (num_tokens, *self.query_shape))
        check_dtype("query", query, (latents.dtype,))
        check_inner_stride("query", query)
        check_same_device(kv_cache=kv_cache, query=query)
        if out is not None:
            check_shape("out", out, (num_tokens, *self.output_shape))
            check_dtype("out", out, (query.dtype,))
            check_inner_stride("out", out)
            check_places("out", out)
            check_same_device(kv_cache=kv_cache, out=out)
        if self.up is not None:
            check_dtype("w_uk and w_uv", self.up.w_uk, (latents.dtype,))
            check_same_device(kv_cache=kv_cache, w_uk=self.up.w_uk)
        check_same_device(kv_cache=kv_cache, slot_mapping=metadata.slot_mapping)
        self._check_parts(latents, metadata)

    def _check_parts(self, latents: torch.Tensor, metadata: MLAMetadata) -> None:
        """Lengths and blocks of both parts."""
        pages, window, num_decodes = pages_of(latents), self.config.window, metadata.num_decodes
        num_chunk_tokens = len(metadata.slot_mapping) - num_decodes
        if metadata.decode is not None:
            part = metadata.decode
            starts = _one_each(num_decodes, latents.device)
            rows_of(starts, part.seq_lens, part.block_table, pages, num_decodes, window)
        if metadata.prefill is not None:
            chunks = metadata.prefill
            rows_of(chunks.query_start_loc, chunks.seq_lens, chunks.block_table, pages, num_chunk_tokens, window)

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k_cache, v_cache = self.split(kv_cache)
        check_caches(k_cache, v_cache)
        check_shape("kv_cache", kv_cache, ("NB", "BS", self.config.head_size))
        return k_cache, v_cache

    def _write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata) -> None:
        latents, _ = self.split(kv_cache)
        write_kv(key, value, *self._parts(latents), metadata.slot_mapping)

    def _parts(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """c and the rotary part, views."""
        return latents[..., : self.config.kv_lora_rank], latents[..., self.config.kv_lora_rank :]

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        result = query.new_zeros(len(query), *self.output_shape)
        first = metadata.num_decodes
        if metadata.decode is not None:
            result[:first] = self._decode(query[:first], kv_cache, metadata.decode)
        if metadata.prefill is not None:
            result[first:] = self._prefill(query[first:], kv_cache, metadata.prefill)
        return result if out is None else out.copy_(result)

    def _decode(self, q: torch.Tensor, kv_cache: torch.Tensor, part: MLADecode) -> torch.Tensor:
        return self._absorbed(q, kv_cache, part.block_table, _one_each(len(q), q.device), part.seq_lens)

    def _prefill(self, q: torch.Tensor, kv_cache: torch.Tensor, part: MLAPrefill) -> torch.Tensor:
        if self.up is None:
            return self._absorbed(q, kv_cache, part.block_table, part.query_start_loc, part.seq_lens)
        config, (latents, _) = self.config, self.split(kv_cache)
        result = q.new_zeros(len(q), *self.output_shape)
        addresses = part.query_start_loc, part.seq_lens, part.block_table
        for row in rows_of(*addresses, pages_of(latents), len(q), config.window):
            for tokens, positions, first, stop in query_tiles(row, config.window, q.device):
                k, v = self.up.expand(gather(latents, row.table, first, stop))
                result[tokens], _ = attend(
                    q[tokens],
                    k,
                    v,
                    positions,
                    first,
                    scale=config.scale,
                    window=config.window,
                    soft_cap=config.soft_cap,
                )
        return result

    def _absorbed(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        block_table: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
    ) -> torch.Tensor:
        """All query heads over the one head of latents."""
        config, (latents, values) = self.config, self.split(kv_cache)
        queries = q if self.up is None else self.up.absorb(q)
        out, _ = paged_attention(
            queries,
            latents,
            values,
            block_table,
            query_start_loc,
            seq_lens,
            scale=config.scale,
            window=config.window,
            soft_cap=config.soft_cap,
        )
        return out if self.up is None else self.up.lift(out)


def _one_each(num_rows: int, device: torch.device) -> torch.Tensor:
    """query_start_loc of rows with one query token."""
    return torch.arange(num_rows + 1, dtype=torch.int32, device=device)
