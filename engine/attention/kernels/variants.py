"""Which kernels the tuning rules ask for: every one that ordinary models and batches reach, with what it is called on.

Not a product of all options: head size 128 in bfloat16 gets every address arithmetic, window and soft-cap, the other
head sizes and float16 the default block size. What a rule changes, changes here with it. Hopper's own prefill kernel
is few enough for the product of what it is compiled for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from engine.attention.kernels.copy_blocks import copy_kernel, copy_options
from engine.attention.kernels.decode import decode_kernel, reduce_kernel
from engine.attention.kernels.inputs import padded
from engine.attention.kernels.kv_write import write_kernel, write_options
from engine.attention.kernels.launch_decode import decode_options, reduce_options
from engine.attention.kernels.launch_hopper import (
    CAPABILITY,
    HopperCall,
    HopperConfig,
    box_rows,
    kernel_options,
    query_descriptor,
)
from engine.attention.kernels.launch_hopper import HEAD_SIZES as HOPPER_HEAD_SIZES
from engine.attention.kernels.launch_prefill import prefill_options
from engine.attention.kernels.launch_shared import SharedCut, merge_options, shared_options, shared_plan_options
from engine.attention.kernels.pages import Mode, Pages
from engine.attention.kernels.plan import Cut, plan_kernel, plan_options
from engine.attention.kernels.prefill import prefill_kernel
from engine.attention.kernels.prefill_hopper import hopper_kernel
from engine.attention.kernels.shared_prefix import merge_kernel, shared_kernel, shared_plan_kernel
from engine.attention.kernels.tuning import (
    DecodeConfig,
    DecodeShape,
    PrefillConfig,
    PrefillShape,
    decode_config,
    decode_contiguous_config,
    prefill_config,
    write_config,
)
from engine.attention.kernels.tuning_shared import SharedConfig, shared_config
from engine.attention.kernels.variant import DTYPES, Variant
from engine.attention.kernels.variants_mla import Model, latents

HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (0, 16, 24, 256)
"""Of each address arithmetic one: contiguous, by shift, by division, whole tiles."""
BATCHES = (1, 8, 32, 128)
QUERIES = 256
MODEL = (8, 4)
"""KV heads and group of the shapes: Llama-3-8B's."""
NUM_SMS = 132
MAX_SEQ_LEN = 8192
HOPPER_BLOCK_SIZES = (0, 16, 24, 64, 128, 256)
"""Contiguous, and paged: loads of a block (16, 64, 128), of a part of one (24, 256)."""
HOPPER_GROUPS = (1, 4, 5)
"""Query heads a KV head: no group, a box of Q, none (5 divides no tile: by pointers)."""
SHARED_GROUPS = 16
"""Rows of a table of groups of rows that share a prefix."""
FP8_ARCHITECTURE = 89
"""From which on E4M3 is converted by instructions; what moves bits about elsewhere is not tuned."""
FP8_CASES = ((16, 128), (24, 128), (0, 128), (256, 128), (16, 64), (16, 80), (16, 256))
"""Block size and head size over an FP8 cache."""


def variants(architecture: int) -> list[Variant]:
    """All of them for devices of that compute capability (80, 90), each once."""
    attention = [*_decode(architecture), *_prefill(architecture), *_shared(architecture)]
    if architecture // 10 == CAPABILITY:
        attention += _hopper()
    if architecture >= FP8_ARCHITECTURE:
        attention += _fp8(architecture)
    attention += latents(Model(NUM_SMS, MAX_SEQ_LEN, architecture))
    return list(dict.fromkeys([*attention, *_write(), *_copy()]))


def _cases() -> Iterator[tuple[str, int, int, bool, bool]]:
    """dtype, head size, block size, windowed, capped."""
    for head_size in HEAD_SIZES:
        yield "bf16", head_size, 16, False, False
    yield "fp16", 128, 16, False, False
    for block_size in BLOCK_SIZES:
        yield "bf16", 128, block_size, False, False
    for windowed, capped in ((True, False), (False, True), (True, True)):
        yield "bf16", 128, 16, windowed, capped


def _decode(architecture: int) -> Iterator[Variant]:
    for dtype, head_size, block_size, windowed, capped in _cases():
        for batch in BATCHES:
            shape = DecodeShape(batch, *MODEL, head_size, 2, MAX_SEQ_LEN, block_size, NUM_SMS, architecture)
            config = decode_config(shape) if block_size else decode_contiguous_config(shape)
            mode = _mode(block_size, config.block_n)
            cut = Cut.of(shape, config, 0)
            for split in {False, cut.split}:
                options = decode_options(
                    config, head_size, cut.block_m, mode, windowed=windowed, capped=capped, split=split
                )
                yield Variant.of(decode_kernel, dtype, options)
            if cut.split:
                yield Variant.of(reduce_kernel, dtype, reduce_options(head_size, early=architecture >= 90))
                yield Variant.of(plan_kernel, dtype, plan_options(config, windowed=windowed, num_seqs=batch))


def _prefill(architecture: int) -> Iterator[Variant]:
    for dtype, head_size, block_size, windowed, capped in _cases():
        for batch in BATCHES:
            sizes = (QUERIES * batch, batch, *MODEL, head_size, 2, QUERIES, MAX_SEQ_LEN, block_size)
            shape = PrefillShape(*sizes, NUM_SMS, architecture, windowed)
            config = prefill_config(shape)
            mode = _mode(block_size, config.block_n)
            whole = mode in ("contiguous", "whole") and padded(head_size) == head_size
            tma = config.use_tma and whole and not windowed
            options = prefill_options(config, head_size, mode, windowed=windowed, capped=capped, tma=tma)
            yield Variant.of(prefill_kernel, dtype, options)


def _shared(architecture: int) -> Iterator[Variant]:
    """Shared prefixes: no window, and a table."""
    for dtype, head_size, block_size, windowed, capped in _cases():
        for batch in BATCHES:
            if not windowed and block_size:
                shape = DecodeShape(batch, *MODEL, head_size, 2, MAX_SEQ_LEN, block_size, NUM_SMS, architecture)
                yield from shared(dtype, shape, shared_config(shape), capped=capped)


def shared(dtype: str, shape: DecodeShape, config: SharedConfig, *, capped: bool = False) -> Iterator[Variant]:
    """What a call over shared prefixes compiles."""
    head_size, apart = shape.head_size, config.overlap != "none"
    early = shape.capability >= 90 and not apart
    own = SharedCut.of(shape, config, SHARED_GROUPS).own
    mode = _mode(shape.block_size, own.config.block_n)
    options = decode_options(
        own.config, head_size, own.block_m, mode, windowed=False, capped=capped, split=own.split, shared=True
    )
    yield Variant.of(decode_kernel, dtype, options)
    mode = _mode(shape.block_size, config.block_n)
    yield Variant.of(shared_kernel, dtype, shared_options(config, head_size, mode, capped=capped, early=early))
    yield Variant.of(merge_kernel, dtype, merge_options(config, head_size, split=own.split, early=early))
    yield Variant.of(shared_plan_kernel, dtype, shared_plan_options(config, SHARED_GROUPS))


def _hopper() -> Iterator[Variant]:
    for case in itertools.product(HOPPER_HEAD_SIZES, HOPPER_GROUPS, HOPPER_BLOCK_SIZES):
        yield hopper("bf16", *case)
    yield hopper("fp16", 128, 4, 16)


def hopper(dtype: str, head_size: int, group: int, block_size: int) -> Variant:
    """What a call of Hopper's prefill kernel compiles; block_size 0: the twin."""
    config = HopperConfig()
    box = box_rows(block_size, config.block_n)
    q = torch.empty(1, group, head_size, dtype=DTYPES[dtype], device="meta")
    boxed = group if query_descriptor(q, group) else 0
    pages = HopperCall(1.0, 1, block_size, config).pages(box)
    return Variant.of(hopper_kernel, dtype, kernel_options(config, head_size, box, pages, boxed))


def _fp8(architecture: int) -> Iterator[Variant]:
    """FP8 caches, which Hopper's own prefill kernel does not take."""
    fp8 = {"FP8": True, "NATIVE": True}
    for block_size, head_size in FP8_CASES:
        for batch in BATCHES:
            shape = DecodeShape(batch, *MODEL, head_size, 1, 8192, block_size, NUM_SMS, architecture)
            config = decode_config(shape) if block_size else decode_contiguous_config(shape)
            cut = Cut.of(shape, config, 0)
            mode, switches = _mode(block_size, config.block_n), {"windowed": False, "capped": False, "split": cut.split}
            yield Variant.of(
                decode_kernel, "bf16", decode_options(config, head_size, cut.block_m, mode, **switches, fp8=fp8)
            )
            sizes = (QUERIES * batch, batch, *MODEL, head_size, 2, QUERIES, 8192, block_size)
            chunk = prefill_config(PrefillShape(*sizes, NUM_SMS, architecture, fp8=True))
            mode = _mode(block_size, chunk.block_n)
            tma = chunk.use_tma and mode in ("contiguous", "whole") and padded(head_size) == head_size
            options = prefill_options(chunk, head_size, mode, windowed=False, capped=False, tma=tma, fp8=fp8)
            yield Variant.of(prefill_kernel, "bf16", options)
            if block_size:
                among = shared_config(shape)
                mode, early = _mode(block_size, among.block_n), among.overlap == "none"
                options = shared_options(among, head_size, mode, capped=False, early=early, fp8=fp8)
                yield Variant.of(shared_kernel, "bf16", options)
    options = write_options(write_config(2048, 8 * 128), 128, 8, Pages.of_slots(16).mode, fp8=fp8)
    yield Variant.of(write_kernel, "bf16", options)


def _write() -> Iterator[Variant]:
    for num_heads in (8, 40):
        for block_size in (16, 24):
            mode = Pages.of_slots(block_size).mode
            options = write_options(write_config(2048, num_heads * 128), 128, num_heads, mode)
            yield Variant.of(write_kernel, "bf16", options)


def _copy() -> Iterator[Variant]:
    for count, run in ((1, 16 * 8 * 128), (16 * 8, 128)):  # a block in one piece, K of one with interleaved heads
        yield Variant.of(copy_kernel, "bf16", copy_options(count, run, 2))


def _mode(block_size: int, block_n: int) -> Mode:
    return Pages.of(block_size, block_n).mode if block_size else "contiguous"


def swept(configs: list[DecodeConfig | PrefillConfig], block_size: int, *, tma: bool = False) -> list[Variant]:
    """Of given configurations, head size 128, bfloat16, group 4, without window and soft-cap: to choose among them."""
    found = []
    for config in configs:
        mode = _mode(block_size, config.block_n)
        if isinstance(config, DecodeConfig):
            options = decode_options(config, 128, 16, mode, windowed=False, capped=False, split=True)
            found.append(Variant.of(decode_kernel, "bf16", options))
        else:
            options = prefill_options(config, 128, mode, windowed=False, capped=False, tma=tma)
            found.append(Variant.of(prefill_kernel, "bf16", options))
    return found
