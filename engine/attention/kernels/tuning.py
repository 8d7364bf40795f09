"""Tile sizes: one configuration type per kernel, and one fixed rule from a call's shape to a configuration.

Rules read what the host knows anyway (shapes, the longest length), never device memory, and never measure: a captured
graph and its replay use the same kernels. The contiguous twins have rules of their own, found by their own search.
Every launcher takes `config=` instead, which is how such a search drives it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decode attention is cut and compiled."""

    block_n: int
    """Keys a tile: a power of two, at least 16."""
    num_warps: int
    num_stages: int
    """Depth of the load pipeline; num_stages - 1 tiles of K and V have a buffer."""
    programs: int
    """The batch's keys are cut into pieces that make about this many programs, KV heads included."""
    min_piece_tokens: int
    """But never into pieces shorter than this; a batch that cannot exceed it is not split and needs no reduction."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What the rule for decode reads."""

    num_seqs: int
    num_kv_heads: int
    group: int
    head_size: int
    element_bytes: int
    max_seq_len: int
    block_size: int
    """0 for the contiguous twin."""
    num_sms: int


def decode_config(shape: DecodeShape) -> DecodeConfig:
    """The paged kernel's configuration."""
    return _decode_config(shape)


def decode_contiguous_config(shape: DecodeShape) -> DecodeConfig:
    """The contiguous twin's configuration."""
    return _decode_config(shape)


def _decode_config(shape: DecodeShape) -> DecodeConfig:
    row_bytes = (1 << (shape.head_size - 1).bit_length()) * shape.element_bytes
    block_n = max(16, min(64, 64 * 256 // row_bytes))
    unsplit = shape.num_seqs * shape.num_kv_heads
    if unsplit >= 2 * shape.num_sms:
        return DecodeConfig(block_n, num_warps=2, num_stages=2, programs=4 * shape.num_sms, min_piece_tokens=2048)
    return DecodeConfig(block_n, num_warps=4, num_stages=3, programs=2 * shape.num_sms, min_piece_tokens=2 * block_n)


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """How the KV write is cut and compiled."""

    tokens: int
    """Tokens a program, a power of two."""
    block_elements: int
    """Elements of K, and of V, a token a program, a power of two."""
    num_warps: int


def write_config(num_tokens: int, elements: int) -> WriteConfig:
    """For `num_tokens` tokens of `elements` = KH * D elements: 16 bytes of K a thread at two bytes an element."""
    block = min(1024, 1 << (elements - 1).bit_length())
    return WriteConfig(tokens=1, block_elements=block, num_warps=max(1, block // 256))
