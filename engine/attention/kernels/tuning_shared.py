"""Tile sizes of decode attention over shared prefixes: the type of its configuration, and its rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from engine.attention.checks import AttentionInputError, check_count
from engine.attention.kernels.inputs import padded
from engine.attention.kernels.shared_memory import fitting, program_bytes
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape, check_power, decode_bytes


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
    """The configuration for shared prefixes; where the device has no room for it, in fewer stages or smaller tiles."""
    config = fitting(_shared(shape), lambda one: shared_bytes(one, shape), shape.capability)
    if config.own is None:
        return config
    own = fitting(config.own, lambda one: decode_bytes(one, shape), shape.capability)
    return dataclasses.replace(config, own=own)


def shared_bytes(config: SharedConfig, shape: DecodeShape) -> int:
    """Shared memory, at most, of a program that takes shared keys."""
    sizes = config.block_m, config.block_n, config.num_stages, padded(shape.head_size)
    return program_bytes(*sizes, shape.element_bytes, shape.capability, converts=shape.element_bytes == 1)


def _shared(shape: DecodeShape) -> SharedConfig:
    """Best of a search over batches of 16, 64 and 256 on an H200 (head size 128,
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
