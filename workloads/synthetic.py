"""Synthetic traces: an arrival process and a length recipe, both named in the trace's provenance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads import arrivals, lengths, standins
from workloads.columns import Trace

Int64s = NDArray[np.int64]

ARRIVALS = ("poisson", "gamma", "constant", "all-at-once", "counts", "piecewise:RATE@S,...", "on-off:ON_S,OFF_S")
DEFAULT_RATE_PER_S = 4.0
DEFAULT_GAMMA_CV = 2.0
LENGTHS = (*standins.STANDINS, "fixed:IN,OUT", "uniform:IN-IN,OUT-OUT", "lognormal:MU/SIGMA,MU/SIGMA")


def synthetic_trace(
    arrival: str = "poisson",
    lengths: str | tuple[Int64s, Int64s] = "sharegpt",
    num_requests: int = 1000,
    seed: int = 0,
    *,
    rate_per_s: float | None = None,
    cv: float | None = None,
    name: str = "synthetic",
) -> Trace:
    """`num_requests` requests by recipe; the same arguments give the same trace everywhere.

    `arrival` is one of ARRIVALS, at `rate_per_s` (4) on average; 'piecewise:2@60,8@30' has rates of its own, 2/s for
    60 s and 8/s for 30 s in turn. `cv` of the gaps is read by 'gamma' (2), 'piecewise' and 'on-off' (1), and refused
    by the others. 'counts' places Poisson counts per 10 ms and keeps the first `num_requests`. `lengths` is one of
    LENGTHS or (prompt, output) arrays, repeated if they are too short. Arrivals and lengths have separate random
    streams: changing one leaves the other. Raises ValueError for others.
    """
    if num_requests < 1:
        raise ValueError(f"synthetic_trace: need at least 1 request, got {num_requests}")
    stamps, said = draw_arrivals(arrival, num_requests, seed, rate_per_s=rate_per_s, cv=cv)
    recipe = lengths if isinstance(lengths, str) else f"{len(lengths[0])} given pairs"
    prompt, output = draw_lengths(lengths, num_requests, seed)
    source = {"format": "synthetic", "arrival": said, "lengths": recipe, "seed": str(seed)}
    return Trace.build(stamps, prompt, output, name=name, source=source)


def draw_lengths(recipe: str | tuple[Int64s, Int64s], num_requests: int, seed: int) -> tuple[Int64s, Int64s]:
    """(prompt, output) tokens by recipe, see `synthetic_trace`."""
    if not isinstance(recipe, str):
        return repeated(recipe, num_requests)
    # Not the plain seed: arrivals draw from it, and the two would be correlated.
    rng = np.random.default_rng([seed, 1])
    if recipe in standins.STANDINS:
        return standins.STANDINS[recipe](num_requests, rng)
    kind, _, text = recipe.partition(":")
    try:
        prompt, output = _parts(text, ",", "IN,OUT")
        return _drawn(kind, prompt, num_requests, rng), _drawn(kind, output, num_requests, rng)
    except ValueError as error:
        raise ValueError(f"lengths: {recipe!r}: {error}; need one of {', '.join(LENGTHS)}") from None


def repeated(pairs: tuple[Int64s, Int64s], num_requests: int) -> tuple[Int64s, Int64s]:
    """The first `num_requests` of the pairs, going round as often as needed."""
    prompt, output = (np.asarray(column) for column in pairs)
    if len(prompt) != len(output) or not len(prompt):
        raise ValueError(f"lengths: need equally many prompts and outputs, got {len(prompt)} and {len(output)}")
    return np.resize(prompt, num_requests), np.resize(output, num_requests)


def _parts(text: str, sign: str, shape: str) -> tuple[str, str]:
    """Both sides of the one `sign`."""
    first, found, second = text.partition(sign)
    if not (first and found and second) or sign in second:
        raise ValueError(f"expected {shape}, got {text!r}")
    return first, second


def _drawn(kind: str, text: str, num_values: int, rng: np.random.Generator) -> Int64s:
    if kind == "fixed":
        return lengths.fixed(num_values, int(text))
    if kind == "uniform":
        low, high = _parts(text, "-", "LOW-HIGH")
        return lengths.uniform(num_values, int(low), int(high), rng)
    if kind == "lognormal":
        mu, sigma = _parts(text, "/", "MU/SIGMA")
        return lengths.lognormal(num_values, float(mu), float(sigma), rng)
    raise ValueError(f"no recipe {kind!r}")


def draw_arrivals(
    arrival: str, num_requests: int, seed: int, *, rate_per_s: float | None = None, cv: float | None = None
) -> tuple[Int64s, str]:
    """(nanoseconds, the recipe in words) of one of ARRIVALS, see `synthetic_trace`."""
    kind, _, text = arrival.partition(":")
    own_rates = kind in ("piecewise", "all-at-once")
    if kind == "piecewise" and rate_per_s is not None:
        raise ValueError(f"arrival: {arrival!r} says its rates itself; leave the rate {rate_per_s:g} out")
    if cv is not None and kind not in ("gamma", "piecewise", "on-off"):
        raise ValueError(f"arrival: {kind!r} has no cv to set; leave {cv:g} out, or say gamma")
    rate = DEFAULT_RATE_PER_S if rate_per_s is None else rate_per_s
    spread = (DEFAULT_GAMMA_CV if kind == "gamma" else 1.0) if cv is None else cv
    stamps = _drawn_arrivals(kind, text, rate, spread, num_requests, seed)
    said = arrival + ("" if own_rates else f" at {rate:g}/s")
    return stamps, said + (f" cv {spread:g}" if kind == "gamma" or cv is not None else "")


def _drawn_arrivals(kind: str, text: str, rate: float, cv: float, num_requests: int, seed: int) -> Int64s:
    plain = {
        "poisson": lambda: arrivals.poisson(rate, num_requests, seed),
        "gamma": lambda: arrivals.gamma(rate, cv, num_requests, seed),
        "constant": lambda: arrivals.constant(rate, num_requests, seed),
        "all-at-once": lambda: arrivals.all_at_once(num_requests, seed),
        "counts": lambda: _first_counts(rate, num_requests, seed),
    }
    if kind in plain and not text:
        return plain[kind]()
    try:
        if kind == "piecewise":
            return arrivals.piecewise(pieces_of(text), num_requests, seed, cv)
        if kind == "on-off":
            on_s, off_s = map(float, _parts(text, ",", "ON_S,OFF_S"))
            return arrivals.on_off(rate, on_s, off_s, num_requests, seed, cv)
    except ValueError as error:
        raise ValueError(f"arrival: {kind}:{text}: {error}; need one of {', '.join(ARRIVALS)}") from None
    raise ValueError(f"arrival: need one of {', '.join(ARRIVALS)}, got {kind if not text else f'{kind}:{text}'!r}")


def pieces_of(text: str) -> list[tuple[float, float]]:
    """'2@60,8@30' as (rate, seconds) pairs."""
    pairs = [_parts(word, "@", "RATE@S,RATE@S,...") for word in text.split(",")]
    return [(float(rate), float(seconds)) for rate, seconds in pairs]


def _first_counts(rate_per_s: float, num_requests: int, seed: int) -> Int64s:
    duration_s = max(1.0, num_requests / rate_per_s)
    stamps = arrivals.poisson_counts(rate_per_s, duration_s, seed)
    while len(stamps) < num_requests:
        # A longer run of the same seed begins with the same counts.
        duration_s *= 1.25
        stamps = arrivals.poisson_counts(rate_per_s, duration_s, seed)
    return stamps[:num_requests]
