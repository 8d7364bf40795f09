"""The backend `pallas`: our kernel in JAX Pallas over the pool (NB, BS, 2*KH, D), which torch and JAX share.

Memory goes across by dlpack. JAX arrays cannot change, and a buffer that JAX did not make cannot be donated to it: a
write in JAX would hand back another pool of the same size. So torch writes in place, by slot, into the interleaved
heads, and JAX reads that very memory. The output is JAX's, given to torch as it is. Queries are copied where they are
strided, and where a step's sizes are not powers of two: each other size would be compiled anew.

On a GPU every hand-over orders the streams of both, and nothing waits for the device, but JAX issues to a stream of its
own: no CUDA graph can hold the calls. On a CPU they are waited for, and what XLA copies between the interpreter's
programs is its own affair.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from engine.attention.archs import ANY_DEVICE
from engine.attention.backend import AttentionBackend, AttentionImpl, Builder, Capabilities, LayerConfig, SizeRule
from engine.attention.builders import PallasBuilder
from engine.attention.checks import (
    AttentionInputError,
    check_caches,
    check_index,
    check_queries,
    check_same_device,
    check_shape,
    check_write,
)
from engine.attention.kv_scales import KVScales
from engine.attention.layouts import KVLayout
from engine.attention.libraries.found import LibraryMissingError, imported, one_line, why_not_here
from engine.attention.metadata import PallasMetadata
from engine.attention.reference import write_kv
from engine.attention.reference_backends import ReferencePallas

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""JAX has no 64 bits unless the whole process switches them on."""
ALIGNED_BYTES = 64
"""Where JAX on a CPU takes memory without a copy."""
SMALLEST = 8
"""Tokens, rows and blocks a row that a compiled call has at least: fewer are not worth another compilation."""
CHUNK_ROWS = 64
"""Rows of the score matrix, queries times heads of a group, where rows have more than one query."""
INSTALL = "pip install -e '.[pallas]' (on a GPU: 'jax[cuda13]')"


def load() -> Any:
    """The module with the kernel. LibraryMissingError without JAX, which would otherwise take three quarters of a
    GPU's memory at its first use: it is told to take what it needs, unless the environment says otherwise."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    imported("jax", INSTALL)
    return imported("engine.attention.pallas_kernel", INSTALL)


class PallasImpl(AttentionImpl[PallasMetadata]):
    """One layer whose K and V torch writes by slot and Pallas reads by block table."""

    def __init__(self, config: LayerConfig, layout: KVLayout, scales: KVScales | None = None) -> None:
        """AttentionInputError, in one line, where JAX is not here."""
        super().__init__(config, layout, scales)
        try:
            self.kernel = load()
        except LibraryMissingError as error:
            raise AttentionInputError(str(error)) from error
        self.jax = imported("jax", INSTALL)
        self._has_cuda = False

    def check_write(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: PallasMetadata
    ) -> None:
        check_write(key, value, *self._caches(kv_cache), metadata.slot_mapping)

    def check_attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: PallasMetadata, out: torch.Tensor | None
    ) -> None:
        k_cache, v_cache = self._caches(kv_cache)
        check_shape("query", query, (len(metadata.slot_mapping), self.config.num_heads, self.config.head_size))
        check_queries(query, k_cache, v_cache, out)
        check_same_device(kv_cache=kv_cache, block_tables=metadata.block_tables)
        check_index("block_tables", metadata.block_tables, ("S", "max_blocks"), torch.int32)
        if not kv_cache.is_contiguous() or (not kv_cache.is_cuda and kv_cache.data_ptr() % ALIGNED_BYTES):
            raise AttentionInputError(
                f"kv_cache: expected contiguous, and on a CPU at a multiple of {ALIGNED_BYTES} bytes (JAX would copy "
                f"it), got strides {kv_cache.stride()} at {kv_cache.data_ptr():#x}"
            )

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k_cache, v_cache = self.split(kv_cache)
        check_caches(k_cache, v_cache, DTYPES)
        check_shape("kv_cache (K)", k_cache, ("NB", "BS", self.config.num_kv_heads, self.config.head_size))
        if kv_cache.is_cuda and not self._has_cuda:
            self._need_cuda()
        return k_cache, v_cache

    def _need_cuda(self) -> None:
        """AttentionInputError where JAX was installed for CPUs, in the words of JAX."""
        try:
            self.jax.devices("cuda")
        except RuntimeError as error:
            why = f"kv_cache: is on a CUDA device, where JAX is not: {INSTALL}: {one_line(error)}"
            raise AttentionInputError(why) from error
        self._has_cuda = True

    def _write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: PallasMetadata) -> None:
        if not kv_cache.is_cuda:
            return write_kv(key, value, *self.split(kv_cache), metadata.slot_mapping)
        from engine.attention.kernels import launch

        launch.write_kv(key, value, *self.split(kv_cache), metadata.slot_mapping)

    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: PallasMetadata, out: torch.Tensor | None
    ) -> torch.Tensor:
        num_tokens, num_rows = len(query), len(metadata.context_lens)
        if not num_tokens or not num_rows:
            return torch.zeros_like(query) if out is None else out.zero_()
        whole = whole_size(num_tokens)
        padded = query.detach().contiguous() if whole == num_tokens else _longer(query.detach(), whole)
        tiling = self._tiling(query, decodes=num_tokens == num_rows)
        cache = self._from_torch(kv_cache.detach(), copy=False)
        ordered = kv_cache.is_cuda and self._orders_streams(cache)
        operands = self._from_torch(padded), cache, self._step(metadata)
        if kv_cache.is_cuda and not ordered:
            torch.cuda.current_stream(kv_cache.device).synchronize()
        result = self.kernel.paged_attention(*operands, tiling=tiling)
        if not ordered:
            result.block_until_ready()
        found = torch.utils.dlpack.from_dlpack(result)[:num_tokens]
        return found if out is None else out.copy_(found)

    def _from_torch(self, tensor: torch.Tensor, copy: bool | None = None) -> Any:
        """The same memory as a jax array; streams are ordered by the hand-over."""
        return self.jax.dlpack.from_dlpack(tensor, copy=copy)

    def _orders_streams(self, array: Any) -> bool:
        """Whether a hand-over orders streams: not every client of JAX names the one that has to wait."""
        (device,) = array.devices()
        try:
            device.get_stream_for_external_ready_events()
        except RuntimeError:
            return False
        return True

    def _step(self, metadata: PallasMetadata) -> Any:
        """The addresses in sizes of powers of two, for jax: made by the first layer, found by the others."""
        if "pallas" not in metadata.plans:
            table, starts = metadata.block_tables, metadata.query_start_loc
            rows, columns = whole_size(len(table)), whole_size(table.shape[1])
            if (rows, columns) != table.shape:
                table = torch.nn.functional.pad(table, (0, columns - table.shape[1], 0, rows - len(table)))
            lens = _longer(metadata.context_lens, rows)
            starts = torch.cat([starts, starts[-1:].expand(rows + 1 - len(starts))])
            tensors = table.contiguous(), lens, starts, metadata.num_seqs
            metadata.plans["pallas"] = self.kernel.Step(*map(self._from_torch, tensors))
        return metadata.plans["pallas"]

    def _tiling(self, query: torch.Tensor, *, decodes: bool) -> Any:
        """Of a CPU small, so that a short sequence has several steps of the softmax."""
        config, on_cpu = self.config, not query.is_cuda
        group = config.num_heads // config.num_kv_heads
        wide = config.head_size * query.element_size() > 2 * 128
        return self.kernel.Tiling(
            config.num_heads,
            config.scale,
            config.window,
            config.soft_cap,
            queries=1 if decodes else max(1, CHUNK_ROWS // group),
            keys=16 if on_cpu else 32 if wide else 64,
            interpret=on_cpu,
        )


def whole_size(count: int) -> int:
    """The smallest power of two that is neither less nor below SMALLEST."""
    return max(SMALLEST, 1 << max(0, count - 1).bit_length())


def _longer(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """With zeros behind, along the first axis."""
    return (
        tensor
        if len(tensor) == length
        else torch.cat([tensor, tensor.new_zeros(length - len(tensor), *tensor.shape[1:])])
    )


class PallasBackend(AttentionBackend):
    """`pallas`: any CPU, interpreted, and CUDA devices, compiled by JAX."""

    @staticmethod
    def get_name() -> str:
        return "pallas"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return PallasImpl

    @staticmethod
    def get_metadata_cls() -> type[Any]:
        return PallasMetadata

    @staticmethod
    def get_builder_cls() -> type[Builder[Any]]:
        return PallasBuilder

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities((KVLayout.INTERLEAVED,), DTYPES, head_sizes=SizeRule(maximum=256), graphs="own stream")

    @classmethod
    def get_min_block_size(cls, max_model_len: int, max_num_seqs: int) -> int:
        """vLLM's rule for Pallas, which is about a TPU's scalar memory: a run here is one there."""
        return ReferencePallas.get_min_block_size(max_model_len, max_num_seqs)

    @classmethod
    def unavailable_because(cls) -> str:
        """The package; whether it has the device of a layer's cache is said by the layer."""
        return why_not_here(load, ANY_DEVICE)

    @classmethod
    def copy_blocks(
        cls,
        kv_caches: Sequence[torch.Tensor],
        pairs: torch.Tensor,
        layout: KVLayout | None = None,
        *,
        disjoint: bool = False,
    ) -> None:
        if kv_caches and kv_caches[0].is_cuda:
            from engine.attention.kernels import launch

            launch.copy_blocks(kv_caches, pairs, block_axis=cls.pick_layout(layout).block_axis, disjoint=disjoint)
        else:
            ReferencePallas.copy_blocks(kv_caches, pairs, layout, disjoint=disjoint)
