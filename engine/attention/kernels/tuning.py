"""Tile sizes: one configuration type per kernel, and one fixed rule from a call's shape to a configuration.

Rules read what the host knows anyway (shapes, the longest length), never device memory, and never measure: a captured
graph and its replay use the same kernels. Decode's contiguous twin has a rule of its own, found by its own search.
Every launcher takes `config=` instead, which is how such a search drives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engine.attention.checks import AttentionInputError, check_count
from engine.attention.kernels.inputs import padded
from engine.attention.kernels.shared_memory import fitting, program_bytes

LONG_TOKENS = 1 << 17
"""Keys from which a batch of few programs takes larger tiles."""
NEVER = 1 << 30
"""More programs than any batch makes."""
MAX_BLOCK_M = 64
"""Query heads a program of decode takes at most."""


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
    """The paged kernel's configuration; where its device has no room for it, in fewer stages or smaller tiles."""
    return _with_room(_fp8_decode(shape) if shape.element_bytes == 1 else _decode(shape), shape)


def heads_of(shape: DecodeShape) -> int:
    """Query heads a program of decode takes: as many as a group has, up to MAX_BLOCK_M, half of it where each takes
    twice the bytes."""
    most = MAX_BLOCK_M if shape.element_bytes <= 2 else MAX_BLOCK_M // 2
    return min(most, padded(shape.group))


def decode_bytes(config: DecodeConfig, shape: DecodeShape) -> int:
    """Shared memory of a program, at most."""
    width = max(padded(shape.head_size), 32 if shape.element_bytes == 1 else 0)
    sizes = heads_of(shape), config.block_n, config.num_stages, width
    return program_bytes(*sizes, shape.element_bytes, shape.capability)


def _with_room(config: DecodeConfig, shape: DecodeShape) -> DecodeConfig:
    return fitting(config, lambda one: decode_bytes(one, shape), shape.capability)


def _decode(shape: DecodeShape) -> DecodeConfig:
    """From sweeps on an H200 (`pagelab bench kernel --sweep`, `results/LOG.md`).

    Few programs: three stages hide the latency of a lone one, the keys are cut into two waves; with many keys larger
    tiles in fewer stages keep more programs resident. Many programs: all that are resident run at once, pieces of
    1,024 tokens even out ragged batches. Between one and four waves of uncut sequences (multi-head attention, small
    batches) the last wave would be lonely: finer pieces fill it.
    """
    sms, narrow, wide = shape.num_sms, *_tiles(shape)
    uncut = shape.num_seqs * shape.num_kv_heads
    if uncut < 2 * sms:
        if shape.num_seqs > 1 and shape.num_seqs * shape.max_seq_len >= LONG_TOKENS:
            return DecodeConfig(wide, 4, 2, programs=2 * sms, min_piece_tokens=128)
        return DecodeConfig(narrow, 4, 3, programs=2 * sms, min_piece_tokens=_least_piece(shape))
    whole = 7 * sms // 2
    if shape.group == 1 and uncut < 4 * sms:
        return DecodeConfig(wide, 4, 2, programs=16 * sms, min_piece_tokens=_fine_piece(shape), whole_programs=whole)
    return DecodeConfig(narrow, 4, 2, programs=8 * sms, min_piece_tokens=1024, whole_programs=whole)


def _fp8_decode(shape: DecodeShape) -> DecodeConfig:
    """Over FP8, from a search of its own on an H200: 32 configurations on each of four shapes, `results/LOG.md`.

    A key has half the bytes and its conversion is work between loads: one or two stages more than 16 bits take, a fifth
    made everything 3 to 46 % slower. Many programs: narrow tiles, and two warps each, so that more are resident (1.00
    and 1.02 of the best, blocks of 16 and of 256). Few programs: wide tiles (1.00 of the best on 8 x 4k, 1.01 on 1 x
    16k). Cuts are those of 16 bits: coarser ones took up to 1.6 times as long for a lone sequence, others made no
    difference beyond 1 %. Not searched: multi-head attention, whose wide tiles read 3.2 TB/s, as the batch of
    64 did with them, which narrow ones took to 4.0; head sizes other than 128, whose tiles have as many bytes; groups
    of more than 16, whose rows are too many for two warps.
    """
    sms, narrow, wide = shape.num_sms, *_tiles(shape)
    uncut = shape.num_seqs * shape.num_kv_heads
    if uncut < 2 * sms:
        long = shape.num_seqs > 1 and shape.num_seqs * shape.max_seq_len >= LONG_TOKENS
        least = 128 if long else _least_piece(shape)
        return DecodeConfig(wide, 4, 3, programs=2 * sms, min_piece_tokens=least)
    whole, warps = 7 * sms // 2, 2 if shape.group <= 16 else 4
    if shape.group == 1 and uncut < 4 * sms:
        least = _fine_piece(shape)
        return DecodeConfig(narrow, warps, 4, programs=16 * sms, min_piece_tokens=least, whole_programs=whole)
    return DecodeConfig(narrow, warps, 4, programs=8 * sms, min_piece_tokens=1024, whole_programs=whole)


def _least_piece(shape: DecodeShape) -> int:
    return max(64, min(256, shape.max_seq_len // 16))


def _fine_piece(shape: DecodeShape) -> int:
    return 1024 if shape.max_seq_len <= 1024 else 512


def decode_contiguous_config(shape: DecodeShape) -> DecodeConfig:
    """The contiguous twin's configuration, from a sweep of its own: with many keys and no table, deeper pipelines pay.

    Elsewhere, and over FP8, whose twin was not searched, it is the paged kernel's.
    """
    sms, (_, wide) = shape.num_sms, _tiles(shape)
    uncut = shape.num_seqs * shape.num_kv_heads
    if shape.element_bytes == 1:
        deep = False
    elif uncut < 2 * sms:
        deep = shape.num_seqs > 1 and shape.num_seqs * shape.max_seq_len >= 2 * LONG_TOKENS
    elif shape.group == 1:
        deep = uncut < 4 * sms and shape.max_seq_len > 4096
    else:
        deep = shape.max_seq_len > 1024
    if deep:
        whole = NEVER if uncut < 2 * sms else 7 * sms // 2
        config = DecodeConfig(wide, 4, 3, programs=8 * sms, min_piece_tokens=1024, whole_programs=whole)
        return _with_room(config, shape)
    return decode_config(shape)


def _tiles(shape: DecodeShape) -> tuple[int, int]:
    """Keys of a narrow and of a wide tile: 16 and 32 KiB of K, half of that over FP8."""
    row_bytes = padded(shape.head_size) * shape.element_bytes
    most = 64 * 256 if shape.element_bytes == 1 else 128 * 256
    wide = max(16, min(128, most // row_bytes))
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
    """Paged or contiguous; where the device has no room for it, in fewer stages or smaller tiles."""
    return fitting(_prefill(shape), lambda one: prefill_bytes(one, shape), shape.capability)


def prefill_bytes(config: PrefillConfig, shape: PrefillShape) -> int:
    """Shared memory of a program, at most."""
    sizes = config.block_m, config.block_n, config.num_stages, padded(shape.head_size)
    stored = 1 if shape.fp8 else shape.element_bytes
    return program_bytes(*sizes, stored, shape.capability, converts=shape.fp8)


def _prefill(shape: PrefillShape) -> PrefillConfig:
    """Hopper: from sweeps of the paged kernel on an H200, by pointers three stages of 64 keys for
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
