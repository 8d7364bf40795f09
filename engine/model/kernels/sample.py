"""Greedy and temperature sampling over a large vocabulary, fused: `engine.model.sampling.sample` without its filters.

Two launches: each program finds the best token of a part of a row, noise drawn on the way and never stored; then each
row's best part is found. The same random numbers as the specification's, bit for bit; logarithms are the device's.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.attention.kernels.device import interpreted, multiprocessors
from engine.model.kernels.inputs import check_dense, check_floats
from engine.model.kernels.launching import on_device
from engine.model.sampling import LEAST_UNIFORM, MIN_TEMPERATURE, POSITION_STEP, SamplingTensors

TILE = 1_024
"""Logits that a program looks at together."""
MAX_PARTS = 256
"""Of a row."""
MAX_VOCAB_SIZE = 2**30
PROGRAMS_PER_SM = 8

_GREEDY = tl.constexpr(MIN_TEMPERATURE)
_STEP = tl.constexpr(POSITION_STEP)
_LEAST = tl.constexpr(LEAST_UNIFORM)
_LN2 = tl.constexpr(0.6931471805599453)
_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["tiles"])
def part_kernel(
    LOGITS, TEMPERATURE, SEEDS, POSITIONS, SCORES, IDS, tiles,
    V: tl.constexpr, TILE: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Grid (S, parts): the best of `tiles` tiles of a row, as score and id; of a part without a number -inf and 0."""
    seq = tl.program_id(0)
    row = LOGITS + seq.to(tl.int64) * V
    begin = tl.program_id(1) * tiles * TILE
    end = tl.minimum(begin + tiles * TILE, V)
    temperature = tl.load(TEMPERATURE + seq)
    if temperature < _GREEDY:
        score, token = _largest(row, begin, end, V, TILE)
    else:
        key = tl.load(SEEDS + seq) + tl.load(POSITIONS + seq) * _STEP
        score, token = _noisiest(row, begin, end, 1.0 / temperature, key, V, TILE, APPROXIMATE)
    at = seq * tl.num_programs(1) + tl.program_id(1)
    tl.store(SCORES + at, score)
    tl.store(IDS + at, token)


@triton.jit
def _largest(row, begin, end, V: tl.constexpr, TILE: tl.constexpr):
    """Logits as they are."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    ids = tl.zeros([TILE], tl.int32)
    for start in range(begin, end, TILE):
        at = start + tl.arange(0, TILE)
        score = tl.load(row + at, mask=at < V, other=float("-inf")).to(tl.float32)
        better = score > best  # not for NaN; and the first of equals stays
        best = tl.where(better, score, best)
        ids = tl.where(better, at, ids)
    return _first_of_best(best, ids)


@triton.jit
def _noisiest(row, begin, end, factor, key, V: tl.constexpr, TILE: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Logits times `factor` plus noise. Philox gives four words a counter, of four tokens side by side."""
    best = tl.full([TILE // 4], float("-inf"), tl.float32)
    ids = tl.zeros([TILE // 4], tl.int32)
    for start in range(begin, end, TILE):
        counter = start // 4 + tl.arange(0, TILE // 4)
        u0, u1, u2, u3 = tl.rand4x(key, counter)
        at = 4 * counter
        best, ids = _absorb(best, ids, row, at, u0, factor, V, APPROXIMATE)
        best, ids = _absorb(best, ids, row, at + 1, u1, factor, V, APPROXIMATE)
        best, ids = _absorb(best, ids, row, at + 2, u2, factor, V, APPROXIMATE)
        best, ids = _absorb(best, ids, row, at + 3, u3, factor, V, APPROXIMATE)
    return _first_of_best(best, ids)


@triton.jit
def _absorb(best, ids, row, at, uniform, factor, V: tl.constexpr, APPROXIMATE: tl.constexpr):
    logit = tl.load(row + at, mask=at < V, other=float("-inf")).to(tl.float32)
    score = logit * factor + _gumbel(uniform, APPROXIMATE)
    better = score > best
    return tl.where(better, score, best), tl.where(better, at, ids)


@triton.jit
def _gumbel(uniform, APPROXIMATE: tl.constexpr):
    """-log(-log(1 - u)). For small u, of which the large values are made, the inner logarithm is its series: 1 - u has
    lost u's last digits."""
    u = tl.maximum(uniform, _LEAST)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333333333 + u * (0.25 + u * 0.2))))
    inner = tl.where(u < 0.0625, series, -_LN2 * _log2(1.0 - u, APPROXIMATE))
    return -_LN2 * _log2(inner, APPROXIMATE)


@triton.jit
def _log2(x, APPROXIMATE: tl.constexpr):
    """APPROXIMATE: one instruction, right to 2^-22 (absolute between 1/2 and 2), instead of 25; not interpretable."""
    if APPROXIMATE:
        result = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = tl.log2(x)
    return result


@triton.jit
def _first_of_best(scores, ids):
    best = tl.max(scores, 0)
    return best, tl.min(tl.where(scores == best, ids, _NO_ID), 0)


@triton.jit(do_not_specialize=["parts"])
def best_kernel(SCORES, IDS, OUT, parts, PARTS: tl.constexpr):
    """Grid (S,): the best of a row's parts."""
    seq = tl.program_id(0)
    numbers = tl.arange(0, PARTS)
    mask = numbers < parts
    scores = tl.load(SCORES + seq * parts + numbers, mask=mask, other=float("-inf"))
    ids = tl.load(IDS + seq * parts + numbers, mask=mask, other=_NO_ID)
    _, token = _first_of_best(scores, ids)
    tl.store(OUT + seq, token)


def sample_fused(logits: torch.Tensor, params: SamplingTensors, positions: torch.Tensor, out: torch.Tensor) -> None:
    """Token ids into `out` [S] int32, of logits [S, V] after positions [S] int64: `sample` without top-k and top-p.

    Where some row has them, pass `mask_filtered(logits, params)`. Waits for nothing: a call can be captured in a CUDA
    graph. ValueError before anything is launched.
    """
    num_seqs, vocab_size = logits.shape
    _check(logits, params, positions, out)
    if not num_seqs:
        return
    tiles, parts = cut(num_seqs, vocab_size, multiprocessors(logits.device))
    scores = torch.empty(num_seqs, parts, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_seqs, parts, dtype=torch.int32, device=logits.device)
    with on_device(logits):
        part_kernel[(num_seqs, parts)](
            logits, params.temperature, params.seeds, positions, scores, ids, tiles, V=vocab_size, TILE=TILE,
            APPROXIMATE=not interpreted(part_kernel), num_warps=4,
        )  # fmt: skip
        best_kernel[(num_seqs,)](scores, ids, out, parts, PARTS=MAX_PARTS, num_warps=2)


def _check(logits: torch.Tensor, params: SamplingTensors, positions: torch.Tensor, out: torch.Tensor) -> None:
    num_seqs, vocab_size = logits.shape
    check_floats("logits", logits)
    check_dense("logits", logits, (num_seqs, vocab_size), logits.dtype, logits)
    check_dense("temperature", params.temperature, (num_seqs,), torch.float32, logits)
    check_dense("seeds", params.seeds, (num_seqs,), torch.int64, logits)
    check_dense("positions", positions, (num_seqs,), torch.int64, logits)
    check_dense("out", out, (num_seqs,), torch.int32, logits)
    if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise ValueError(f"logits: expected a vocabulary of 1 to {MAX_VOCAB_SIZE}, got {vocab_size}")


def cut(num_seqs: int, vocab_size: int, num_sms: int) -> tuple[int, int]:
    """(tiles of a part, parts of a row): as many programs as fill the device, where there are as many tiles."""
    all_tiles = -(-vocab_size // TILE)
    parts = min(MAX_PARTS, all_tiles, -(-PROGRAMS_PER_SM * num_sms // num_seqs))
    tiles = -(-all_tiles // parts)
    return tiles, -(-all_tiles // tiles)
