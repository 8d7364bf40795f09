"""The `triton-mla` backend: this repository's kernels of latent attention behind the interface.

Importing it needs no Triton; running it does. Any block size; blocks in whole 8 slots of DeepSeek's latent have a
kernel of their own on Hopper. Chunks are absorbed as decodes are (see `engine.attention.kernels.mla`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.attention.backend import AttentionBackend, AttentionImpl, Builder, Capabilities, LayerConfig, SizeRule
from engine.attention.builders import MLABuilder
from engine.attention.checks import (
    AttentionInputError,
    check_caches,
    check_same_device,
    check_shape,
    check_table,
    check_write,
)
from engine.attention.kernels.inputs import DTYPES, MAX_RANK, MAX_ROTARY, check_query_starts, check_rank_of
from engine.attention.layouts import KVLayout
from engine.attention.metadata import MLAMetadata
from engine.attention.reference_mla import ReferenceMLAImpl
from engine.attention.triton_backend import TritonBackend, interpreted


class TritonMLAImpl(ReferenceMLAImpl):
    """As ReferenceMLAImpl with and without `up`, but contents of tables and lengths are trusted: nothing waits.

    Rows of `out` for tokens of no row are left alone: they may hold anything.
    """

    def check_write(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata
    ) -> None:
        latents, _ = self._caches(kv_cache)
        check_shape("key", key, (len(metadata.slot_mapping), 1, self.config.kv_lora_rank))
        check_shape("value", value, (len(key), 1, self.rotary))
        check_write(key, value, *self._parts(latents), metadata.slot_mapping)

    def _check_parts(self, latents: torch.Tensor, metadata: MLAMetadata) -> None:
        """That tables are wide enough for the bounds; lengths and blocks are not read."""
        block_size, chunks = latents.shape[1], metadata.prefill
        for part in (metadata.decode, chunks):
            if part is not None:
                check_table(part.block_table, part.seq_lens, block_size, part.max_seq_len)
                check_same_device(kv_cache=latents, block_table=part.block_table)
        if chunks is not None:
            check_query_starts(chunks.query_start_loc, chunks.seq_lens, chunks.max_query_len)

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not kv_cache.is_cuda and not interpreted():
            raise AttentionInputError(
                f"kv_cache: expected on a CUDA device (or TRITON_INTERPRET=1 before the start), got {kv_cache.device}"
            )
        k_cache, v_cache = self.split(kv_cache)
        check_caches(k_cache, v_cache, DTYPES)
        check_shape("kv_cache", kv_cache, ("NB", "BS", self.config.head_size))
        return k_cache, v_cache

    def _write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata) -> None:
        from engine.attention.kernels import launch

        launch.mla_write(key, value, kv_cache, metadata.slot_mapping)

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        queries = query if self.up is None else self.up.absorb(query)
        weighted = out if self.up is None else None
        if weighted is None:
            weighted = query.new_empty(len(query), self.config.num_heads, self.config.kv_lora_rank)
        first = metadata.num_decodes
        if metadata.decode is not None:
            self._decode_rows(queries[:first], kv_cache, metadata, weighted[:first])
        if metadata.prefill is not None:
            self._chunk_rows(queries[first:], kv_cache, metadata, weighted[first:])
        if self.up is None:
            return weighted
        lifted = self.up.lift(weighted)
        return lifted if out is None else out.copy_(lifted)

    def _decode_rows(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata, out: torch.Tensor) -> None:
        from engine.attention.kernels import launch

        part, config = metadata.decode, self.config
        assert part is not None
        launch.mla_decode(
            q, kv_cache, part.block_table, part.seq_lens, rank=config.kv_lora_rank, scale=config.scale,
            max_seq_len=part.max_seq_len, out=out, plan=self._plan(q, kv_cache, metadata),
        )  # fmt: skip

    def _chunk_rows(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata, out: torch.Tensor) -> None:
        from engine.attention.kernels import launch

        part, config = metadata.prefill, self.config
        assert part is not None
        launch.mla_prefill(
            q, kv_cache, part.block_table, part.query_start_loc, part.seq_lens, rank=config.kv_lora_rank,
            scale=config.scale, max_query_len=part.max_query_len, max_seq_len=part.max_seq_len, out=out,
        )  # fmt: skip

    def _plan(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: MLAMetadata) -> Any:
        """Of the step's decodes: made by the first layer, found by the others."""
        from engine.attention.kernels import launch, launch_mla

        part, rank = metadata.decode, self.config.kv_lora_rank
        assert part is not None
        config = launch_mla.chosen_decode(q, kv_cache, rank, part.max_seq_len)
        key = launch_mla.mla_shape_of(q, rank, part.max_seq_len, kv_cache.shape[1]), config
        if key not in metadata.plans:
            metadata.plans[key] = launch.plan_mla(part.seq_lens, *key)
        return metadata.plans[key]


class TritonMLABackend(AttentionBackend):
    """`triton-mla`: CUDA devices, or the interpreter on a CPU (TRITON_INTERPRET=1, set before Triton is imported)."""

    @staticmethod
    def get_name() -> str:
        return "triton-mla"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return TritonMLAImpl

    @staticmethod
    def get_metadata_cls() -> type[Any]:
        return MLAMetadata

    @staticmethod
    def get_builder_cls() -> type[Builder[Any]]:
        return MLABuilder

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            (KVLayout.LATENT,),
            DTYPES,
            head_sizes=SizeRule(multiple_of=8, maximum=MAX_RANK + MAX_ROTARY),
            default_block_size=64,
            sliding_window=False,
            soft_cap=False,
            archs=TritonBackend.capabilities().archs,
            graphs="any lengths",
        )

    @classmethod
    def check_layer(cls, config: LayerConfig, block_size: int, dtype: torch.dtype) -> None:
        super().check_layer(config, block_size, dtype)
        check_rank_of(config.kv_lora_rank, config.head_size)

    @classmethod
    def unavailable_because(cls) -> str:
        """As of `triton`."""
        return TritonBackend.unavailable_because()

    @classmethod
    def copy_blocks(
        cls,
        kv_caches: Sequence[torch.Tensor],
        pairs: torch.Tensor,
        layout: KVLayout | None = None,
        *,
        disjoint: bool = False,
    ) -> None:
        from engine.attention.kernels import launch

        launch.copy_blocks(kv_caches, pairs, block_axis=cls.pick_layout(layout).block_axis, disjoint=disjoint)
