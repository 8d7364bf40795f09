"""Section 4.6 of the chapter: the merge law of online softmax, its range, its accumulators, its passes over memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from experiments.paper.chapter_attention import BLOCK, blocks_of, relative
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab
from experiments.paper.tensors import all_not_here, without_torch

if TYPE_CHECKING:
    from torch import Tensor

    from engine.attention.merge import SoftmaxState

NAMED: Final = {"law": "merge law, range, accumulators and passes of online softmax"}
D, NUM_ROWS = 64, 4
NUM_TRIALS: Final = 50
ROUNDING: Final = 1e-14
LENGTHS: Final = tuple(2**power for power in range(10, 17))
"""1k to 64k tokens."""
QUICK_LENGTHS: Final = LENGTHS[::3]
LARGE: Final = 1e4
HALF_ERROR: Final = 5e-3
"""What a half-precision kernel may be off."""


def _claim(
    name: str, metric: str, expected: float, unit: str = "", tolerance: float = 0.0, confidence: str = "R"
) -> Claim:
    return Claim(f"online_softmax/{name}", metric, expected, unit, tolerance, "chapter 4.6", confidence)


def _small(name: str, metric: str, got: float, tolerance: float = ROUNDING) -> Result:
    return exact(_claim(name, metric, 0, tolerance=tolerance), got, f"{got:.1e}")


def judge(lab: Lab) -> list[Result]:
    """On the CPU, with seed 0; without torch one claim says so."""
    lacking = without_torch()
    if lacking:
        return all_not_here(NAMED, "online_softmax", "chapter 4.6", lacking)
    return [*_law(), *_range(), *_accumulators(lab), *_order(), *_passes()]


def tables(lab: Lab) -> list[Table]:
    """Errors by length."""
    if without_torch():
        return []
    rows = tuple((length, *errors) for length, errors in accumulator_errors(_lengths(lab)).items())
    return [
        Table(
            "online_softmax/accumulators",
            "Relative error of attention over half-precision K and V by what is accumulated in",
            ("tokens", "FP16", "FP32"),
            tuple((length, f"{half:.2e}", f"{single:.2e}") for length, half, single in rows),
            "FP16: scores, maximum, sum and output all kept in FP16; blocks of 16 tokens",
        )
    ]


def _state(scores: Tensor, values: Tensor) -> SoftmaxState:
    """Of all tokens of scores [R, N] and values [N, D], block by block."""
    from engine.attention.merge import SoftmaxState

    state = SoftmaxState.empty(tuple(scores.shape[:-1]), values.shape[-1], scores.dtype)
    for x, v in blocks_of(scores, values):
        state = state.absorb(x, v)
    return state


def _random_parts(num_parts: int) -> Iterator[tuple[list[SoftmaxState], Tensor]]:
    """States of parts of random lengths (also none) and scales, and plain softmax over all of them, in float64."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for _ in range(NUM_TRIALS):
        lengths = torch.randint(0, 60, (num_parts,), generator=generator).tolist()
        lengths[0] += 1  # one of them holds something
        scale = 10.0 ** float(torch.randint(-2, 4, (1,), generator=generator))
        scores = scale * torch.randn(NUM_ROWS, sum(lengths), dtype=torch.float64, generator=generator)
        values = torch.randn(sum(lengths), D, dtype=torch.float64, generator=generator)
        yield [_state(x, v) for x, v in blocks_of(scores, values, lengths)], scores.softmax(-1) @ values


def _apart(one: SoftmaxState, other: SoftmaxState) -> float:
    """Largest relative difference of two states' outputs and log-sum-exps."""
    (out_a, lse_a), (out_b, lse_b) = one.finish(), other.finish()
    return max(relative(out_a, out_b), relative(lse_a, lse_b))


def _law() -> list[Result]:
    """Associative and commutative up to rounding, the empty state is the identity, finished parts merge alike."""
    import torch

    from engine.attention.merge import SoftmaxState, merge_outputs

    worst = dict.fromkeys(("associative", "commutative", "identity", "plain", "finished"), 0.0)
    for (a, b, c), wanted in _random_parts(3):
        empty = SoftmaxState.empty((NUM_ROWS,), D, torch.float64)
        whole = a.merge(b).merge(c)
        finished = merge_outputs(*merge_outputs(*a.finish(), *b.finish()), *c.finish())
        seen = {
            "associative": _apart(whole, a.merge(b.merge(c))),
            "commutative": _apart(a.merge(b), b.merge(a)),
            "identity": max(_apart(a.merge(empty), a), _apart(empty.merge(a), a)),
            "plain": relative(whole.finish()[0], wanted),
            "finished": relative(finished[0], wanted),
        }
        worst = {name: _worse(worst[name], seen[name]) for name in worst}
    nothing = empty.merge(empty).finish()
    wrong = int((nothing[0] != 0).sum()) + int((nothing[1] != -math.inf).sum())
    return [
        _small("associative", "largest relative difference of (ab)c and a(bc)", worst["associative"]),
        _small("commutative", "largest relative difference of ab and ba", worst["commutative"], 0.0),
        _small("identity", "largest relative difference that an empty side makes", worst["identity"], 0.0),
        exact(_claim("empty", "elements of two empty sides' merge other than 0 and -inf", 0, "elements"), wrong),
        _small("softmax", "largest relative difference of merged parts from softmax at once", worst["plain"]),
        _small("outputs", "the same, finished parts (output, log-sum-exp) merged", worst["finished"]),
    ]


def _worse(one: float, other: float) -> float:
    """The larger; NaN beats everything, so that it cannot hide."""
    return other if math.isnan(other) or other > one else one


def _range() -> list[Result]:
    """Scores of +-1e4: exp() in FP16 overflows from 11.1 on; shifted by the running maximum it never does."""
    import torch

    generator = torch.Generator().manual_seed(0)
    signs = torch.where(torch.rand(NUM_ROWS, 256, generator=generator) < 0.5, -LARGE, LARGE)
    scores = (signs + torch.randn(NUM_ROWS, 256, generator=generator)).half()
    values = torch.randn(256, D, generator=generator).half()
    naive = scores.exp() / scores.exp().sum(-1, keepdim=True)
    lost = 100 * float((~(naive @ values).isfinite()).float().mean())
    wanted = scores.double().softmax(-1) @ values.double()
    shifted, _ = _state(scores, values).finish()
    single, _ = _state(scores.float(), values.float()).finish()
    steps = torch.arange(0, 16, 2**-7, dtype=torch.float16)
    overflow = float(steps[steps.exp().isinf()].min())
    return [
        exact(_claim("overflow", "score from which exp() overflows FP16", math.log(65504), "", 2**-6), overflow),
        exact(_claim("naive", "outputs without a shift that are not finite, scores of ±1e4", 100, "%"), lost),
        _small("shifted", "relative error at ±1e4, FP16 throughout", relative(shifted.double(), wanted), HALF_ERROR),
        _small("shifted_fp32", "relative error at ±1e4, FP32 accumulators", relative(single.double(), wanted), 1e-6),
    ]


def _lengths(lab: Lab) -> tuple[int, ...]:
    return QUICK_LENGTHS if lab.quick else LENGTHS


def accumulator_errors(lengths: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """By tokens: relative error against float64 on the same FP16 scores and values, with FP16 and with FP32 states.

    Values have mean 1, so that the output does not vanish as the context grows.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    found = {}
    for length in lengths:
        scores = torch.randn(NUM_ROWS, length, generator=generator).half()
        values = (1 + torch.randn(length, D, generator=generator)).half()
        wanted = scores.double().softmax(-1) @ values.double()
        half, single = (_state(scores.to(dtype), values.to(dtype)).finish()[0] for dtype in (torch.half, torch.float))
        found[length] = relative(half.double(), wanted), relative(single.double(), wanted)
    return found


def _accumulators(lab: Lab) -> list[Result]:
    """FP16 against FP32 over the context."""
    errors = accumulator_errors(_lengths(lab))
    shortest, longest = min(errors), max(errors)
    growth = errors[longest][0] / errors[shortest][0]
    return [
        _small(
            "fp32",
            f"largest relative error of FP32 states, {shortest:,} to {longest:,} tokens",
            max(single for _, single in errors.values()),
            1e-5,
        ),
        exact(
            _claim("fp16_worse", "lengths at which FP16 states are no worse than FP32 ones", 0, "lengths"),
            sum(half <= single for half, single in errors.values()),
        ),
        exact(
            _claim("fp16_unfit", f"whether FP16 states err by more than {HALF_ERROR} at {longest:,} tokens", 1),
            float(not errors[longest][0] <= HALF_ERROR),
            f"{errors[longest][0]:.1e}, {growth:.1f} times that at {shortest:,}",
        ),
    ]


def _order() -> list[Result]:
    """Blocks in random orders, merged one by one."""
    import torch

    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(NUM_ROWS, 4096, dtype=torch.float64, generator=generator)
    values = 1 + torch.randn(4096, D, dtype=torch.float64, generator=generator)
    worst = {torch.float64: 0.0, torch.float32: 0.0}
    for dtype in worst:
        first = _state(scores.to(dtype), values.to(dtype)).finish()[0]
        for _ in range(5):
            blocks = torch.randperm(4096 // BLOCK, generator=generator)
            tokens = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
            other = _state(scores[:, tokens].to(dtype), values[tokens].to(dtype)).finish()[0]
            worst[dtype] = _worse(worst[dtype], relative(other, first))
    return [
        _small("order", "largest relative difference between orders of the blocks", worst[torch.float64]),
        _small("order_fp32", "the same in float32", worst[torch.float32], 1e-6),
    ]


@dataclass
class CountedKeys:
    """Keys that can only be read in pieces, and count the rows that were."""

    keys: Tensor
    """[N, D]."""
    num_rows: int = field(default=0)

    def pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """One pass."""
        for start in range(0, len(self.keys), BLOCK):
            piece = slice(start, start + BLOCK)
            self.num_rows += len(self.keys[piece])
            yield piece, self.keys[piece]


def three_passes(q: Tensor, keys: CountedKeys, values: Tensor) -> Tensor:
    """Safe softmax without keeping the scores: the maximum, the sum, the output [R, D]."""
    import torch

    m = torch.stack([(q @ k.T).amax(-1) for _, k in keys.pieces()]).amax(0)
    s = torch.stack([torch.exp(q @ k.T - m[:, None]).sum(-1) for _, k in keys.pieces()]).sum(0)
    out = torch.zeros(len(q), values.shape[-1], dtype=q.dtype)
    for piece, k in keys.pieces():
        out += torch.exp(q @ k.T - m[:, None]) / s[:, None] @ values[piece]
    return out


def one_pass(q: Tensor, keys: CountedKeys, values: Tensor) -> Tensor:
    """Online softmax."""
    from engine.attention.merge import SoftmaxState

    state = SoftmaxState.empty((len(q),), values.shape[-1], q.dtype)
    for piece, k in keys.pieces():
        state = state.absorb(q @ k.T, values[piece])
    return state.finish()[0]


def _passes() -> list[Result]:
    """Rows of K that each reads, over the rows there are."""
    import torch

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, D, dtype=torch.float64, generator=generator) for n in (NUM_ROWS, 1000, 1000))
    read, outputs = [], []
    for compute in (three_passes, one_pass):
        keys = CountedKeys(k)
        outputs.append(compute(q, keys, v))
        read.append(keys.num_rows / len(k))
    return [
        exact(_claim("passes_naive", "passes over K: maximum, sum, output", 3, "passes", confidence="A"), read[0]),
        exact(_claim("passes_online", "passes over K of online softmax", 1, "passes", confidence="A"), read[1]),
        _small("passes_agree", "relative difference of their outputs", relative(outputs[1], outputs[0]), 1e-13),
    ]


ONLINE_SOFTMAX: Final = Experiment(
    "online_softmax", "Online softmax: merge law, range, accumulators, passes", judge, tables=tables
)
