"""Which kernels of latent attention the tuning rules ask for, in DeepSeek's sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from triton.runtime.jit import mangle_type

from engine.attention.kernels.inputs import padded
from engine.attention.kernels.inputs_mla import LatentMatrix
from engine.attention.kernels.launch_hopper import box_rows
from engine.attention.kernels.launch_mla import decode_options, prefill_options, reduce_options
from engine.attention.kernels.launch_mla_hopper import (
    KERNELS,
    LATENT,
    RANK,
    hopper_options,
    latent_descriptor,
    query_descriptor,
)
from engine.attention.kernels.mla import mla_decode_kernel, mla_prefill_kernel, mla_reduce_kernel
from engine.attention.kernels.mla_write import mla_write_kernel, mla_write_options
from engine.attention.kernels.pages import Pages
from engine.attention.kernels.plan import Cut
from engine.attention.kernels.tuning import DecodeShape
from engine.attention.kernels.tuning_mla import ROTARY, mla_decode_config, mla_prefill_config

HEADS = (16, 128)
"""Query heads: a share of eight devices, and all of them."""
BLOCK_SIZES = (16, 24, 64)
"""Of each address arithmetic one: by shift, by division, whole tiles."""
BATCHES = (1, 128)
HOPPER_CAPABILITY = 90
Options = dict[str, Any]


def mla_variants(architecture: int, num_sms: int) -> Iterator[tuple[Any, Options]]:
    """Kernels and what is compiled into them; bfloat16."""
    for heads in HEADS:
        for batch in BATCHES:
            for block_size in BLOCK_SIZES:
                yield from _of(DecodeShape(batch, 1, heads, RANK, 2, 8192, block_size, num_sms, architecture))
    yield mla_reduce_kernel, reduce_options(RANK, early=architecture >= HOPPER_CAPABILITY)
    for block_size in (16, 24):
        yield mla_write_kernel, mla_write_options(RANK, ROTARY, Pages.of_slots(block_size).mode)


def _of(shape: DecodeShape) -> Iterator[tuple[Any, Options]]:
    """Of a batch of decodes, of chunks, and of what Hopper's kernels take."""
    config = mla_decode_config(shape)
    cut = Cut.of(shape, config.cut, 0, config.block_m)
    mode = Pages.of(shape.block_size, config.cut.block_n).mode
    yield mla_decode_kernel, decode_options(config, RANK, ROTARY, mode, split=cut.split, tma=config.use_tma)
    chunk = mla_prefill_config(shape)
    mode, heads = Pages.of(shape.block_size, chunk.block_n).mode, min(chunk.block_m, padded(shape.group))
    yield mla_prefill_kernel, prefill_options(chunk, RANK, ROTARY, heads, mode)
    own = mla_decode_config(shape, hopper=shape.capability == HOPPER_CAPABILITY)
    box = box_rows(shape.block_size, own.cut.block_n)
    if own.kernel != "portable" and box:
        split = Cut.of(shape, own.cut, 0, own.block_m).split
        for kernel in KERNELS.values():
            yield kernel, hopper_options(own.cut, box, shape.block_size, split=split)


def mla_descriptor(name: str, dtype: torch.dtype, options: Options) -> str:
    """Triton's type of Q_DESC or KV_DESC of Hopper's kernels, which carries box and layout."""
    if name == "Q_DESC":
        return str(mangle_type(query_descriptor(torch.empty(1, HEADS[-1], LATENT, dtype=dtype, device="meta"))))
    cache = torch.empty(1, options["BOX"], LATENT, dtype=dtype, device="meta")
    matrix = LatentMatrix.of(cache)
    assert matrix is not None
    return str(mangle_type(latent_descriptor(cache, matrix, options["BOX"])))
