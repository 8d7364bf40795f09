"""Tile sizes: one configuration type per kernel, and one fixed rule from a call's shape to a configuration.

Rules read what the host knows anyway (shapes, the longest length), never device memory, and never measure: a captured
graph and its replay use the same kernels. Decode's contiguous twin has a rule of its own, found by its own search.
Every launcher takes `config=` instead, which is how such a search drives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engine.attention.checks import AttentionInputError, check_count

LONG_TOKENS = 1 << 17
"""Keys from which a batch of few programs takes larger tiles."""
NEVER = 1 << 30
"""More programs than any batch makes."""


def check_power(what: str, value: Any, least: int = 1) -> None:
    """A power of two, `least` or more."""
    check_count(what, value, least)
    if value & (value - 1):
        raise AttentionInputError(f"{what}: expected a power of two, got {value}")


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decode attention is cut and compiled; AttentionInputError for what cannot be, here as in the others."""

    block_n: int
    """Keys a tile: a power of two, at least 16."""
    num_warps: int
    num_stages: int
    """Depth of the load pipeline; num_stages - 1 tiles of K and V have a buffer."""
    programs: int
    """The batch's keys are cut into pieces that make about this many programs, KV heads included."""
    min_piece_tokens: int
    """But never into pieces shorter than this; a batch that cannot exceed it is not split and needs no reduction."""
    whole_programs: int = NEVER
    """A batch of about equal lengths that makes this many programs uncut stays uncut."""

    def __post_init__(self) -> None:
        check_power("block_n", self.block_n, 16)
        check_power("num_warps", self.num_warps)
        for name in ("num_stages", "programs", "min_piece_tokens"):
            check_count(name, getattr(self, name), 1)
        check_count("whole_programs", self.whole_programs)


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What the rule for decode reads."""

    num_seqs: int
    num_kv_heads: int
    group: int
    head_size: int
    element_bytes: int
    """Of K and V."""
    max_seq_len: int
    block_size: int
    """0 for the contiguous twin."""
    num_sms: int
    capability: int = 90
    """Compute capability of the device, major and minor: 90 for an H200."""


def decode_config(shape: DecodeShape) -> DecodeConfig:
    """The paged kernel's configuration, from sweeps on an H200 (`pagelab bench kernel --sweep`, `results/LOG.md`).

    Few programs: three stages hide the latency of a lone one, the keys are cut into two waves; with many keys larger
    tiles in fewer stages keep more programs resident. Many programs: all that are resident run at once, pieces of
    1,024 tokens even out ragged batches. Between one and four waves of uncut sequences (multi-head attention, small
    batches) the last wave would be lonely: finer pieces fill it. FP8 has half the bytes a tile: a stage more keeps as
    many on their way.
    """
    sms, narrow, wide = shape.num_sms, *_tiles(shape)
    few, more = (3, 4) if shape.element_bytes == 1 else (2, 3)
    uncut = shape.num_seqs * shape.num_kv_heads
    if uncut < 2 * sms:
        if shape.num_seqs > 1 and shape.num_seqs * shape.max_seq_len >= LONG_TOKENS:
            return DecodeConfig(wide, 4, few, programs=2 * sms, min_piece_tokens=128)
        least = max(64, min(256, shape.max_seq_len // 16))
        return DecodeConfig(narrow, 4, more, programs=2 * sms, min_piece_tokens=least)
    whole = 7 * sms // 2
    if shape.group == 1 and uncut < 4 * sms:
        least = 1024 if shape.max_seq_len <= 1024 else 512
        return DecodeConfig(wide, 4, few, programs=16 * sms, min_piece_tokens=least, whole_programs=whole)
    return DecodeConfig(narrow, 4, few, programs=8 * sms, min_piece_tokens=1024, whole_programs=whole)


def decode_contiguous_config(shape: DecodeShape) -> DecodeConfig:
    """The contiguous twin's configuration, from a sweep of its own: with many keys and no table, deeper pipelines pay.

    Elsewhere it is the paged kernel's.
    """
    sms, (_, wide) = shape.num_sms, _tiles(shape)
    uncut = shape.num_seqs * shape.num_kv_heads
    if uncut < 2 * sms:
        deep = shape.num_seqs > 1 and shape.num_seqs * shape.max_seq_len >= 2 * LONG_TOKENS
    elif shape.group == 1:
        deep = uncut < 4 * sms and shape.max_seq_len > 4096
    else:
        deep = shape.max_seq_len > 1024
    if deep:
        whole = NEVER if uncut < 2 * sms else 7 * sms // 2
        return DecodeConfig(wide, 4, 3, programs=8 * sms, min_piece_tokens=1024, whole_programs=whole)
    return decode_config(shape)


def _tiles(shape: DecodeShape) -> tuple[int, int]:
    """Keys of a narrow and of a wide tile: 16 and 32 KiB of K."""
    row_bytes = (1 << (shape.head_size - 1).bit_length()) * shape.element_bytes
    wide = max(16, min(128, 128 * 256 // row_bytes))
    return max(16, wide // 2), wide


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """How the KV write is cut and compiled."""

    tokens: int
    """Tokens a program, a power of two."""
    block_elements: int
    """Elements of K, and of V, a token a program, a power of two."""
    num_warps: int

    def __post_init__(self) -> None:
        for name in ("tokens", "block_elements", "num_warps"):
            check_power(name, getattr(self, name))


def write_config(num_tokens: int, elements: int) -> WriteConfig:
    """For `num_tokens` tokens of `elements` = KH * D elements: 16 bytes of K a thread at two bytes an element."""
    block = min(1024, 1 << (elements - 1).bit_length())
    return WriteConfig(tokens=1, block_elements=block, num_warps=max(1, block // 256))


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How prefill attention is cut and compiled."""

    block_m: int
    """Query rows a program: query tokens times the heads of a group. A power of two, at least the group."""
    block_n: int
    """Keys a tile: a power of two, at least 16."""
    num_warps: int
    num_stages: int
    use_tma: bool
    """Load K and V by descriptor where the cache allows it: whole tiles in a block, whole 16-byte vectors."""

    def __post_init__(self) -> None:
        check_power("block_m", self.block_m)
        check_power("block_n", self.block_n, 16)
        check_power("num_warps", self.num_warps)
        check_count("num_stages", self.num_stages, 1)


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """What the rule for prefill reads."""

    num_tokens: int
    num_seqs: int
    num_kv_heads: int
    group: int
    head_size: int
    element_bytes: int
    max_query_len: int
    max_seq_len: int
    block_size: int
    """0 for the contiguous twin."""
    num_sms: int
    capability: int = 90
    """Compute capability of the device, major and minor: 90 for an H200."""
    windowed: bool = False
    fp8: bool = False
    """Whether K and V are; `element_bytes` are Q's."""


def prefill_config(shape: PrefillShape) -> PrefillConfig:
    """Paged or contiguous. Hopper: from sweeps of the paged kernel on an H200, by pointers three stages of 64 keys for
    two warp groups, by descriptor a block at a time. Other devices: from code compiled ahead of time, not measured."""
    few = shape.num_tokens * shape.group * shape.num_kv_heads <= 64 * shape.num_sms
    if shape.element_bytes > 2:
        return PrefillConfig(_rows(32, shape), 16, num_warps=4, num_stages=1, use_tma=False)
    if shape.capability < 90:
        small = few or shape.head_size > 128
        block_n, warps = (32 if shape.head_size > 128 else 64), (4 if small else 8)
        return PrefillConfig(_rows(64 if small else 128, shape), block_n, warps, num_stages=2, use_tma=False)
    if shape.head_size > 128:
        return PrefillConfig(_rows(64, shape), 32, num_warps=4, num_stages=2, use_tma=True)
    if shape.windowed or shape.block_size % 64:
        return PrefillConfig(_rows(64 if few else 128, shape), 64, 4 if few else 8, num_stages=3, use_tma=False)
    return PrefillConfig(_rows(64, shape), 64, num_warps=4, num_stages=3, use_tma=True)


def _rows(wanted: int, shape: PrefillShape) -> int:
    """`wanted`, or the power of two that holds a whole group."""
    return max(wanted, 1 << (shape.group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class MixedConfig:
    """How the two kernels of a mixed step are cut, and in which order they start."""

    decode: DecodeConfig | None = None
    """None: the rule for decode."""
    prefill: PrefillConfig | None = None
    """None: the rule for prefill."""
    overlap: Literal["none", "prefill_first", "decode_first"] = "prefill_first"
    """With "none" one runs after the other, decodes first."""

    def __post_init__(self) -> None:
        orders = ("none", "prefill_first", "decode_first")
        if self.overlap not in orders:
            raise AttentionInputError(f"overlap: expected one of {orders}, got {self.overlap!r}")


def mixed_config() -> MixedConfig:
    """Chunks start first: their few programs take a share of every multiprocessor, decodes fill the rest."""
    return MixedConfig()


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """How decode attention over shared prefixes is cut and compiled."""

    block_m: int
    """(row, query head) pairs a program, a power of two, at least 16."""
    block_n: int
    """Keys a tile, a power of two, at least 16."""
    num_warps: int
    num_stages: int
    programs: int
    """The shared keys are cut into pieces that make about this many programs, KV heads included."""
    min_piece_tokens: int
    """But never into pieces shorter than this: what a piece leaves must be merged."""
    own: DecodeConfig | None = None
    """Of the rows' own parts; None: the rule for decode."""
    overlap: Literal["none", "shared_first", "own_first"] = "none"
    """Which of the two starts first, on a stream of its own; with "none" one runs after the other."""

    def __post_init__(self) -> None:
        check_power("block_m", self.block_m, 16)
        check_power("block_n", self.block_n, 16)
        check_power("num_warps", self.num_warps)
        for name in ("num_stages", "programs", "min_piece_tokens"):
            check_count(name, getattr(self, name), 1)
        orders = ("none", "shared_first", "own_first")
        if self.overlap not in orders:
            raise AttentionInputError(f"overlap: expected one of {orders}, got {self.overlap!r}")


def shared_config(shape: DecodeShape) -> SharedConfig:
    """The configuration for shared prefixes, best of a search over batches of 16, 64 and 256 on an H200 (head size 128,
    bfloat16); others from code compiled ahead of time.

    Large tiles of pairs fill a multiprocessor by themselves: one wave of them. Few pairs make one tile a KV head, and
    the rows' own short parts stay whole. Products and the rows' own keys wait for different things, so both run side by
    side.
    """
    sms, few = shape.num_sms, shape.num_seqs * shape.group <= 64
    if shape.element_bytes > 2:
        return SharedConfig(32, 16, num_warps=4, num_stages=1, programs=2 * sms, min_piece_tokens=128)
    if shape.head_size > 128:
        return SharedConfig(64, 32, 4, 2, programs=2 * sms, min_piece_tokens=256, overlap="shared_first")
    if shape.capability < 90:
        return SharedConfig(64, 64, 4, 2, programs=2 * sms, min_piece_tokens=256, overlap="shared_first")
    if few:
        own = DecodeConfig(64, 4, 3, 8 * sms, 1024)
        return SharedConfig(64, 64, 4, 3, programs=sms, min_piece_tokens=256, own=own, overlap="shared_first")
    return SharedConfig(128, 64, 8, 3, programs=sms, min_piece_tokens=256, overlap="shared_first")
