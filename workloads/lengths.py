"""How long requests are: seeded draws of token counts, each at least 1.

Every function takes a number of values and a seed or generator, and returns int64 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Seed = int | np.random.Generator


class Lognormal(NamedTuple):
    """One component of a mixture: `weight` of the draws have ln(tokens) normal with mean `mu`, deviation
    `sigma`."""

    weight: float
    mu: float
    sigma: float


def fixed(num_values: int, tokens: int) -> Int64s:
    """The same length every time."""
    if tokens < 1:
        raise ValueError(f"fixed: need at least 1 token, got {tokens}")
    return np.full(num_values, tokens, np.int64)


def uniform(num_values: int, low: int, high: int, seed: Seed) -> Int64s:
    """Whole lengths in [low, high], both ends included."""
    if not 1 <= low <= high:
        raise ValueError(f"uniform: need 1 <= low <= high, got {low}, {high}")
    return np.random.default_rng(seed).integers(low, high, num_values, endpoint=True)


def lognormal(num_values: int, mu: float, sigma: float, seed: Seed, maximum: int | None = None) -> Int64s:
    """ln(tokens) normal; rounded, at least 1, clipped at `maximum`."""
    return mixture(num_values, [Lognormal(1.0, mu, sigma)], seed, maximum=maximum)


def mixture(
    num_values: int,
    components: Sequence[Lognormal],
    seed: Seed,
    *,
    scale: float = 1.0,
    minimum: int = 1,
    maximum: int | None = None,
) -> Int64s:
    """Draws from lognormals by weight, times `scale`, rounded to the nearest token and clipped."""
    weights = np.array([component.weight for component in components])
    if not len(weights) or (weights < 0).any() or not np.isclose(weights.sum(), 1.0, atol=1e-3):
        raise ValueError(f"mixture: need weights of at least 0 that sum to 1, got {weights.tolist()}")
    finite = all(math.isfinite(one.mu) and 0 <= one.sigma < math.inf for one in components)
    if not finite or scale <= 0 or minimum < 1:
        raise ValueError(
            f"mixture: need finite mu and sigma >= 0, scale > 0, minimum >= 1, got {components}, {scale}, {minimum}"
        )
    rng = np.random.default_rng(seed)
    which = np.searchsorted(np.cumsum(weights)[:-1], rng.random(num_values), side="right")
    mu = np.array([component.mu for component in components])[which]
    sigma = np.array([component.sigma for component in components])[which]
    # e^30 is beyond any clip, and no overflow
    tokens = np.rint(np.exp(np.minimum(mu + sigma * rng.standard_normal(num_values), 30.0)) * scale)
    return np.clip(tokens, minimum, np.iinfo(np.int32).max if maximum is None else maximum).astype(np.int64)


def spread(num_values: int, mean: float, cv: float, seed: Seed | Sequence[int], maximum: int | None = None) -> Int64s:
    """Lognormal lengths of that mean and that coefficient of variation `cv`, in seeded order.

    The values are the distribution's quantiles, the same for every seed, so that two spreads compare at equal means
    without sampling noise. They are whole tokens, at least 1 and at most `maximum`; what that cuts off is given back to
    the others. Their own cv is a little less, as n quantiles have no tail beyond 1 - 1/(2n), and less still with a
    `maximum`. ValueError where the mean cannot be had.
    """
    if num_values < 1 or not 1 <= mean <= (maximum or mean) or not 0 <= cv < math.inf:
        raise ValueError(
            f"spread: need values, 1 <= mean <= maximum, cv >= 0, got {num_values}, {mean}, {maximum}, {cv}"
        )
    normal = NormalDist()
    z = np.array([normal.inv_cdf((index + 0.5) / num_values) for index in range(num_values)])
    shape = np.exp(math.sqrt(math.log1p(cv * cv)) * z)
    low, high = 0.0, 2.0 * mean
    while _clipped(high * shape, maximum).mean() < mean:
        low, high = high, 2 * high
        if high > 2**60:
            raise ValueError(f"spread: no lengths of at most {maximum} have the mean {mean} at cv {cv}")
    for _ in range(60):  # the mean rises with the scale: halved until the last token is settled
        middle = (low + high) / 2
        low, high = (middle, high) if _clipped(middle * shape, maximum).mean() < mean else (low, middle)
    values = np.rint(_clipped(high * shape, maximum)).astype(np.int64)
    return np.random.default_rng(seed).permutation(values)


def _clipped(tokens: NDArray[np.float64], maximum: int | None) -> NDArray[np.float64]:
    return np.clip(tokens, 1, maximum)


def quantile_grid(num_values: int, percents: Sequence[float], tokens: Sequence[int], seed: Seed) -> Int64s:
    """Draws whose quantiles pass through the grid: linear interpolation of a uniform draw, rounded."""
    if len(percents) != len(tokens) or percents[0] != 0 or percents[-1] != 100:
        raise ValueError("quantile_grid: need as many tokens as percents, and percents from 0 to 100")
    if (np.diff(percents) <= 0).any() or (np.diff(tokens) < 0).any() or tokens[0] < 1:
        raise ValueError("quantile_grid: percents must rise, and tokens must not fall or start below 1")
    u = np.random.default_rng(seed).random(num_values) * 100
    return np.rint(np.interp(u, percents, tokens)).astype(np.int64)
