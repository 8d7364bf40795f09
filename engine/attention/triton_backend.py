"""The `triton` backend: this repository's kernels behind the interface. Importing it needs no Triton; running it does.

One strided kernel serves every layout with K and V, so it takes all three; any block size, power of two or not. The
kernels and what they promise are in `engine.attention.kernels`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch

from engine.attention.archs import Archs
from engine.attention.backend import AttentionBackend, AttentionImpl, Builder, Capabilities, SizeRule
from engine.attention.builders import MetadataBuilder
from engine.attention.checks import FP8, AttentionInputError, check_caches, check_shape, check_write
from engine.attention.kernels.inputs import DTYPES, MAX_HEAD_SIZE, STORED, check_paged, check_query_starts
from engine.attention.kv_scales import check_scales
from engine.attention.layouts import KVLayout
from engine.attention.metadata import AttentionMetadata


def interpreted() -> bool:
    """Whether kernels of this process are interpreted on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class TritonImpl(AttentionImpl[AttentionMetadata]):
    """Decode rows by the split-KV kernel, chunks by the prefill kernel, both in one mixed step.

    Rows of `out` for tokens of no row are left alone: they may hold anything.
    """

    def check_write(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        k_cache, v_cache = self._caches(kv_cache)
        check_scales(k_cache, self.scales)
        check_write(key, value, k_cache, v_cache, metadata.slot_mapping)

    def check_attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor | None
    ) -> None:
        k_cache, v_cache = self._caches(kv_cache)
        check_shape("query", query, (metadata.num_tokens, self.config.num_heads, self.config.head_size))
        step = metadata
        check_paged(
            query, k_cache, v_cache, step.block_table, step.seq_lens, max_seq_len=step.max_seq_len, out=out,
            scales=self.scales,
        )  # fmt: skip
        check_query_starts(step.query_start_loc, step.seq_lens, step.max_query_len)

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not kv_cache.is_cuda and not interpreted():
            raise AttentionInputError(
                f"kv_cache: expected on a CUDA device (or TRITON_INTERPRET=1 before the start), got {kv_cache.device}"
            )
        k_cache, v_cache = self.split(kv_cache)
        check_caches(k_cache, v_cache, STORED)
        check_shape("kv_cache (K)", k_cache, ("NB", "BS", self.config.num_kv_heads, self.config.head_size))
        return k_cache, v_cache

    def _write(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        from engine.attention.kernels import launch

        launch.write_kv(key, value, *self.split(kv_cache), metadata.slot_mapping, scales=self.scales)

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        from engine.attention.kernels import launch

        k_cache, v_cache = self.split(kv_cache)
        config, step = self.config, metadata
        shared: dict[str, Any] = {
            "scale": config.scale,
            "max_seq_len": step.max_seq_len,
            "out": out,
            "window": config.window,
            "soft_cap": config.soft_cap,
            "scales": self.scales,
        }
        if step.shared is not None and not config.window and not step.num_prefills:
            return self._decode_shared(query, k_cache, v_cache, step, out)
        if step.num_decodes:
            shared["plan"] = self._plan(query[: step.num_decodes], k_cache, step)
        if not step.num_prefills:
            return self._decode(query, k_cache, v_cache, step, shared)
        addresses = step.block_table, step.query_start_loc, step.seq_lens
        shared["max_query_len"] = step.max_query_len
        if not step.num_decodes:
            return launch.prefill_attention(query, k_cache, v_cache, *addresses, **shared)
        return launch.mixed_attention(query, k_cache, v_cache, *addresses, num_decodes=step.num_decodes, **shared)

    def _decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionMetadata,
        shared: dict[str, Any],
    ) -> torch.Tensor:
        """A step of nothing but decodes; tokens behind them are of no row."""
        from engine.attention.kernels import launch

        out = torch.empty_like(query, memory_format=torch.contiguous_format) if shared["out"] is None else shared["out"]
        shared["out"] = out[: step.num_decodes]
        rows = query[: step.num_decodes]
        launch.decode_attention(rows, k_cache, v_cache, step.block_table, step.seq_lens, **shared)
        return out

    def _decode_shared(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionMetadata,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `_decode`, where rows start alike: what they share once. Plain decode gives the same with a window."""
        from engine.attention.kernels import launch, launch_decode

        assert step.shared is not None
        out = torch.empty_like(query, memory_format=torch.contiguous_format) if out is None else out
        rows = query[: step.num_decodes]
        kind = k_cache.shape[1], k_cache.dtype
        shape = launch_decode.shape_of(rows, self.config.num_kv_heads, step.max_seq_len, *kind)
        key = "shared", shape
        if key not in step.plans:
            step.plans[key] = launch.plan_shared(step.seq_lens, step.shared, shape)
        launch.shared_prefix_attention(
            rows, k_cache, v_cache, step.block_table, step.seq_lens, step.shared, scale=self.config.scale,
            max_seq_len=step.max_seq_len, out=out[: step.num_decodes], plan=step.plans[key],
            soft_cap=self.config.soft_cap, scales=self.scales,
        )  # fmt: skip
        return out

    def _plan(self, query: torch.Tensor, k_cache: torch.Tensor, step: AttentionMetadata) -> Any:
        """Of the step's decodes, query [num_decodes, H, D]: made by the first layer, found by the others."""
        from engine.attention.kernels import launch, launch_decode, tuning

        kind = k_cache.shape[1], k_cache.dtype
        shape = launch_decode.shape_of(query, self.config.num_kv_heads, step.max_seq_len, *kind)
        key = shape, self.config.window
        if key not in step.plans:
            config = tuning.decode_config(shape)
            lengths = step.seq_lens[: step.num_decodes]
            step.plans[key] = launch.plan_decode(lengths, shape, config, window=self.config.window)
        return step.plans[key]


class TritonBackend(AttentionBackend):
    """`triton`: CUDA devices, or the interpreter on a CPU (TRITON_INTERPRET=1, set before Triton is imported)."""

    @staticmethod
    def get_name() -> str:
        return "triton"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return TritonImpl

    @staticmethod
    def get_metadata_cls() -> type[Any]:
        return AttentionMetadata

    @staticmethod
    def get_builder_cls() -> type[Builder[Any]]:
        return MetadataBuilder

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            (KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED),
            DTYPES,
            head_sizes=SizeRule(multiple_of=8, maximum=MAX_HEAD_SIZE),
            archs=Archs(least=(8, 0)),
            graphs="any lengths",
            shared_prefixes=True,
            kv_dtypes=(FP8,),
        )

    @classmethod
    def unavailable_because(cls) -> str:
        """Triton ships for Linux only, and wants a device or its interpreter."""
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if interpreted() or torch.cuda.is_available():
            return ""
        return "no CUDA device, and TRITON_INTERPRET=1 is not set"

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
