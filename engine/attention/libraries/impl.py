"""What adapters to libraries share: write and checks as in the `triton` backend, only the read is a library's."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from engine.attention.backend import LayerConfig
from engine.attention.checks import AttentionInputError
from engine.attention.layouts import KVLayout
from engine.attention.libraries.found import LibraryMissingError, why_not_here
from engine.attention.metadata import AttentionMetadata
from engine.attention.triton_backend import TritonBackend, TritonImpl

HALVES = (torch.float16, torch.bfloat16)
"""Types of Q, K and V that the libraries compute with."""
KV_LAYOUTS = (KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED)
"""What a library that takes K and V as strided views of one storage can read."""


class LibraryImpl(TritonImpl):
    """One layer whose K and V this repository's kernel writes by slot and a library reads by block table."""

    def __init__(self, config: LayerConfig, layout: KVLayout) -> None:
        """AttentionInputError, in one line, where the library is not here."""
        super().__init__(config, layout)
        self.library = loaded(self.load)

    @staticmethod
    @abstractmethod
    def load() -> Any:
        """The library; LibraryMissingError if it is not here."""

    @abstractmethod
    def read(
        self, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: AttentionMetadata, out: torch.Tensor
    ) -> torch.Tensor:
        """Attention over K and V [NB, BS, KH, D], views of the pool. The result [T or fewer, H, D] is `out`, or is
        copied there."""

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        """Into `out` where a library can write there: contiguous, and not the query that it reads."""
        k, v = self.split(kv_cache)
        own = out is None or not out.is_contiguous() or out.data_ptr() == query.data_ptr()
        buffer = torch.zeros_like(query, memory_format=torch.contiguous_format) if out is None or own else out
        if metadata.num_seqs and len(query):
            result = self.read(query, k, v, metadata, buffer)
            if result.data_ptr() != buffer.data_ptr():
                buffer[: len(result)] = result
        return buffer if out is None or not own else out.copy_(buffer)

    @property
    def window_left(self) -> int:
        """The window as libraries count it: tokens before the token itself; -1: all."""
        return self.config.window - 1


def loaded(load: Any) -> Any:
    """What `load` gives; AttentionInputError for a library that is not here."""
    try:
        return load()
    except LibraryMissingError as error:
        raise AttentionInputError(str(error)) from error


class LibraryBackend(TritonBackend):
    """Plain metadata, blocks copied by this repository's kernel; subclasses say which library and what it can do."""

    @classmethod
    def unavailable_because(cls) -> str:
        """The library, then the device."""
        impl: Any = cls.get_impl_cls()
        return why_not_here(impl.load, cls.capabilities().archs)
