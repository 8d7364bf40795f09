"""How long requests are: seeded draws of token counts, each at least 1.

Every function takes a number of values and a seed or generator, and returns int64 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    if any(component.sigma < 0 for component in components) or scale <= 0 or minimum < 1:
        raise ValueError(f"mixture: need sigma >= 0, scale > 0, minimum >= 1, got {components}, {scale}, {minimum}")
    rng = np.random.default_rng(seed)
    which = np.searchsorted(np.cumsum(weights)[:-1], rng.random(num_values), side="right")
    mu = np.array([component.mu for component in components])[which]
    sigma = np.array([component.sigma for component in components])[which]
    tokens = np.rint(np.exp(mu + sigma * rng.standard_normal(num_values)) * scale)
    return np.clip(tokens, minimum, np.iinfo(np.int32).max if maximum is None else maximum).astype(np.int64)


def quantile_grid(num_values: int, percents: Sequence[float], tokens: Sequence[int], seed: Seed) -> Int64s:
    """Draws whose quantiles pass through the grid: linear interpolation of a uniform draw, rounded."""
    if len(percents) != len(tokens) or percents[0] != 0 or percents[-1] != 100:
        raise ValueError("quantile_grid: need as many tokens as percents, and percents from 0 to 100")
    if (np.diff(percents) <= 0).any() or (np.diff(tokens) < 0).any() or tokens[0] < 1:
        raise ValueError("quantile_grid: percents must rise, and tokens must not fall or start below 1")
    u = np.random.default_rng(seed).random(num_values) * 100
    return np.rint(np.interp(u, percents, tokens)).astype(np.int64)
