"""When requests arrive: renewal processes, rates that change, a constant pace, all at once, and the paper's
counts per 10 ms.

Every function returns int64 nanoseconds, non-decreasing. Renewal processes put the first arrival at 0, as a
trace does; `poisson_counts` keeps the clock of the experiment, whose first arrival is seldom at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def piecewise(pieces: Sequence[tuple[float, float]], num_requests: int, seed: int, cv: float = 1.0) -> Int64s:
    """A rate that changes: (requests per second, seconds) one after the other, then from the start again.

    Renewal gaps of mean 1 and `cv` are laid out in expected arrivals, and read back as time through the integral of
    the rate (time rescaling): with cv 1 it is the Poisson process of that rate, its counts in a piece are Poisson
    with mean rate x seconds. A rate of 0 is a pause. The first arrival is seldom at 0.
    """
    table = np.array(pieces, np.float64).reshape(-1, 2)
    rates, seconds = table[:, 0], table[:, 1]
    if not np.isfinite(table).all() or not (rates > 0).any() or (rates < 0).any() or (seconds <= 0).any():
        got = [(float(rate), float(length)) for rate, length in table]
        raise ValueError(f"piecewise: need rates of at least 0, one above, for positive seconds, all finite, got {got}")
    # A gap before the first too: time 0 is the start of the first piece, not an arrival.
    work = np.cumsum(_gaps(cv, num_requests, seed))
    done = np.concatenate(([0.0], np.cumsum(rates * seconds)))
    ends = np.concatenate(([0.0], np.cumsum(seconds)))
    cycles = np.floor(work / done[-1])
    rest = work - cycles * done[-1]
    # The last of equal sums: an arrival never falls into the pause that ends where its work is done.
    piece = np.clip(np.searchsorted(done, rest, side="right") - 1, 0, np.flatnonzero(rates)[-1])
    at_s = ends[piece] + (rest - done[piece]) / np.where(rates[piece] > 0, rates[piece], 1.0)
    return _nanoseconds(cycles * ends[-1] + at_s)


def on_off(rate_per_s: float, on_s: float, off_s: float, num_requests: int, seed: int, cv: float = 1.0) -> Int64s:
    """Bursts: exponential on and off times of these means; requests come only while on, `rate_per_s` over all time.

    While on the rate is rate x (on + off) / on, with renewal gaps of `cv`: an interrupted Poisson process at cv 1.
    """
    _check(rate_per_s, num_requests)
    if not (0 < on_s < float("inf") and 0 <= off_s < float("inf")):
        raise ValueError(f"on_off: need positive on_s and off_s of at least 0, got {on_s}, {off_s}")
    rng = np.random.default_rng([seed, 2])
    busy_s = np.cumsum(_gaps(cv, num_requests, seed)) / (rate_per_s * (on_s + off_s) / on_s)
    # On times until the last arrival is covered; drawn in one stream, so a longer run begins with a shorter one.
    ends, pauses = [0.0], [0.0]
    while num_requests and ends[-1] <= busy_s[-1]:
        ends.append(ends[-1] + rng.exponential(on_s))
        pauses.append(pauses[-1] + rng.exponential(off_s))
    spell = np.searchsorted(np.array(ends), busy_s, side="right") - 1
    return _nanoseconds(busy_s + np.array(pauses)[spell])


def _gaps(cv: float, num_gaps: int, seed: int) -> NDArray[np.float64]:
    """Gamma gaps of mean 1."""
    if not 0 < cv < float("inf") or num_gaps < 0:
        raise ValueError(f"need a positive finite cv and at least 0 requests, got cv={cv}, num_requests={num_gaps}")
    shape = 1.0 / (cv * cv)
    return np.random.default_rng(seed).gamma(shape, 1.0 / shape, num_gaps)


def _nanoseconds(times_s: NDArray[np.float64]) -> Int64s:
    return (
        np.maximum.accumulate(np.rint(times_s * NS_PER_S).astype(np.int64)) if len(times_s) else np.zeros(0, np.int64)
    )


def constant(rate_per_s: float, num_requests: int, seed: int = 0) -> Int64s:
    """Arrival i at i / rate, rounded down to the nanosecond, without drift. `seed` changes nothing."""
    _check(rate_per_s, num_requests)
    gap_ns = Fraction(NS_PER_S) / exact(rate_per_s)
    return (np.arange(num_requests).astype(object) * gap_ns.numerator // gap_ns.denominator).astype(np.int64)


def all_at_once(num_requests: int, seed: int = 0) -> Int64s:
    """Everything at 0: an offline batch. `seed` changes nothing."""
    _check(1.0, num_requests)
    return np.zeros(num_requests, np.int64)


def poisson_counts(
    rate_per_s: float, duration_s: float, seed: int, quantum_ns: int = PAPER_QUANTUM_NS, *, artifact: bool = False
) -> Int64s:
    """The paper's arrivals: a Poisson count for every quantum of [0, duration), placed at the quantum's
    start.

    The number of requests is random too. Ties are common at high rates and every time is on the quantum's
    grid. `artifact`: the counts that the paper's artifact draws for that seed, with NumPy's generator of old.
    """
    _check(rate_per_s, 0)
    if quantum_ns < 1 or not 0 < duration_s < float("inf"):
        raise ValueError(f"poisson_counts: need positive sizes, got duration_s={duration_s}, quantum_ns={quantum_ns}")
    num_quanta = -(-round(exact(duration_s) * NS_PER_S) // quantum_ns)
    rng = np.random.RandomState(seed) if artifact else np.random.default_rng(seed)
    counts = rng.poisson(rate_per_s * quantum_ns / NS_PER_S, num_quanta)
    return np.repeat(np.arange(num_quanta) * quantum_ns, counts)


def _check(rate_per_s: float, num_requests: int) -> None:
    if not 0 < rate_per_s < float("inf"):
        raise ValueError(f"need a positive finite rate_per_s, got {rate_per_s}")
    if num_requests < 0:
        raise ValueError(f"need num_requests of at least 0, got {num_requests}")
