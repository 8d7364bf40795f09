"""The chapter's claims on tensors: shapes and views of the cache, online softmax, block sizes (S17, S18, S24, S25)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from experiments.paper.chapter_sizes import claim
from experiments.paper.claims import Result, exact
from experiments.paper.tensors import all_not_here, without_torch

if TYPE_CHECKING:
    from torch import Tensor

NAMED: Final = {
    "S17": "shapes of the KV tensors of four backends",
    "S18": "K and V as views of one storage",
    "S24": "online update of the softmax, block by block",
    "S25": "block sizes that the kernels accept",
}
NB, BS, KH, D = 6, 16, 8, 128
LATENT: Final = 576
PRINTED: Final[dict[str, tuple[int, ...]]] = {
    "reference-flash-attn": (2, NB, BS, KH, D),
    "reference-flashinfer": (NB, 2, BS, KH, D),
    "reference-pallas": (NB, BS, 2 * KH, D),
    "reference-mla": (NB, BS, LATENT),
}
"""The chapter's table in section 4.3.3."""
BLOCK_SIZES: Final = range(1, 257)
BLOCK, NUM_TOKENS, NUM_ROWS = 16, 1000, 8
ROUNDING: Final = 1e-13


def judge() -> list[Result]:
    """S17, S18, S24, S25; without torch each says so."""
    lacking = without_torch()
    if lacking:
        return all_not_here(NAMED, "chapter", "chapter", lacking)
    return [*_shapes(), *_views(), *_online(), *_block_sizes()]


def _shape_of(backend: str, num_blocks: int = NB) -> tuple[int, ...]:
    from engine.attention.registry import get_backend

    heads = (1, LATENT) if backend == "reference-mla" else (KH, D)
    return tuple(get_backend(backend).get_kv_cache_shape(num_blocks, BS, *heads))


def _shapes() -> list[Result]:
    """S17: the table of shapes, and what follows from it."""
    from engine.core.catalogue import lookup

    shapes = {backend: _shape_of(backend) for backend in PRINTED}
    elements = {backend: math.prod(shape) for backend, shape in shapes.items()}
    per_token = {backend: count / (NB * BS) for backend, count in elements.items()}
    layers = lookup("deepseek-v3").num_layers
    return [
        exact(
            claim("S17/shapes", "shapes of four backends that are not the chapter's", 0, "shapes"),
            sum(shapes[backend] != printed for backend, printed in PRINTED.items()),
            ", ".join(str(shape) for shape in shapes.values()),
        ),
        exact(
            claim("S17/numel", "different numbers of elements among the three with K and V", 1, "", confidence="R"),
            len({count for backend, count in elements.items() if backend != "reference-mla"}),
        ),
        exact(
            claim("S17/factor", "elements a token and head element, K and V apart", 2, "", confidence="R"),
            per_token["reference-flash-attn"] / (KH * D),
        ),
        exact(
            claim("S17/mla_factor", "elements a token and latent element", 1, "", confidence="R"),
            per_token["reference-mla"] / LATENT,
        ),
        exact(
            claim("S17/v3_bytes_per_token", "KV of a token, DeepSeek-V3 in 2 bytes", 70_272, "B", confidence="R"),
            2 * layers * per_token["reference-mla"],
            f"{layers} layers of {LATENT}",
        ),
    ]


def _views() -> list[Result]:
    """S18: unbind(0), and that a write through a view is a write into the one tensor."""
    import torch

    cache = torch.zeros(_shape_of("reference-flash-attn"), dtype=torch.float16)
    wanted = cache.clone()
    wanted[1, 3, 2, 1] = 7.0
    k, v = cache.unbind(0)
    v[3, 2, 1] = 7.0
    storages = {tensor.untyped_storage().data_ptr() for tensor in (cache, k, v)}
    return [
        exact(claim("S18/storages", "storages of the cache, K and V", 1, "storages"), len(storages)),
        exact(
            claim("S18/k_offset", "bytes from the cache's first to K's first", 0, "B", confidence="R"),
            k.data_ptr() - cache.data_ptr(),
        ),
        exact(
            claim("S18/v_offset", "bytes from K's first to V's first", NB * BS * KH * D * 2, "B", confidence="R"),
            v.data_ptr() - k.data_ptr(),
            "half of the tensor",
        ),
        exact(
            claim("S18/written", "elements of the cache that are not as written through V", 0, "elements"),
            int((cache != wanted).sum()),
            f"{D} were written",
        ),
    ]


def blocks_of(scores: Tensor, values: Tensor, sizes: int | list[int] = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores [.., R, n] and values [.., n, D] of one block after another, or of parts of those sizes."""
    import torch

    split: Any = torch.split  # without types
    yield from zip(split(scores, sizes, -1), split(values, sizes, -2), strict=True)


def literal_update(scores: Tensor, values: Tensor, *, new_maximum: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The chapter's recurrence as printed, block by block: m, s and O [.., R], [.., R], [.., R, D].

    new_maximum: its p' are taken relative to the new maximum, which it does not say; otherwise to the block's own.
    """
    import torch

    m = torch.full(scores.shape[:-1], -math.inf, dtype=scores.dtype)
    s, out = torch.zeros_like(m), torch.zeros(*scores.shape[:-1], values.shape[-1], dtype=values.dtype)
    for x, v in blocks_of(scores, values):
        m_block = x.amax(-1)
        m_next = torch.maximum(m, m_block)
        s_block = torch.exp(x - m_block[..., None]).sum(-1)
        s = s * torch.exp(m - m_next) + s_block * torch.exp(m_block - m_next)
        p = torch.exp(x - (m_next if new_maximum else m_block)[..., None])
        out = out * torch.exp(m - m_next)[..., None] + p @ v
        m = m_next
    return m, s, out


def _online() -> list[Result]:
    """S24: the recurrence against softmax over all tokens at once, in float64, and against the engine's own."""
    import torch

    from engine.attention.merge import SoftmaxState

    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(NUM_ROWS, NUM_TOKENS, dtype=torch.float64, generator=generator)
    values = torch.randn(NUM_TOKENS, D, dtype=torch.float64, generator=generator)
    wanted, lse = scores.softmax(-1) @ values, scores.logsumexp(-1)
    read = {new: literal_update(scores, values, new_maximum=new) for new in (True, False)}
    errors = {new: relative(out / s[..., None], wanted) for new, (_, s, out) in read.items()}
    m, s, out = read[True]
    state = SoftmaxState.empty((NUM_ROWS,), D, torch.float64)
    for x, v in blocks_of(scores, values):
        state = state.absorb(x, v)
    own = max(relative(got, want) for got, want in ((state.m, m), (state.l, s), (state.acc, out)))
    unsaid = ("p-prime",)
    return [
        _close("S24/output", "relative difference of O / s from softmax at once", errors[True], *unsaid),
        _close("S24/sum", "relative difference of s from the sum at once", relative(s, torch.exp(lse - m))),
        _close("S24/lse", "relative difference of m + ln s from logsumexp", relative(m + s.log(), lse), "lse"),
        exact(
            claim("S24/readings", "of two readings of p', those that give attention", 1, "readings", *unsaid),
            sum(error <= ROUNDING for error in errors.values()),
            f"relative to the block's own maximum O is off by {errors[False]:.2g}",
        ),
        _close("S24/engine", "largest relative difference of the engine's m, l and acc from m, s and O", own),
    ]


def _close(name: str, metric: str, got: float, *deviations: str) -> Result:
    return exact(claim(name, metric, 0, "", *deviations, tolerance=ROUNDING, confidence="R"), got, f"{got:.1e}")


def relative(got: Tensor, wanted: Tensor) -> float:
    """||got - wanted|| / ||wanted||; NaN stays NaN, which no claim passes."""
    return float((got - wanted).norm() / wanted.norm())


def _accepted(backend: str) -> list[int]:
    """Block sizes of 1 to 256 for which the backend gives a shape."""
    from engine.attention.checks import AttentionInputError
    from engine.attention.registry import get_backend

    found, heads = [], (1, LATENT) if backend.endswith("mla") else (KH, D)
    for size in BLOCK_SIZES:
        try:
            get_backend(backend).get_kv_cache_shape(NB, size, *heads)
        except AttentionInputError:
            continue
        found.append(size)
    return found


def _block_sizes() -> list[Result]:
    """S25: which sizes are refused where, by asking; and the defaults."""
    from engine.attention.block_size import resolve_block_size
    from engine.attention.registry import get_backend

    flash, latent, own = (_accepted(name) for name in ("reference-flash-attn", "reference-flash-mla", "triton"))
    defaults = [
        resolve_block_size(get_backend(name), None, 4096, 64).value
        for name in ("reference-flash-attn", "reference-flash-mla")
    ]
    multiples = [size for size in BLOCK_SIZES if size % 16 == 0]
    return [
        exact(
            claim(
                "S25/flash_attn", "block sizes to 256 where FlashAttention's rule and size % 16 == 0 differ", 0, "sizes"
            ),
            len(set(flash) ^ set(multiples)),
        ),
        exact(
            claim("S25/flashmla", "block sizes to 256 where FlashMLA's rule and size == 64 differ", 0, "sizes"),
            len(set(latent) ^ {64}),
        ),
        exact(
            claim(
                "S25/triton", "block sizes to 256 that this repository's kernels take", 256, "sizes", "any-block-size"
            ),
            len(own),
        ),
        exact(claim("S25/default", "block size where nobody asks", 16, "tokens"), defaults[0]),
        exact(claim("S25/default_flashmla", "the same with FlashMLA", 64, "tokens"), defaults[1]),
    ]
