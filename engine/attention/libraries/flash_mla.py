"""The backend `flash-mla`: FlashMLA's dense decode over the pool of latents (NB, 64, 576).

Decodes run absorbed, all query heads over the one latent a token, which serves as K and, by its first 512 elements, as
V. Chunks of prompts and the write are the specification's (`reference-mla`): FlashMLA's dense kernel is a decode. Its
schedule is made by each call, on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.archs import Archs
from engine.attention.backend import AttentionImpl, Capabilities, LayerConfig, SizeRule
from engine.attention.layouts import KVLayout
from engine.attention.libraries.found import LibraryMissingError, imported, inside, named, registered, why_not_here
from engine.attention.libraries.impl import HALVES, loaded
from engine.attention.metadata import MLADecode
from engine.attention.reference_backends import ReferenceMLA
from engine.attention.reference_mla import ReferenceMLAImpl, UpProjections

VARIABLE = "PAGELAB_FLASH_MLA_LIBRARY"
NAMESPACE = "_flashmla_C"
INSTALL = (
    f"FlashMLA is not here: name vLLM's _flashmla_C.abi3.so in {VARIABLE}, or install vllm, or flash_mla from "
    "github.com/deepseek-ai/FlashMLA"
)


@dataclass(frozen=True, slots=True)
class Extension:
    """The operators that vLLM's extension registers under torch.ops._flashmla_C."""

    ops: Any

    def decode(self, q: torch.Tensor, k: torch.Tensor, part: MLADecode, rank: int, scale: float) -> torch.Tensor:
        """[S, 1, H, rank] of q [S, 1, H, D] over k [NB, 64, 1, D]."""
        lens, table = part.seq_lens, part.block_table
        out: torch.Tensor = self.ops.dense_decode_fwd(q, k, rank, lens, table, scale, True, None, None, None)[0]
        return out


@dataclass(frozen=True, slots=True)
class Package:
    """flash_mla; its schedule is a pair whose second part newer releases leave empty."""

    module: Any

    def decode(self, q: torch.Tensor, k: torch.Tensor, part: MLADecode, rank: int, scale: float) -> torch.Tensor:
        """As `Extension.decode`."""
        schedule = self.module.get_mla_metadata(part.seq_lens, q.shape[2], 1)
        out: torch.Tensor = self.module.flash_mla_with_kvcache(
            q, k, part.block_table, part.seq_lens, rank, *schedule, softmax_scale=scale, causal=True
        )[0]
        return out


def load() -> Extension | Package:
    """The library that the environment names, else whatever is installed. LibraryMissingError."""
    path = named(VARIABLE)
    if path is None:
        try:
            return Package(imported("flash_mla", INSTALL))
        except LibraryMissingError:
            path = inside("vllm", "_flashmla_C*.so")
    if path is None:
        raise LibraryMissingError(INSTALL)
    return Extension(registered(path, NAMESPACE))


class FlashMLAImpl(ReferenceMLAImpl):
    """The library's decode, the specification's prefill and write."""

    def __init__(self, config: LayerConfig, layout: KVLayout, up: UpProjections | None = None) -> None:
        """AttentionInputError, in one line, where the library is not here."""
        super().__init__(config, layout, up)
        self.library = loaded(load)

    def _decode(self, q: torch.Tensor, kv_cache: torch.Tensor, part: MLADecode) -> torch.Tensor:
        latents, _ = self.split(kv_cache)
        queries = (q if self.up is None else self.up.absorb(q))[:, None].contiguous()
        out = self.library.decode(queries, latents, part, self.config.kv_lora_rank, self.config.scale)[:, 0]
        return out if self.up is None else self.up.lift(out)


class FlashMLABackend(ReferenceMLA):
    """`flash-mla`: Hopper; vLLM's extension library, or the package flash_mla."""

    @staticmethod
    def get_name() -> str:
        return "flash-mla"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return FlashMLAImpl

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            (KVLayout.LATENT,),
            HALVES,
            head_sizes=SizeRule(only=(576,)),
            block_sizes=SizeRule(only=(64,)),
            default_block_size=64,
            sliding_window=False,
            soft_cap=False,
            archs=Archs(least=(9, 0), below=(10, 0)),
            graphs="no",
        )

    @classmethod
    def unavailable_because(cls) -> str:
        """The library, then the device."""
        return why_not_here(load, cls.capabilities().archs)
