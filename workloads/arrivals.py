"""When requests arrive: renewal processes, a constant pace, all at once, and the paper's counts per 10 ms.

Every function returns int64 nanoseconds, non-decreasing. Renewal processes put the first arrival at 0, as a
trace does; `poisson_counts` keeps the clock of the experiment, whose first arrival is seldom at 0.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workloads.stamps import NS_PER_S, exact

Int64s = NDArray[np.int64]

PAPER_QUANTUM_NS = 10_000_000


def poisson(rate_per_s: float, num_requests: int, seed: int) -> Int64s:
    """Exponential gaps of mean 1 / rate."""
    return gamma(rate_per_s, 1.0, num_requests, seed)


def gamma(rate_per_s: float, cv: float, num_requests: int, seed: int) -> Int64s:
    """Gamma gaps of mean 1 / rate and coefficient of variation `cv`: shape 1 / cv^2, so 1 is Poisson, more is
    burstier."""
    _check(rate_per_s, num_requests)
    if not 0 < cv < float("inf"):
        raise ValueError(f"gamma: need a positive finite cv, got {cv}; constant() has cv 0")
    if num_requests == 0:
        return np.zeros(0, np.int64)
    shape = 1.0 / (cv * cv)
    gaps_s = np.random.default_rng(seed).gamma(shape, 1.0 / (rate_per_s * shape), num_requests - 1)
    # Gaps are rounded, not sums: late arrivals keep the same resolution as early ones.
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.rint(gaps_s * NS_PER_S).astype(np.int64))))


def constant(rate_per_s: float, num_requests: int, seed: int = 0) -> Int64s:
    """Arrival i at i / rate, rounded down to the nanosecond, without drift. `seed` changes nothing."""
    _check(rate_per_s, num_requests)
    gap_ns = Fraction(NS_PER_S) / exact(rate_per_s)
    return (np.arange(num_requests).astype(object) * gap_ns.numerator // gap_ns.denominator).astype(np.int64)


def all_at_once(num_requests: int, seed: int = 0) -> Int64s:
    """Everything at 0: an offline batch. `seed` changes nothing."""
    _check(1.0, num_requests)
    return np.zeros(num_requests, np.int64)


def poisson_counts(rate_per_s: float, duration_s: float, seed: int, quantum_ns: int = PAPER_QUANTUM_NS) -> Int64s:
    """The paper's arrivals: a Poisson count for every quantum of [0, duration), placed at the quantum's
    start.

    The number of requests is random too. Ties are common at high rates and every time is on the quantum's
    grid.
    """
    _check(rate_per_s, 0)
    if quantum_ns < 1 or not 0 < duration_s < float("inf"):
        raise ValueError(f"poisson_counts: need positive sizes, got duration_s={duration_s}, quantum_ns={quantum_ns}")
    num_quanta = -(-round(exact(duration_s) * NS_PER_S) // quantum_ns)
    counts = np.random.default_rng(seed).poisson(rate_per_s * quantum_ns / NS_PER_S, num_quanta)
    return np.repeat(np.arange(num_quanta) * quantum_ns, counts)


def _check(rate_per_s: float, num_requests: int) -> None:
    if not 0 < rate_per_s < float("inf"):
        raise ValueError(f"need a positive finite rate_per_s, got {rate_per_s}")
    if num_requests < 0:
        raise ValueError(f"need num_requests of at least 0, got {num_requests}")
