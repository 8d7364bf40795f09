"""The reference under the names, shapes and rules of the field's backends.

Each keeps its cache as its model does (the chapter's section 4.3.3), takes the metadata that it takes, and refuses the
block and head sizes that it refuses; all compute what `engine.attention.reference` says. So a run can be planned, and a
layout or a renamed field tested, where the library itself is not at hand.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from engine.attention.backend import AttentionBackend, AttentionImpl, Builder, Capabilities, M, SizeRule
from engine.attention.builders import MetadataBuilder, MLABuilder, PallasBuilder
from engine.attention.checks import FLOATS, FP8, AttentionInputError, check_caches, check_count, check_shape
from engine.attention.layouts import KVLayout
from engine.attention.metadata import AttentionMetadata, MLAMetadata, PallasMetadata
from engine.attention.reference import STORED, check_paged, check_step, copy_blocks, paged_attention, write_kv
from engine.attention.reference_mla import ReferenceMLAImpl
from engine.attention.reference_shared import shared_prefix_attention

PALLAS_TABLE_ENTRIES = 131_072
"""Entries of all block tables that fit half of a TPU's 1 MiB of scalar memory, 4 bytes each (vLLM's Pallas backend)."""


class Where(NamedTuple):
    """A step's addresses, under one name for all backends that keep K and V."""

    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor


class _ReferenceKVImpl(AttentionImpl[M]):
    """Any layout with K and V; subclasses read their metadata."""

    @abstractmethod
    def where(self, metadata: M) -> Where:
        """The step's addresses."""

    def check_write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: M) -> None:
        check_step(key, value, *self._caches(kv_cache), self.where(metadata).slot_mapping, self.scales)

    def check_attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: M, out: torch.Tensor | None) -> None:
        k_cache, v_cache = self._caches(kv_cache)
        slots, table, starts, lengths = self.where(metadata)
        check_shape("query", query, (len(slots), self.config.num_heads, self.config.head_size))
        check_paged(query, k_cache, v_cache, table, starts, lengths, out, self.config.window, self.scales)

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k_cache, v_cache = self.split(kv_cache)
        check_caches(k_cache, v_cache, STORED)
        check_shape("kv_cache (K)", k_cache, ("NB", "BS", self.config.num_kv_heads, self.config.head_size))
        return k_cache, v_cache

    def _write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: M) -> None:
        write_kv(key, value, *self.split(kv_cache), self.where(metadata).slot_mapping, self.scales)

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: M, out: torch.Tensor | None
    ) -> torch.Tensor:
        config = self.config
        _, table, starts, lengths = self.where(metadata)
        result, _ = paged_attention(
            query,
            *self.split(kv_cache),
            table,
            starts,
            lengths,
            scale=config.scale,
            window=config.window,
            soft_cap=config.soft_cap,
            scales=self.scales,
            out=out,
        )
        return result


class ReferenceImpl(_ReferenceKVImpl[AttentionMetadata]):
    """K and V in either 5-D layout or interleaved, metadata by its own names; what rows share once (no window)."""

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        config, step = self.config, metadata
        if step.shared is None or config.window or step.num_prefills:
            return super()._attend(query, kv_cache, metadata, out)
        result, _ = shared_prefix_attention(
            query[: step.num_decodes],
            *self.split(kv_cache),
            step.block_table,
            step.seq_lens,
            step.shared,
            scale=config.scale,
            soft_cap=config.soft_cap,
            scales=self.scales,
        )
        whole = query.new_zeros(query.shape) if out is None else out
        whole[: step.num_decodes] = result
        whole[step.num_decodes :] = 0
        return whole

    def where(self, metadata: AttentionMetadata) -> Where:
        return Where(metadata.slot_mapping, metadata.block_table, metadata.query_start_loc, metadata.seq_lens)


class ReferencePallasImpl(_ReferenceKVImpl[PallasMetadata]):
    """Pallas's semantics: context_lens are lengths in total, and rows from num_seqs on are not looked at."""

    def where(self, metadata: PallasMetadata) -> Where:
        rows, most = int(metadata.num_seqs), len(metadata.context_lens)
        if not 0 <= rows <= most:
            raise AttentionInputError(f"num_seqs: expected 0 to {most}, got {rows}")
        return Where(
            metadata.slot_mapping,
            metadata.block_tables[:rows],
            metadata.query_start_loc[: rows + 1],
            metadata.context_lens[:rows],
        )


class ReferenceBackend(AttentionBackend):
    """`reference`: plain torch, any device, any block and head size, all layouts with K and V."""

    @staticmethod
    def get_name() -> str:
        return "reference"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return ReferenceImpl

    @staticmethod
    def get_metadata_cls() -> type[Any]:
        return AttentionMetadata

    @staticmethod
    def get_builder_cls() -> type[Builder[Any]]:
        return MetadataBuilder

    @classmethod
    def capabilities(cls) -> Capabilities:
        layouts = KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED
        return Capabilities(layouts, FLOATS, shared_prefixes=True, kv_dtypes=(FP8,))

    @classmethod
    def copy_blocks(
        cls,
        kv_caches: Sequence[torch.Tensor],
        pairs: torch.Tensor,
        layout: KVLayout | None = None,
        *,
        disjoint: bool = False,
    ) -> None:
        copy_blocks(kv_caches, pairs, cls.pick_layout(layout))


class ReferenceFlashAttention(ReferenceBackend):
    """`reference-flash-attn`: FlashAttention's shape and sizes in vLLM."""

    @staticmethod
    def get_name() -> str:
        return "reference-flash-attn"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            (KVLayout.KV_FIRST,),
            FLOATS,
            head_sizes=SizeRule(multiple_of=8, maximum=256),
            block_sizes=SizeRule(multiple_of=16),
        )


class ReferenceFlashInfer(ReferenceBackend):
    """`reference-flashinfer`: FlashInfer's shape and the head sizes that it is built for."""

    @staticmethod
    def get_name() -> str:
        return "reference-flashinfer"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities((KVLayout.BLOCK_FIRST,), FLOATS, head_sizes=SizeRule(only=(64, 128, 256)))


class ReferencePallas(ReferenceBackend):
    """`reference-pallas`: the TPU backend's shape, names and smallest block size."""

    @staticmethod
    def get_name() -> str:
        return "reference-pallas"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return ReferencePallasImpl

    @staticmethod
    def get_metadata_cls() -> type[Any]:
        return PallasMetadata

    @staticmethod
    def get_builder_cls() -> type[Builder[Any]]:
        return PallasBuilder

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities((KVLayout.INTERLEAVED,), FLOATS)

    @classmethod
    def get_min_block_size(cls, max_model_len: int, max_num_seqs: int) -> int:
        """The next power of two of ceil(max_model_len / (131072 // max_num_seqs)): block tables must fit.

        AttentionInputError for more sequences than entries, and for less than one.
        """
        check_count("max_model_len", max_model_len, 1)
        check_count("max_num_seqs", max_num_seqs, 1)
        entries = PALLAS_TABLE_ENTRIES // max_num_seqs
        if not entries:
            raise AttentionInputError(
                f"reference-pallas: expected max_num_seqs up to {PALLAS_TABLE_ENTRIES}, got {max_num_seqs}"
            )
        return 1 << (-(-max_model_len // entries) - 1).bit_length()


class ReferenceMLA(ReferenceBackend):
    """`reference-mla`: latents, any block size, decodes and prefills apart."""

    @staticmethod
    def get_name() -> str:
        return "reference-mla"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return ReferenceMLAImpl

    @staticmethod
    def get_metadata_cls() -> type[Any]:
        return MLAMetadata

    @staticmethod
    def get_builder_cls() -> type[Builder[Any]]:
        return MLABuilder

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities((KVLayout.LATENT,), FLOATS)


class ReferenceFlashMLA(ReferenceMLA):
    """`reference-flash-mla`: FlashMLA's sizes, a block of 64 tokens and DeepSeek's latent of 512 + 64 elements."""

    @staticmethod
    def get_name() -> str:
        return "reference-flash-mla"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            (KVLayout.LATENT,),
            FLOATS,
            head_sizes=SizeRule(only=(576,)),
            block_sizes=SizeRule(only=(64,)),
            default_block_size=64,
            sliding_window=False,
            soft_cap=False,
        )
