"""The paper's workloads by name: which rows, which arrivals, for how long (PagedAttention, SOSP'23).

The paper's artifact keeps rows with in + out < 2,048, takes the head of the file, shuffles it, and draws
Poisson counts per 10 ms. Its runs therefore never see the whole set, and the number of requests is random.
What is cut and when it is measured belongs to the experiment, not to the trace.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads import arrivals, standins
from workloads.columns import Trace
from workloads.synthetic import repeated

Int64s = NDArray[np.int64]
Pairs = tuple[Int64s, Int64s]

MAX_TOTAL: Final = 2048
"""The artifact's filter is strict: in + out < 2,048."""
STANDIN_SEED: Final = 113
"""Seed of the fixed stand-in 'file': every run shuffles the same rows, as it does with the real file. Of the
seeds 0 to 299 this one's first 3,600 and 7,200 rows are nearest to the set's means (0.4 %; typical: 3 %)."""
DEFAULT_TRACE: Final = "paper-fig2"


class Recipe(NamedTuple):
    """One workload: a length set, requests per second (None: the caller's) and seconds of arrivals."""

    lengths: str
    rate_per_s: float | None
    duration_s: int


RECIPES: Final = {
    "paper-fig2": Recipe("sharegpt", 4.0, 900),
    "paper-fig12a": Recipe("sharegpt", None, 3600),
    "paper-fig12d": Recipe("alpaca", None, 3600),
    "paper-fig13a": Recipe("sharegpt", 2.0, 3600),
    "paper-fig13b": Recipe("alpaca", 30.0, 900),
}
NAMED_TRACES: Final = tuple(RECIPES)
GRIDS: Final = {
    "paper-fig12a": "the artifact's grid for OPT-13B is 0.2 to 2 requests/s",
    "paper-fig12d": "the artifact's grid for OPT-13B is 2 to 31.5 requests/s",
}
"""Of the workloads without a rate of their own."""


def named_trace(
    name: str = DEFAULT_TRACE,
    seed: int = 0,
    lengths: dict[str, Pairs] | None = None,
    *,
    rate_per_s: float | None = None,
    duration_s: int | None = None,
    draw: Literal["own", "artifact"] = "own",
) -> Trace:
    """A workload of the paper, offline: arrivals on the run's clock (the first is seldom at 0), shuffled by
    `seed`.

    `lengths` maps 'sharegpt' or 'alpaca' to the real (prompt, output) tokens in file order; without it a
    fixed stand-in file is used, and `source` says which. Rows are the first rate x duration that fit; if more
    requests arrive than there are rows, the list is repeated. `rate_per_s` is required by 'paper-fig12a' and
    'paper-fig12d', the others may be moved by it; so may the seconds of arrivals. Raises ValueError for an unknown
    name, a missing rate or an empty list.

    `draw='artifact'` makes the generator calls of the paper's artifact, in its order: with its pairs and its seed 0 the
    requests are the very ones of its scripts, row for row (as many rows as requests arrive, the list repeated).
    """
    recipe = _recipe(name, rate_per_s)
    if duration_s is not None:
        recipe = recipe._replace(duration_s=duration_s)
    rate = recipe.rate_per_s or 0.0
    own = draw == "own"
    stamps = arrivals.poisson_counts(rate, recipe.duration_s, seed, artifact=not own)
    num_rows = round(rate * recipe.duration_s) if own else len(stamps)
    real = (lengths or {}).get(recipe.lengths)
    pairs = standin_file(recipe.lengths, num_rows) if real is None else real
    head, rows = _head(name, pairs, num_rows)
    order = _shuffled(len(stamps), len(rows), seed) if own else _shuffled_as_artifact(len(stamps), len(rows), seed)
    source = {
        "format": "named",
        "rows": f"first {len(rows)} with in + out < {MAX_TOTAL}, shuffled",
        "arrival": f"counts per 10 ms at {rate:g}/s",
        "lengths": f"{recipe.lengths} {'stand-in' if real is None else 'as given'}",
        "duration_s": str(recipe.duration_s),
        "repeated_rows": str(max(0, len(stamps) - len(rows))),
        "seed": str(seed) if own else f"{seed}, drawn as by the artifact",
    }
    return Trace.build(stamps, head[0][order], head[1][order], name=name, source_row=rows[order], source=source)


def standin_file(lengths: str, num_rows: int) -> Pairs:
    """The stand-in's fixed 'file' of `num_rows` pairs; all of them pass the artifact's filter."""
    drawn = num_rows + num_rows // 8 + 64
    prompt, output = standins.STANDINS[lengths](drawn, STANDIN_SEED)
    fits = prompt + output < MAX_TOTAL
    return prompt[fits][:num_rows], output[fits][:num_rows]


def _recipe(name: str, rate_per_s: float | None) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"named_trace: need one of {', '.join(NAMED_TRACES)}, got {name!r}")
    recipe = RECIPES[name]
    rate = recipe.rate_per_s if rate_per_s is None else rate_per_s
    if rate is None:
        raise ValueError(f"named_trace: {name} needs a rate_per_s; {GRIDS[name]}")
    return recipe._replace(rate_per_s=rate)


def _head(name: str, pairs: Pairs, num_rows: int) -> tuple[Pairs, Int64s]:
    """The first rows that fit, and their 1-based row numbers in the list."""
    prompt, output = (np.asarray(column) for column in pairs)
    if len(prompt) != len(output):
        raise ValueError(f"lengths: need equally many prompts and outputs, got {len(prompt)} and {len(output)}")
    kept = np.flatnonzero(prompt + output < MAX_TOTAL)[:num_rows]
    if not len(kept):
        raise ValueError(f"named_trace: {name} has no row with in + out < {MAX_TOTAL} in the lengths given")
    return (prompt[kept], output[kept]), kept + 1


def _shuffled(num_requests: int, num_rows: int, seed: int) -> Int64s:
    """Row of each request: all rows shuffled; if more arrive, the list repeated, cut and shuffled."""
    rows = np.arange(num_rows)
    pool, _ = repeated((rows, rows), max(num_requests, num_rows))
    # A stream of its own, so that the arrivals of a seed do not depend on the shuffle.
    return np.random.default_rng([seed, 1]).permutation(pool)[:num_requests]


def _shuffled_as_artifact(num_requests: int, num_rows: int, seed: int) -> Int64s:
    """Row of each request by the standard library's shuffle, which the artifact seeds with the same number."""
    rows = np.resize(np.arange(num_rows), num_requests).tolist()
    Random(seed).shuffle(rows)
    return np.array(rows, np.int64)
