"""What an attention backend is: names of its parts, the shape of its KV cache, and what it can do.

The interface follows the chapter's section 4.9: whoever runs a model asks a backend for its classes and for the shape
of a layer's cache, and otherwise deals in block ids, slots and metadata. Backends are classes without instances; their
state per layer is an `AttentionImpl`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from engine.attention.archs import ANY_DEVICE, Archs, Graphs
from engine.attention.checks import AttentionInputError, check_count, check_heads, check_scale, short
from engine.attention.kv_scales import KVScales
from engine.attention.layouts import KVLayout

DEFAULT_BLOCK_SIZE = 16
"""Tokens a block where nobody asks otherwise (vLLM on CUDA)."""

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


@dataclass(frozen=True, slots=True)
class SizeRule:
    """Which sizes a backend takes: those listed in `only`, or all multiples up to a maximum (0: none)."""

    multiple_of: int = 1
    maximum: int = 0
    only: tuple[int, ...] = ()

    def allows(self, size: int) -> bool:
        """Whether a size obeys the rule; a float or a bool is none."""
        if not isinstance(size, int) or isinstance(size, bool):
            return False
        if self.only:
            return size in self.only
        return size > 0 and size % self.multiple_of == 0 and (not self.maximum or size <= self.maximum)

    def __str__(self) -> str:
        if self.only:
            return " or ".join(map(str, self.only))
        text = "any size" if self.multiple_of == 1 else f"a multiple of {self.multiple_of}"
        return f"{text} up to {self.maximum}" if self.maximum else text


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; a layer that asks for more is refused before its cache exists."""

    layouts: tuple[KVLayout, ...]
    """The first is the one it uses unless told."""
    dtypes: tuple[torch.dtype, ...]
    head_sizes: SizeRule = SizeRule()
    block_sizes: SizeRule = SizeRule()
    default_block_size: int = DEFAULT_BLOCK_SIZE
    sliding_window: bool = True
    soft_cap: bool = True
    mixed_batches: bool = True
    """Decodes and chunks of prompts in one call."""
    archs: Archs = ANY_DEVICE
    graphs: Graphs = "no"
    shared_prefixes: bool = False
    """Takes what rows of a decode have in common once for all of them (`AttentionMetadata.shared`)."""
    kv_dtypes: tuple[torch.dtype, ...] = ()
    """Types that K and V may be stored in besides, with `KVScales`."""

    @property
    def stored(self) -> tuple[torch.dtype, ...]:
        """Types of caches."""
        return (*self.dtypes, *self.kv_dtypes)

    @property
    def mla(self) -> bool:
        """Whether it keeps latents."""
        return KVLayout.LATENT in self.layouts


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What a layer of a model asks of attention. AttentionInputError for sizes that cannot be."""

    num_heads: int
    num_kv_heads: int
    """1 for MLA."""
    head_size: int
    """Elements of a K vector as stored: for MLA the whole latent."""
    scale: float
    """Factor of the scores, 1 / sqrt(head size as computed) in most models."""
    window: int = 0
    """Tokens that a token sees, itself included; 0: all before it."""
    soft_cap: float = 0.0
    """Scores s become soft_cap * tanh(s / soft_cap), after the scale; 0: they stay."""
    kv_lora_rank: int = 0
    """MLA: elements of the latent that V is read from; 0: not MLA."""

    def __post_init__(self) -> None:
        check_heads(self.num_heads, self.num_kv_heads)
        check_scale(self.scale, self.window, self.soft_cap)
        check_count("head_size", self.head_size, 1)
        check_count("kv_lora_rank", self.kv_lora_rank)
        if self.kv_lora_rank > self.head_size:
            raise AttentionInputError(
                f"head_size: expected at least kv_lora_rank={self.kv_lora_rank}, got {self.head_size}"
            )


class Builder(Protocol[M_co]):
    """Makes a backend's metadata of a step; `engine.attention.builders.MetadataBuilder` is the plain one."""

    def __init__(self, block_size: int, device: torch.device = ...) -> None: ...

    def build(
        self,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        *,
        num_padded_seqs: int = 0,
    ) -> M_co:
        """Metadata of a step whose decodes come first."""
        ...


class AttentionImpl(ABC, Generic[M]):
    """One layer's attention, without gradients. Metadata is of the backend's own class."""

    def __init__(self, config: LayerConfig, layout: KVLayout, scales: KVScales | None = None) -> None:
        """`scales`: of a cache that is FP8, whose types say so (`Capabilities.kv_dtypes`)."""
        self.config = config
        self.layout = layout
        self.scales = scales

    @torch.no_grad()
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: M,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Output [T, H, DV] of the step's tokens, each over all tokens before it and itself.

        Writes the step's K and V [T, KH, D] by slot, then reads by block table: a token sees itself and its chunk only
        because the write comes first (the chapter's section 4.5). `out` may be the query itself, but shares no memory
        with anything else that is read. AttentionInputError changes nothing.
        """
        self.check_write(key, value, kv_cache, metadata)
        self.check_attend(query, kv_cache, metadata, out)
        self._write(key, value, kv_cache, metadata)
        return self._attend(query, kv_cache, metadata, out)

    @torch.no_grad()
    def write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: M) -> None:
        """Only the write; slots below 0 are skipped."""
        self.check_write(key, value, kv_cache, metadata)
        self._write(key, value, kv_cache, metadata)

    @torch.no_grad()
    def attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: M, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Only the read, where something else has written."""
        self.check_attend(query, kv_cache, metadata, out)
        return self._attend(query, kv_cache, metadata, out)

    def split(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [NB, BS, KH, D] of a cache in this layer's layout, as views."""
        return self.layout.split(kv_cache, self.config.kv_lora_rank)

    @abstractmethod
    def check_write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: M) -> None:
        """AttentionInputError for what `write` cannot take."""

    @abstractmethod
    def check_attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: M, out: torch.Tensor | None) -> None:
        """AttentionInputError for what `attend` cannot take."""

    @abstractmethod
    def _write(self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: M) -> None: ...

    @abstractmethod
    def _attend(
        self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: M, out: torch.Tensor | None
    ) -> torch.Tensor: ...


class AttentionBackend(ABC):
    """Names, classes, shapes and limits of one way to compute attention."""

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """The name in configurations, tables and legends."""

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        """Made per layer, from a LayerConfig and a layout."""

    @staticmethod
    @abstractmethod
    def get_metadata_cls() -> type[Any]:
        """What its impl takes as metadata."""

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[Builder[Any]]:
        """What makes that metadata, from block size and device."""

    @classmethod
    @abstractmethod
    def capabilities(cls) -> Capabilities:
        """What it can do."""

    @classmethod
    @abstractmethod
    def copy_blocks(
        cls,
        kv_caches: Sequence[torch.Tensor],
        pairs: torch.Tensor,
        layout: KVLayout | None = None,
        *,
        disjoint: bool = False,
    ) -> None:
        """Copies whole blocks (source, destination) of pairs [P, 2] int64 in every layer's cache.

        All sources are read before any destination is written, as the allocator's contract has it. `disjoint`: the
        caller promises that no source is also a destination, which saves a way through scratch memory.
        """

    @classmethod
    def get_kv_cache_shape(
        cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, layout: KVLayout | None = None
    ) -> tuple[int, ...]:
        """Shape of one layer's cache, in the backend's own layout or in another that it takes."""
        cls.check_block_size(block_size)
        return cls.pick_layout(layout).shape(num_blocks, block_size, num_kv_heads, head_size)

    @classmethod
    def get_supported_block_sizes(cls) -> SizeRule:
        """Tokens a block."""
        return cls.capabilities().block_sizes

    @classmethod
    def get_supported_head_sizes(cls) -> SizeRule:
        """Elements of a K vector as stored."""
        return cls.capabilities().head_sizes

    @classmethod
    def get_min_block_size(cls, max_model_len: int, max_num_seqs: int) -> int:
        """The smallest block size for sequences that long and that many; most backends do not mind."""
        return 1

    @classmethod
    def unavailable_because(cls) -> str:
        """Why it cannot run here; empty if it can."""
        return ""

    @classmethod
    def pick_layout(cls, layout: KVLayout | None = None) -> KVLayout:
        """The layout asked for, or the backend's own; AttentionInputError for one that it does not take."""
        layouts = cls.capabilities().layouts
        if layout is not None and layout not in layouts:
            names = " or ".join(known.value for known in layouts)
            raise AttentionInputError(f"{cls.get_name()}: expected layout {names}, got {layout.value}")
        return layout or layouts[0]

    @classmethod
    def check_block_size(cls, block_size: int) -> None:
        """AttentionInputError for a block size that it does not take."""
        rule = cls.get_supported_block_sizes()
        if not rule.allows(block_size):
            raise AttentionInputError(f"{cls.get_name()}: expected block_size {rule}, got {block_size}")

    @classmethod
    def check_layer(cls, config: LayerConfig, block_size: int, dtype: torch.dtype) -> None:
        """AttentionInputError for a layer that asks for more than it can do."""
        able, name = cls.capabilities(), cls.get_name()
        cls.check_block_size(block_size)
        if not able.head_sizes.allows(config.head_size):
            raise AttentionInputError(f"{name}: expected head_size {able.head_sizes}, got {config.head_size}")
        if dtype not in able.stored:
            names = " or ".join(map(short, able.stored))
            raise AttentionInputError(f"{name}: expected dtype {names}, got {short(dtype)}")
        if able.mla != bool(config.kv_lora_rank):
            wanted = "kv_lora_rank above 0 (it keeps latents)" if able.mla else "kv_lora_rank=0 (it keeps K and V)"
            raise AttentionInputError(f"{name}: expected {wanted}, got {config.kv_lora_rank}")
        if config.window and not able.sliding_window:
            raise AttentionInputError(f"{name}: expected window=0 (no sliding window), got {config.window}")
        if config.soft_cap and not able.soft_cap:
            raise AttentionInputError(f"{name}: expected soft_cap=0 (no soft-cap), got {config.soft_cap}")
