"""Tile sizes of multi-head latent attention: the types of its configurations, and a rule for each of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from engine.attention.checks import AttentionInputError, check_count
from engine.attention.kernels.inputs import padded
from engine.attention.kernels.shared_memory import fitting, program_bytes, room
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape, check_power

Kernel = Literal["portable", "pair"]
"""`mla`, and the one for Hopper: `mla_pair`."""
HOPPER_HEADS = 64
"""Query heads a program of Hopper's kernel."""
HOPPER_KEYS = 64
"""Latents a tile of it."""
ROTARY = 64
"""Elements of DeepSeek's latents behind V's part."""

C = TypeVar("C", DecodeConfig, "MLAPrefillConfig")


@dataclass(frozen=True, slots=True)
class MLADecodeConfig:
    """How a decode over latents is cut and compiled; AttentionInputError for what cannot be."""

    block_m: int
    """Query heads a program: a power of two, at least 16; 64 for Hopper's kernel."""
    cut: DecodeConfig
    """The rest. Of Hopper's kernel num_warps is a warpgroup's 4, num_stages the tiles in shared memory."""
    use_tma: bool = False
    """Load whole tiles by descriptor where the cache allows it; Hopper's kernel always does."""
    kernel: Kernel = "portable"
    """Hopper's falls back to nothing: it takes DeepSeek's sizes only."""

    def __post_init__(self) -> None:
        check_power("block_m", self.block_m, 16)
        if self.kernel not in ("portable", "pair"):
            raise AttentionInputError(f"kernel: expected portable or pair, got {self.kernel!r}")
        sizes = self.block_m, self.cut.block_n, self.cut.num_warps, self.cut.num_stages
        if self.kernel != "portable" and sizes != (HOPPER_HEADS, HOPPER_KEYS, 4, 2):
            raise AttentionInputError(
                f"{self.kernel}: expected block_m={HOPPER_HEADS}, block_n={HOPPER_KEYS}, num_warps=4 and num_stages=2, "
                f"got {sizes}"
            )


@dataclass(frozen=True, slots=True)
class MLAPrefillConfig:
    """How chunks over latents are cut and compiled; AttentionInputError for what cannot be."""

    block_m: int
    """(query token, head) pairs a program: a power of two, at least 16."""
    block_n: int
    """Latents a tile: a power of two, at least 16."""
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        check_power("block_m", self.block_m, 16)
        check_power("block_n", self.block_n, 16)
        check_power("num_warps", self.num_warps)
        check_count("num_stages", self.num_stages, 1)


def mla_decode_config(shape: DecodeShape, *, rotary: int = ROTARY, hopper: bool = False) -> MLADecodeConfig:
    """The configuration of a decode; where the device has no room for it, in fewer stages, smaller tiles or fewer rows.

    `shape` with the latent as its one KV head and V's part of it as head size, `rotary` elements behind that. `hopper`:
    whether Hopper's kernel takes the call (`launch_mla_hopper.takes`).
    """
    config = _decode(shape, hopper)
    if config.kernel != "portable":
        return config
    block_m, cut = _with_room(config.block_m, config.cut, shape, rotary)
    return replace(config, block_m=block_m, cut=cut)


def _with_room(block_m: int, config: C, shape: DecodeShape, rotary: int) -> tuple[int, C]:
    """Fewer stages, smaller tiles, and last fewer rows."""

    def needs(one: C) -> int:
        return latent_bytes(block_m, one, shape, rotary)

    made = fitting(config, needs, shape.capability)
    if block_m == 16 or needs(made) <= room(shape.capability):
        return block_m, made
    return _with_room(block_m // 2, config, shape, rotary)


def latent_bytes(block_m: int, config: DecodeConfig | MLAPrefillConfig, shape: DecodeShape, rotary: int) -> int:
    """Shared memory, at most, of a program of the portable kernels: V is a part of K."""
    width = padded(shape.head_size) + padded(rotary)
    sizes = block_m, config.block_n, config.num_stages, width
    return program_bytes(*sizes, shape.element_bytes, shape.capability, kept=1)


def _decode(shape: DecodeShape, hopper: bool) -> MLADecodeConfig:
    sms, heads = shape.num_sms, shape.group
    if shape.element_bytes > 2:
        return MLADecodeConfig(16, DecodeConfig(16, 4, 1, programs=2 * sms, min_piece_tokens=64))
    if hopper and heads > 16:
        # On an H200 (132 SMs, bf16, blocks of 64) the fastest at 128 heads in every shape, 1.7 to 2.4 times as fast as
        # the portable kernel's best; twice the programs take 7 to 37 % longer. 17 to 127 heads were not timed.
        cut = DecodeConfig(HOPPER_KEYS, 4, 2, programs=sms, min_piece_tokens=128)
        return MLADecodeConfig(HOPPER_HEADS, cut, kernel="pair")
    if heads > 16 and shape.capability >= 90:
        return MLADecodeConfig(64, DecodeConfig(64, 8, 2, programs=sms, min_piece_tokens=128))
    if shape.capability >= 90:
        # Measured there at 16 heads, the fastest at batches of 64; at 8 x 4k within 6 % of what was, `pair` within 3 %.
        # Descriptors take 7 to 13 % off, and need tiles within blocks.
        cut = DecodeConfig(32, 4, 3, programs=2 * sms, min_piece_tokens=128)
        return MLADecodeConfig(16, cut, use_tma=shape.block_size % cut.block_n == 0)
    if heads > 16:
        return MLADecodeConfig(32, DecodeConfig(32, 8, 2, programs=sms, min_piece_tokens=128))
    return MLADecodeConfig(16, DecodeConfig(32, 4, 2, programs=2 * sms, min_piece_tokens=128))


def mla_prefill_config(shape: DecodeShape, *, rotary: int = ROTARY) -> MLAPrefillConfig:
    """The configuration of chunks; without room for it in fewer stages, smaller tiles or fewer rows."""
    config = _prefill(shape)
    block_m, config = _with_room(config.block_m, config, shape, rotary)
    return replace(config, block_m=block_m)


def _prefill(shape: DecodeShape) -> MLAPrefillConfig:
    """From code compiled ahead of time: the most rows whose sum fits the registers."""
    if shape.element_bytes > 2:
        return MLAPrefillConfig(16, 16, num_warps=4, num_stages=1)
    if shape.capability >= 90:
        return MLAPrefillConfig(64, 32, num_warps=8, num_stages=3)
    return MLAPrefillConfig(64, 16, num_warps=8, num_stages=2)
