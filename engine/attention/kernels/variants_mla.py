"""Which kernels of latent attention the tuning rules ask for, of DeepSeek's latent: part of `variants`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.attention.kernels.inputs import padded
from engine.attention.kernels.launch_hopper import CAPABILITY, box_rows
from engine.attention.kernels.launch_mla import decode_options, prefill_options, reduce_options
from engine.attention.kernels.launch_mla_hopper import LATENT, RANK, hopper_options
from engine.attention.kernels.mla import mla_decode_kernel, mla_prefill_kernel, mla_reduce_kernel
from engine.attention.kernels.mla_pair import mla_pair_kernel
from engine.attention.kernels.mla_write import mla_write_kernel, mla_write_options
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.plan import Cut
from engine.attention.kernels.tuning import DecodeConfig, DecodeShape
from engine.attention.kernels.tuning_mla import (
    HOPPER_HEADS,
    HOPPER_KEYS,
    MLADecodeConfig,
    mla_decode_config,
    mla_prefill_config,
)
from engine.attention.kernels.variant import Variant

ROTARY = LATENT - RANK
HEADS = (16, 128)
"""DeepSeek-V2-Lite, or DeepSeek-V3 on eight devices; DeepSeek-V3."""
BATCHES = (8, 500)
"""Cut into pieces, and whole."""
BLOCK_SIZES = (16, 24, 64)
"""Of each address arithmetic one; Hopper's loads of a block (16, 64) and of a part of one (24)."""


@dataclass(frozen=True, slots=True)
class Model:
    """What all calls of the table have in common."""

    num_sms: int
    max_seq_len: int
    architecture: int

    def shape(self, batch: int, num_heads: int, block_size: int) -> DecodeShape:
        """Of a decode over latents of two bytes an element."""
        return DecodeShape(batch, 1, num_heads, RANK, 2, self.max_seq_len, block_size, self.num_sms, self.architecture)


def latents(model: Model) -> Iterator[Variant]:
    """All of a device's; an option of several calls comes several times."""
    for dtype, block_size in (*(("bf16", size) for size in BLOCK_SIZES), ("fp16", 64)):
        for num_heads in HEADS:
            shape = model.shape(BATCHES[0], num_heads, block_size)
            config = mla_prefill_config(shape)
            heads, mode = min(config.block_m, padded(num_heads)), Pages.of(block_size, config.block_n).mode
            yield Variant.of(mla_prefill_kernel, dtype, prefill_options(config, RANK, ROTARY, heads, mode))
            for batch in BATCHES:
                shape = model.shape(batch, num_heads, block_size)
                yield portable(dtype, shape, mla_decode_config(shape))
        if model.architecture // 10 == CAPABILITY:
            yield from (of_hopper(dtype, block_size, split=split) for split in (True, False))
    yield Variant.of(mla_reduce_kernel, "bf16", reduce_options(RANK, early=model.architecture >= 90))
    modes: tuple[Mode, ...] = ("shift", "divide")
    yield from (Variant.of(mla_write_kernel, "bf16", mla_write_options(RANK, ROTARY, mode)) for mode in modes)


def portable(dtype: str, shape: DecodeShape, config: MLADecodeConfig) -> Variant:
    """What a call of the decode for any device compiles."""
    mode = Pages.of(shape.block_size, config.cut.block_n).mode
    split = Cut.of(shape, config.cut, 0, config.block_m).split
    tma = config.use_tma and mode == "whole"
    return Variant.of(mla_decode_kernel, dtype, decode_options(config, RANK, ROTARY, mode, split=split, tma=tma))


def of_hopper(dtype: str, block_size: int, *, split: bool) -> Variant:
    """What a call of Hopper's kernel compiles."""
    cut = DecodeConfig(HOPPER_KEYS, 4, 2, programs=1, min_piece_tokens=HOPPER_HEADS)
    options = hopper_options(cut, box_rows(block_size, HOPPER_KEYS), block_size, split=split)
    return Variant.of(mla_pair_kernel, dtype, options)
