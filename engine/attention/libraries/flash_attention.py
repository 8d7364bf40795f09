"""The backends `flash-attn-3` and `flash-attn-2`: FlashAttention's kernels over the pool's block table.

3 makes one call of any step. 2, of the package flash_attn, has one function for decodes, which splits long sequences
over the device, and one for everything else; its pages are 256 tokens or a multiple. Both copy nothing: K and V are
views of the pool (2, NB, BS, KH, D), or of another layout whose innermost axis is the head size.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.attention.archs import Archs
from engine.attention.backend import AttentionImpl, Capabilities, SizeRule
from engine.attention.libraries import fa3
from engine.attention.libraries.found import imported
from engine.attention.libraries.impl import HALVES, KV_LAYOUTS, LibraryBackend, LibraryImpl
from engine.attention.metadata import AttentionMetadata

HEAD_SIZES = SizeRule(multiple_of=8, maximum=256)


class FlashAttention3Impl(LibraryImpl):
    """Decodes, chunks and both in one call."""

    @staticmethod
    def load() -> Any:
        return fa3.load()

    def read(
        self, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: AttentionMetadata, out: torch.Tensor
    ) -> torch.Tensor:
        """Its scheduler metadata is made by the first layer of a step and found by the others."""
        config = self.config
        key = "flash-attn-3", config, query.dtype, k.shape[1]
        if key not in step.plans:
            call = fa3.Call(
                step.query_start_loc,
                step.seq_lens,
                step.block_table,
                step.max_query_len,
                step.max_seq_len,
                config.scale,
                window_left=self.window_left,
                soft_cap=config.soft_cap,
            )
            step.plans[key] = self.library.planned(call, query, k)
        result: torch.Tensor = self.library.attend(step.plans[key], query, k, v, out)[0]
        return result


class FlashAttention3Backend(LibraryBackend):
    """`flash-attn-3`: Hopper; vLLM's extension library, or flash_attn_interface."""

    @staticmethod
    def get_name() -> str:
        return "flash-attn-3"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return FlashAttention3Impl

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            KV_LAYOUTS,
            HALVES,
            head_sizes=HEAD_SIZES,
            block_sizes=SizeRule(multiple_of=16),
            archs=Archs(least=(9, 0), below=(10, 0)),
            graphs="planned lengths",
        )


class FlashAttention2Impl(LibraryImpl):
    """A function for decodes and one for steps with chunks; both allocate their output."""

    @staticmethod
    def load() -> Any:
        return imported("flash_attn", "pip install flash-attn (built from source against the installed torch)")

    def read(
        self, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: AttentionMetadata, out: torch.Tensor
    ) -> torch.Tensor:
        options = {
            "softmax_scale": self.config.scale,
            "causal": True,
            "window_size": (self.window_left, -1),
            "softcap": self.config.soft_cap,
            "block_table": step.block_table,
        }
        if not step.num_prefills:
            rows = query[: step.num_decodes, None]
            found = self.library.flash_attn_with_kvcache(rows, k, v, cache_seqlens=step.seq_lens, **options)
            decoded: torch.Tensor = found[:, 0]
            return decoded
        result: torch.Tensor = self.library.flash_attn_varlen_func(
            query, k, v, step.query_start_loc, _ends(step), step.max_query_len, step.max_seq_len, **options
        )
        return result


def _ends(step: AttentionMetadata) -> torch.Tensor:
    """[S + 1] int32: tokens before each row, which FlashAttention-2 wants beside a block table, too."""
    key = "flash-attn-2"
    if key not in step.plans:
        step.plans[key] = torch.nn.functional.pad(step.seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
    ends: torch.Tensor = step.plans[key]
    return ends


class FlashAttention2Backend(LibraryBackend):
    """`flash-attn-2`: the package flash_attn."""

    @staticmethod
    def get_name() -> str:
        return "flash-attn-2"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return FlashAttention2Impl

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            KV_LAYOUTS,
            HALVES,
            head_sizes=HEAD_SIZES,
            block_sizes=SizeRule(multiple_of=256),
            default_block_size=256,
            archs=Archs(least=(8, 0)),
            graphs="planned lengths",
        )
