"""The merge law of online softmax: any split, in any order, gives what the whole gives."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import SoftmaxState, merge_outputs

ROWS, SIZE = 3, 4
seeds = st.integers(0, 2**31)


def part(seed: int, num_tokens: int, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [ROWS, N] up to about `spread` and values [N, SIZE], float64."""
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(ROWS, num_tokens, generator=generator, dtype=torch.float64)
    return scores, torch.randn(num_tokens, SIZE, generator=generator, dtype=torch.float64)


def nothing(dtype=torch.float64) -> SoftmaxState:
    return SoftmaxState.empty((ROWS,), SIZE, dtype)


def state(scores: torch.Tensor, values: torch.Tensor) -> SoftmaxState:
    return nothing(scores.dtype).absorb(scores, values)


def same(a: SoftmaxState, b: SoftmaxState) -> None:
    for got, expected in zip(a.finish(), b.finish(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None)  # the first call warms torch up
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1.0, 30.0, 1e4]))
def test_merging_is_associative_and_commutative(seed, first, second, third, spread):
    a, b, c = (state(*part(seed + i, n, spread)) for i, n in enumerate((first, second, third)))
    same(a.merge(b).merge(c), a.merge(b.merge(c)))
    same(a.merge(b), b.merge(a))


@settings(deadline=None)  # the first call warms torch up
@given(seeds, st.integers(1, 6))
def test_the_empty_state_is_the_identity_exactly(seed, num_tokens):
    some = state(*part(seed, num_tokens))
    for merged in (some.merge(nothing()), nothing().merge(some)):
        for name in ("m", "l", "acc"):
            assert torch.equal(getattr(merged, name), getattr(some, name))


@settings(deadline=None)  # the first call warms torch up
@given(seeds, st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([1.0, 1e4]))
def test_any_split_gives_softmax_over_the_whole(seed, sizes, spread):
    scores, values = part(seed, sum(sizes) + 1, spread)
    sizes = [*sizes, 1]
    absorbed, merged = nothing(), nothing()
    for some_scores, some_values in zip(scores.split(sizes, 1), values.split(sizes), strict=True):
        absorbed = absorbed.absorb(some_scores, some_values)
        merged = merged.merge(state(some_scores, some_values))
    for made in (absorbed, merged):
        out, lse = made.finish()
        torch.testing.assert_close(out, scores.softmax(1) @ values, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(lse, scores.logsumexp(1), rtol=1e-12, atol=1e-12)


def test_no_weight_exceeds_one():
    """Relative to the maximum: l is at most the number of tokens, however large the scores."""
    scores, values = part(1, 50, 1e4)
    made = state(scores, values)
    assert (made.l <= 50).all()
    assert (made.l >= 1).all()


@pytest.mark.parametrize("top", [1e4, -1e4])
def test_scores_of_ten_thousand_overflow_naively_and_not_here(top):
    scores = torch.tensor([[top, top - 1.0], [top - 2.0, top]], dtype=torch.float64)
    values = torch.eye(2, dtype=torch.float64)
    naive = torch.exp(scores) @ values / torch.exp(scores).sum(1, keepdim=True)
    assert naive.isnan().all()
    out, lse = SoftmaxState.empty((2,), 2, torch.float64).absorb(scores, values).finish()
    weight = 1 / (1 + math.exp(-1.0))
    torch.testing.assert_close(out[0], torch.tensor([weight, 1 - weight], dtype=torch.float64))
    torch.testing.assert_close(lse, scores.logsumexp(1))


def test_a_row_that_sees_nothing_gives_zero_and_no_nan():
    scores, values = part(2, 4)
    scores[1] = -math.inf
    out, lse = state(scores, values).finish()
    assert torch.equal(out[1], torch.zeros(SIZE, dtype=torch.float64))
    assert lse[1] == -math.inf
    assert torch.isfinite(out).all()
    out, lse = nothing().merge(nothing()).finish()
    assert not out.any()
    assert (lse == -math.inf).all()


def test_nan_among_the_scores_reaches_the_output():
    """A stale slot that is read by mistake must not vanish in the guard for empty rows."""
    scores, values = part(3, 4)
    scores[0, 2] = math.nan
    out, lse = state(scores, values).finish()
    assert out[0].isnan().all()
    assert lse[0].isnan()
    assert torch.isfinite(out[1:]).all()


@settings(deadline=None)  # the first call warms torch up
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1.0, 1e4]))
def test_finished_outputs_merge_alike(seed, first, second, third, spread):
    a, b, c = (state(*part(seed + i, n, spread)) for i, n in enumerate((first, second, third)))
    left = merge_outputs(*merge_outputs(*a.finish(), *b.finish()), *c.finish())
    right = merge_outputs(*a.finish(), *merge_outputs(*c.finish(), *b.finish()))
    for got, other, whole in zip(left, right, a.merge(b).merge(c).finish(), strict=True):
        torch.testing.assert_close(got, whole, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(other, whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("infinity", [-math.inf, math.inf])
def test_an_empty_side_counts_for_nothing_whatever_it_holds(infinity):
    out, lse = state(*part(4, 5)).finish()
    garbage, never = torch.full_like(out, math.nan), torch.full_like(lse, infinity)
    for merged, total in (merge_outputs(out, lse, garbage, never), merge_outputs(garbage, never, out, lse)):
        assert torch.equal(merged, out)
        assert torch.equal(total, lse)
    merged, total = merge_outputs(garbage, never, garbage, never)
    assert not merged.any()
    assert (total == -math.inf).all()


def test_outputs_keep_their_type_and_merge_in_that_of_lse():
    out, lse = state(*part(5, 5)).finish()
    merged, total = merge_outputs(out.half(), lse.float(), out.half(), lse.float())
    assert (merged.dtype, total.dtype) == (torch.float16, torch.float32)
    assert torch.equal(merged, out.half())
    torch.testing.assert_close(total, lse.float() + math.log(2.0))
