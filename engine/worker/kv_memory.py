"""The KV tensors of all layers, allocated once, and how attention reads them: by block table, or from one address.

`kernel="contiguous"` is the twin of the paged kernels for allocators whose blocks are adjacent: it reads a sequence's
keys from its first block on and never looks into the table, as systems before paging did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from engine.attention.backend import AttentionBackend, LayerConfig
from engine.attention.kv_scales import KVScales
from engine.attention.layer import allocate_kv_caches
from engine.attention.layouts import KVLayout
from engine.attention.metadata import AttentionMetadata
from engine.attention.reference_mla import UpProjections
from engine.attention.triton_backend import TritonBackend
from engine.worker.backend_choice import never_waits
from engine.worker.host_memory import HostMemory, on

if TYPE_CHECKING:
    from engine.worker.order import Moves

Kernel = Literal["paged", "contiguous"]


class SplitMetadata(NamedTuple):
    """A mixed step as two calls: rows of length 0 in the first get zeros, over which the second may write."""

    decodes: AttentionMetadata | None
    """Of the first tokens of the step, one a row; None: there are none."""
    chunks: AttentionMetadata
    """Of all tokens of the step; its rows' queries start behind the decodes."""


class KVMemory:
    """K and V of every layer, in the backend's layout."""

    def __init__(
        self,
        backend: type[AttentionBackend],
        layers: Sequence[LayerConfig],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        layout: KVLayout | None = None,
        kernel: Kernel = "paged",
        host_blocks: int = 0,
        up: Sequence[UpProjections] = (),
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        """`num_blocks` counts the null block 0; `host_blocks`: of host memory, for sequences that are swapped out;
        `up`: of each layer that caches latents, what makes K and V of them; `scales`: of every layer, where dtype is
        FP8. AttentionInputError if the backend cannot do what a layer asks."""
        self.backend = backend
        self.layout = backend.pick_layout(layout)
        self.kernel = kernel
        self.block_size = block_size
        for config in layers:
            backend.check_layer(config, block_size, dtype)
        self.caches = allocate_kv_caches(
            backend,
            layers[0],
            num_layers=len(layers),
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=dtype,
            device=device,
            layout=self.layout,
        )
        self._views = [self.layout.split(cache, layers[0].kv_lora_rank) for cache in self.caches]
        if kernel == "contiguous" and self.layout is KVLayout.BLOCK_FIRST:
            raise ValueError(
                f"kernel contiguous: a block's K and V lie side by side in layout {self.layout.value}, so the keys "
                f"of adjacent blocks are not adjacent: use {KVLayout.KV_FIRST.value} or {KVLayout.INTERLEAVED.value}"
            )
        self._scales = [None] * len(layers) if scales is None else list(scales)
        options: list[dict[str, Any]] = [{} if one is None else {"scales": one} for one in self._scales]
        if up:
            options = [{**more, "up": one} for more, one in zip(options, up, strict=True)]
        make = backend.get_impl_cls()
        self._impls = [make(config, self.layout, **each) for config, each in zip(layers, options, strict=True)]
        self._layers = list(layers)
        self.host = HostMemory(self.caches, self.layout.block_axis, host_blocks) if host_blocks else None
        """Where swapped sequences lie; None: nothing is swapped."""

    def release(self) -> None:
        """Gives the memory back; nothing can be read or written any more."""
        if self.host is not None:
            self.host.release()
        self.caches.clear()
        self._views.clear()

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [NB, BS, KH, D] of a layer, to be written by slot; latents [NB, BS, 1, latent] as K."""
        return self._views[layer]

    def scales(self, layer: int) -> KVScales | None:
        """Of a layer whose K and V are FP8."""
        return self._scales[layer]

    def attend(
        self, layer: int, q: torch.Tensor, metadata: AttentionMetadata | SplitMetadata, out: torch.Tensor
    ) -> None:
        """Attention of q [T, H, D] over what is written, into out [T, H, DV]."""
        if isinstance(metadata, SplitMetadata):
            decodes, chunks = metadata
            if decodes is not None:
                self._attend(layer, q[: decodes.num_tokens], decodes, out[: decodes.num_tokens])
            if decodes is None or self.backend is TritonBackend:  # leaves the tokens of no row alone
                self._attend(layer, q, chunks, out)
            elif never_waits(self.backend):
                self._attend_beside(layer, q, chunks, out)
            else:
                first, behind = from_first(chunks)
                self._attend(layer, q[first:], behind, out[first:])
        else:
            self._attend(layer, q, metadata, out)

    def _attend(self, layer: int, q: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor) -> None:
        if self.kernel == "paged":
            self._impls[layer].attend(q, self.caches[layer], self._own(metadata), out)
        elif self.backend is TritonBackend:
            config, scales = self._layers[layer], self._scales[layer]
            contiguous_attention(config, q, *self._views[layer], metadata, out, scales)
        else:
            self._impls[layer].attend(q, self.caches[layer], self._own(without_table(metadata)), out)

    def _attend_beside(self, layer: int, q: torch.Tensor, chunks: AttentionMetadata, out: torch.Tensor) -> None:
        """Into the tokens from the first chunk's on, whatever the backend does to those in front: by way of a buffer,
        as only the device knows where the chunks begin."""
        if "in chunks" not in chunks.plans:
            tokens = torch.arange(len(q), dtype=torch.int32, device=q.device)
            chunks.plans["in chunks"] = (tokens >= chunks.query_start_loc[:1])[:, None, None]
        buffer = torch.empty_like(out)
        self._attend(layer, q, chunks, buffer)
        torch.where(chunks.plans["in chunks"], buffer, out, out=out)

    def _own(self, step: AttentionMetadata) -> Any:
        """The step under the backend's names; made by the first layer, found by the others."""
        kind = self.backend.get_metadata_cls()
        if kind is AttentionMetadata:
            return step
        if kind not in step.plans:
            step.plans[kind] = kind.of(step)
        return step.plans[kind]

    def move_blocks(self, moves: Moves) -> None:
        """What a batch asks for before it computes: swaps out, then swaps in, then copies. Commands only, in stream
        order: blocks that were swapped out may be written at once."""
        if moves.to_host or moves.to_device:
            if self.host is None:
                raise ValueError("a batch swaps blocks, and this KV memory was made with host_blocks=0")
            self.host.store(moves.to_host)
            self.host.load(moves.to_device)
        if moves.copies:
            self.copy_blocks(moves.copies)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks (source, target) in every layer; all sources are read before any target is written."""
        disjoint = {source for source, _ in pairs}.isdisjoint(target for _, target in pairs)
        self.backend.copy_blocks(self.caches, on(self.caches[0].device, pairs), self.layout, disjoint=disjoint)

    def warm_up(self) -> None:
        """Copies the null block onto itself in both ways that there are, so that no step has to compile them."""
        pairs = on(self.caches[0].device, [(0, 0)])
        for disjoint in (True, False):
            self.backend.copy_blocks(self.caches, pairs, self.layout, disjoint=disjoint)

    @property
    def data_ptrs(self) -> list[int]:
        """Address of every layer's cache: they never change."""
        return [cache.data_ptr() for cache in self.caches]


def from_first(step: AttentionMetadata) -> tuple[int, AttentionMetadata]:
    """The step's first token of any row, and the same step counted from there; waits for the device."""
    if "from first" not in step.plans:
        first = int(step.query_start_loc[0])
        starts, slots = step.query_start_loc - first, step.slot_mapping[first:]
        step.plans["from first"] = first, dataclasses.replace(step, query_start_loc=starts, slot_mapping=slots)
    found: tuple[int, AttentionMetadata] = step.plans["from first"]
    return found


def without_table(step: AttentionMetadata) -> AttentionMetadata:
    """The same step as a backend without a contiguous kernel can read it: tables that follow from their first entry."""
    if "adjacent" not in step.plans:
        order = torch.arange(step.block_table.shape[1], dtype=torch.int32, device=step.block_table.device)
        table = step.block_table[:, :1] + order
        step.plans["adjacent"] = dataclasses.replace(step, block_table=table)
    adjacent: AttentionMetadata = step.plans["adjacent"]
    return adjacent


def contiguous_attention(
    config: LayerConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: AttentionMetadata,
    out: torch.Tensor,
    scales: KVScales | None = None,
) -> None:
    """The contiguous twin over caches k, v [NB, BS, KH, D] whose blocks follow each other in memory.

    Only the first entry of a row of the block table is read.
    """
    from engine.attention.kernels import launch, launch_decode, tuning

    block_size = k.shape[1]
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    starts = step.plans.get("starts")
    if starts is None:
        starts = step.plans["starts"] = step.block_table[:, 0].long() * block_size
    shared: dict[str, Any] = {
        "scale": config.scale,
        "max_seq_len": step.max_seq_len,
        "window": config.window,
        "soft_cap": config.soft_cap,
        "scales": scales,
    }
    n = step.num_decodes
    if n:
        shape = launch_decode.shape_of(q[:n], config.num_kv_heads, step.max_seq_len, 0, k.dtype)
        key = shape, config.window
        if key not in step.plans:
            rule = tuning.decode_contiguous_config(shape)
            step.plans[key] = launch.plan_decode(step.seq_lens[:n], shape, rule, window=config.window)
        launch.decode_contiguous(
            q[:n], k, v, starts[:n], step.seq_lens[:n], out=out[:n], plan=step.plans[key], **shared
        )
    if step.num_prefills:
        launch.prefill_contiguous(
            q, k, v, starts[n:], step.query_start_loc[n:], step.seq_lens[n:], max_query_len=step.max_query_len, out=out,
            **shared,
        )  # fmt: skip
