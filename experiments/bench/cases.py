"""The named cases of `pagelab bench kernel`: which shapes each holds, and what it compares."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from experiments.bench.shapes import (
    FP8,
    GQA,
    LAYOUTS,
    MHA,
    MLA_16,
    MLA_128,
    Heads,
    Shape,
    decode,
    latent_decode,
    tokens,
)  # fmt: skip

LADDER: Final = {
    1: (1024, 4096, 16384, 65536),
    8: (1024, 4096, 16384, 65536),
    64: (1024, 4096, 16384),
    256: (1024, 4096, 16384),
}
"""Batch -> contexts, from a batch that only latency matters for to one that only bandwidth matters for."""
LARGEST_KV_BYTES: Final = 40 * 10**9
BLOCK_SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
LONG_CONTEXT, LARGE_KV_BYTES = 4096, 256 * 10**6
FIG18A: Final = tuple((batch, context) for batch in (8, 32) for context in (64, 128, 256))
MOST_DECODES: Final = 256
"""Up to here the tokens written are one of each sequence, above they are a prompt."""
QUICK_SHAPES: Final = 2

Make = Callable[[int, int], Sequence[Shape]]
"""(block size, seed) -> shapes."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question and the shapes that answer it."""

    name: str
    question: str
    make: Make
    contestants: tuple[str, ...] = ("pagelab", "peers")
    """Which of ours take part, and whether the libraries do."""


def _ladder(case: str, block_size: int) -> list[Shape]:
    return [
        shape
        for heads in (GQA, MHA)
        for batch, contexts in LADDER.items()
        for context in contexts
        if (shape := decode(case, heads, batch, context, block_size)).cache_bytes <= LARGEST_KV_BYTES
    ]


def _ragged(block_size: int, seed: int) -> list[Shape]:
    rng = random.Random(seed)
    mixes = {
        "64 uniform 256..16k": [rng.randint(256, 16384) for _ in range(64)],
        "64 log-uniform 128..32k": [int(math.exp(rng.uniform(math.log(128), math.log(32768)))) for _ in range(64)],
        "one 64k + 63 x 1k": [65536] + [1024] * 63,
        "256 uniform 256..4k": [rng.randint(256, 4096) for _ in range(256)],
        "one 64k + 7 x 1k": [65536] + [1024] * 7,
    }
    return [
        Shape("ragged", "decode", f"{heads.name} {name}", heads, tuple(lengths), (1,) * len(lengths), block_size)
        for heads in (GQA, MHA)
        for name, lengths in mixes.items()
    ]


def _new_tokens(case: str, heads: Heads, batch: int, query: int, context: int, block_size: int) -> Shape:
    """`query` new tokens of each sequence on `context` earlier ones."""
    label = f"{heads.name} {batch} x {tokens(query)}" + (f" on {tokens(context)}" if context else "")
    return Shape(case, "prefill", label, heads, (context + query,) * batch, (query,) * batch, block_size)


def _prefill(block_size: int, seed: int) -> list[Shape]:
    return [_new_tokens("prefill", heads, 8, 2048, 0, block_size) for heads in (GQA, MHA)]


def _chunk(block_size: int, seed: int) -> list[Shape]:
    return [_new_tokens("chunk", GQA, batch, 512, 8192, block_size) for batch in (8, 1)]


def _mixed(block_size: int, seed: int) -> list[Shape]:
    steps = {
        "63 decodes at 4k + 512 on 8k": (63, 4096, 512, 8704),
        "255 decodes at 1k + prompt of 1k": (255, 1024, 1024, 1024),
        "31 decodes at 2k + 2k on 4k": (31, 2048, 2048, 6144),
    }
    return [
        Shape("mixed", "mixed", name, GQA, (context,) * num + (length,), (1,) * num + (query,), block_size)
        for name, (num, context, query, length) in steps.items()
    ]


def _write(block_size: int, seed: int) -> list[Shape]:
    sizes = [(GQA, count) for count in (64, 256, 2048, 16384)] + [(MHA, 16384)]
    return [
        Shape("write", "write", f"{heads.name} {count:,} tokens", heads, lengths, lengths, block_size)
        for heads, count in sizes
        for lengths in [(1,) * count if count <= MOST_DECODES else (count,)]
    ]


def _copy(block_size: int, seed: int) -> list[Shape]:
    return [
        Shape("copy", "copy", f"gqa {count:,} blocks", GQA, (block_size,) * count, (block_size,) * count, block_size)
        for count in (16, 256, 4096)
    ]


def _layouts(block_size: int, seed: int) -> list[Shape]:
    shapes = [
        decode("layouts", GQA, batch, context, block_size) for batch, context in ((8, 4096), (64, 4096), (256, 1024))
    ]
    return [shape.with_(layout=layout) for shape in shapes for layout in LAYOUTS]


def _block_sizes(block_size: int, seed: int) -> list[Shape]:
    return [
        decode("block-size", heads, batch, 4096, size)
        for heads, batch in ((GQA, 8), (GQA, 64), (MHA, 8))
        for size in BLOCK_SIZES
    ]


def _long(case: str, block_size: int) -> list[Shape]:
    """Where bandwidth decides: context of 4k or more and at least 256 MB of K and V."""
    return [
        shape
        for shape in _ladder(case, block_size)
        if max(shape.seq_lens) >= LONG_CONTEXT and shape.kv_tokens * shape.heads.token_bytes >= LARGE_KV_BYTES
    ]


def _order(block_size: int, seed: int) -> list[Shape]:
    return [
        shape.with_(table=order)
        for size in sorted({1, block_size})
        for shape in _long("table-order", size)
        for order in ("shuffled", "identity")
    ]


def _twin(block_size: int, seed: int) -> list[Shape]:
    return [*_ladder("twin", block_size), *(shape.with_(case="twin") for shape in _prefill(block_size, seed))]


def _fig18a(block_size: int, seed: int) -> list[Shape]:
    return [decode("fig18a", MHA, batch, context, block_size).with_(dtype="float16") for batch, context in FIG18A]


SHARED_RATIO: Final = ((64, 8192, 512), (256, 2048, 256))
"""(batch, shared, own): what two calls of FlashAttention-3 were measured on."""
SHARED_CURVE: Final = tuple((64, prefix, 256) for prefix in (1024, 2048, 4096, 8192, 16384))
"""As in Hydragen's figures: one batch, the shared prefix grows, own parts stay short."""


def shared_decode(batch: int, prefix: int, own: int, block_size: int) -> Shape:
    """A query a sequence; the first `prefix` tokens, rounded down to whole blocks, are the same blocks."""
    label = f"gqa {batch} x ({tokens(prefix)} + {tokens(own)})"
    lengths = (prefix + own,) * batch
    shared = prefix // block_size * block_size
    return Shape("shared-prefix", "decode", label, GQA, lengths, (1,) * batch, block_size, shared_tokens=shared)


def _shared_prefix(block_size: int, seed: int) -> list[Shape]:
    return [shared_decode(*sizes, block_size) for sizes in (*SHARED_RATIO, *SHARED_CURVE)]


MLA_BATCHES: Final = (
    *((MLA_16, batch, context) for batch, context in ((8, 4096), (64, 4096), (64, 16384))),
    *((MLA_128, batch, context) for batch, context in ((8, 4096), (64, 4096), (64, 16384), (8, 65536))),
)
MLA_BLOCK_SIZE: Final = 64
"""The one that every library takes, FlashMLA no other."""


def _mla(block_size: int, seed: int) -> list[Shape]:
    return [latent_decode("mla", *sizes, MLA_BLOCK_SIZE) for sizes in MLA_BATCHES]


OF_BACKENDS: Final = "backends"
"""The case that `--backend` means; of nobody's interest without."""


def _backends(block_size: int, seed: int) -> list[Shape]:
    """A decode, a prompt's chunk and a mixed step, on one pool in each layout."""
    decodes = decode(OF_BACKENDS, GQA, 64, 4096, block_size)
    steps = [decodes, *_chunk(block_size, seed)[:1], _mixed(block_size, seed)[0]]
    return [step.with_(case=OF_BACKENDS, layout=layout) for step in steps for layout in LAYOUTS]


FP8_DECODES: Final = (
    (GQA, 64, 4096),
    (GQA, 1, 16384),
    (GQA, 8, 4096),
    (GQA, 64, 16384),
    (GQA, 256, 1024),
    (MHA, 8, 4096),
)


def _fp8(block_size: int, seed: int) -> list[Shape]:
    """Each over a cache of 16 bits and over one of FP8."""
    shapes = [decode("fp8", *sizes, block_size) for sizes in FP8_DECODES]
    shapes += [decode("fp8", GQA, 64, 4096, 256).with_(label="gqa 64 x 4k, blocks of 256")] if block_size != 256 else []
    shapes += [shape.with_(case="fp8") for shape in (*_chunk(block_size, seed), *_mixed(block_size, seed)[:1])]
    shapes += [shape.with_(case="fp8") for shape in _write(block_size, seed)[:3]]
    return [one for shape in shapes for one in (shape, shape.with_(dtype=FP8))]


TWINS: Final = ("pagelab", "pagelab-twin", "pagelab-twin-equal", "peers")
CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        Case("decode", "paged decode over batch and context", lambda size, seed: _ladder("decode", size)),
        Case("ragged", "decode of batches whose lengths differ", _ragged),
        Case("prefill", "whole prompts", _prefill),
        Case("chunk", "a chunk of a prompt on what is there already", _chunk),
        Case("mixed", "decodes and a chunk in one step", _mixed),
        Case("write", "new K and V into their slots", _write),
        Case("copy", "whole blocks to other blocks", _copy),
        Case("layouts", "does the order of the cache's dimensions matter?", _layouts, ("pagelab",)),
        Case("block-size", "what does the block size cost?", _block_sizes),
        Case("table-order", "do scattered blocks cost more than adjacent ones?", _order, ("pagelab",)),
        Case("twin", "what does looking blocks up cost against no table at all?", _twin, TWINS),
        Case(
            "shared-prefix",
            "what does a decode gain that takes a shared prefix once for all?",
            _shared_prefix,
            ("pagelab", "pagelab-shared", "peers"),
        ),
        Case("mla", "decode over latents, one for all query heads, in blocks of 64", _mla),
        Case(OF_BACKENDS, "which attention backends serve one pool, and how fast?", _backends),
        Case("fp8", "what does an FP8 cache gain over one of 16 bits?", _fp8, ("pagelab",)),
        Case("fig18a", "the batches and contexts of Fig 18a", _fig18a, TWINS),
    )
}


def shapes_of(
    name: str, *, block_size: int = 16, dtype: str = "bfloat16", seed: int = 0, quick: bool = False
) -> list[Shape]:
    """The shapes of a case; `quick`: the two smallest of each case, and of those with several variants all variants.

    ValueError for an unknown case or a block size below 1. fig18a is always float16, as in the paper; FP8 stays FP8.
    """
    if name not in CASES:
        raise ValueError(f"unknown case {name!r}; there are {', '.join(CASES)}")
    if block_size < 1:
        raise ValueError(f"the block size must be at least 1, got {block_size}")
    made = CASES[name].make(block_size, seed)
    shapes = [shape if name == "fig18a" or shape.dtype == FP8 else shape.with_(dtype=dtype) for shape in made]
    if not quick:
        return shapes
    small = sorted({shape.label: shape.cache_bytes for shape in shapes}.items(), key=lambda item: item[1])[
        :QUICK_SHAPES
    ]
    kept = {label for label, _ in small}
    return [shape for shape in shapes if shape.label in kept]
