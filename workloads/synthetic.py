"""Synthetic traces: an arrival process and a length recipe, both named in the trace's provenance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads import arrivals, lengths, standins
from workloads.columns import Trace

Int64s = NDArray[np.int64]

ARRIVALS = ("poisson", "gamma", "constant", "all-at-once", "counts")
LENGTHS = (*standins.STANDINS, "fixed:IN,OUT", "uniform:IN-IN,OUT-OUT", "lognormal:MU/SIGMA,MU/SIGMA")


def synthetic_trace(
    arrival: str = "poisson",
    lengths: str | tuple[Int64s, Int64s] = "sharegpt",
    num_requests: int = 1000,
    seed: int = 0,
    *,
    rate_per_s: float = 4.0,
    cv: float = 2.0,
    name: str = "synthetic",
) -> Trace:
    """`num_requests` requests by recipe; the same arguments give the same trace everywhere.

    `arrival` is one of ARRIVALS; `cv` is read by 'gamma' only. 'counts' places Poisson counts per 10 ms and
    keeps the first `num_requests`. `lengths` is one of LENGTHS or (prompt, output) arrays, repeated if they
    are too short. Arrivals and lengths have separate random streams: changing one leaves the other. Raises
    ValueError for others.
    """
    if num_requests < 1:
        raise ValueError(f"synthetic_trace: need at least 1 request, got {num_requests}")
    stamps = _arrivals(arrival, rate_per_s, cv, num_requests, seed)
    recipe = lengths if isinstance(lengths, str) else f"{len(lengths[0])} given pairs"
    prompt, output = draw_lengths(lengths, num_requests, seed)
    pace = "" if arrival == "all-at-once" else f" at {rate_per_s:g}/s" + (f" cv {cv:g}" if arrival == "gamma" else "")
    source = {"format": "synthetic", "arrival": arrival + pace, "lengths": recipe, "seed": str(seed)}
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
        prompt, output = text.split(",")
        return _drawn(kind, prompt, num_requests, rng), _drawn(kind, output, num_requests, rng)
    except ValueError as error:
        raise ValueError(f"lengths: {recipe!r}: {error}; need one of {', '.join(LENGTHS)}") from None


def repeated(pairs: tuple[Int64s, Int64s], num_requests: int) -> tuple[Int64s, Int64s]:
    """The first `num_requests` of the pairs, going round as often as needed."""
    prompt, output = (np.asarray(column) for column in pairs)
    if len(prompt) != len(output) or not len(prompt):
        raise ValueError(f"lengths: need equally many prompts and outputs, got {len(prompt)} and {len(output)}")
    return np.resize(prompt, num_requests), np.resize(output, num_requests)


def _drawn(kind: str, text: str, num_values: int, rng: np.random.Generator) -> Int64s:
    if kind == "fixed":
        return lengths.fixed(num_values, int(text))
    if kind == "uniform":
        low, high = text.split("-")
        return lengths.uniform(num_values, int(low), int(high), rng)
    if kind == "lognormal":
        mu, sigma = text.split("/")
        return lengths.lognormal(num_values, float(mu), float(sigma), rng)
    raise ValueError(f"no recipe {kind!r}")


def _arrivals(arrival: str, rate_per_s: float, cv: float, num_requests: int, seed: int) -> Int64s:
    if arrival == "poisson":
        return arrivals.poisson(rate_per_s, num_requests, seed)
    if arrival == "gamma":
        return arrivals.gamma(rate_per_s, cv, num_requests, seed)
    if arrival == "constant":
        return arrivals.constant(rate_per_s, num_requests, seed)
    if arrival == "all-at-once":
        return arrivals.all_at_once(num_requests, seed)
    if arrival == "counts":
        return _first_counts(rate_per_s, num_requests, seed)
    raise ValueError(f"arrival: need one of {', '.join(ARRIVALS)}, got {arrival!r}")


def _first_counts(rate_per_s: float, num_requests: int, seed: int) -> Int64s:
    duration_s = max(1.0, num_requests / rate_per_s)
    stamps = arrivals.poisson_counts(rate_per_s, duration_s, seed)
    while len(stamps) < num_requests:
        # A longer run of the same seed begins with the same counts.
        duration_s *= 1.25
        stamps = arrivals.poisson_counts(rate_per_s, duration_s, seed)
    return stamps[:num_requests]
