"""Offline stand-ins for the paper's two length sets: mixtures and quantile grids, fitted to published
summaries.

The PagedAttention paper (SOSP'23) replays ShareGPT and Alpaca lengths, which cannot be shipped. The mixtures
were fitted by expectation-maximisation on log length, then scaled so that means after rounding and rejection
agree: 161.31 / 337.99 and 19.31 / 58.45 tokens. Prompt and output are drawn independently (the real ShareGPT
pairs have a rank correlation of 0.21). Known misses: ShareGPT output p99 11 % high, Alpaca prompt p90 10 %
high and p99 19 % low.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from workloads.lengths import Lognormal, Seed, mixture, quantile_grid

Int64s = NDArray[np.int64]
Pairs = tuple[Int64s, Int64s]

SHAREGPT_MAX_TOTAL: Final = 2048
"""Pairs with more tokens than OPT's context are rejected, as the paper's own loader rejects them."""
SHAREGPT_PROMPT: Final = (Lognormal(0.686, 3.1382, 0.9322), Lognormal(0.314, 6.1126, 1.1552))
SHAREGPT_OUTPUT: Final = (Lognormal(0.2549, 4.2167, 1.3762), Lognormal(0.7451, 5.8118, 0.6969))

ALPACA_INPUT_FRAC: Final = 0.3977
"""Share of instructions that come with an input text."""
ALPACA_MAX: Final = (508, 1470)
ALPACA_OUTPUT_BARE: Final = (Lognormal(0.6039, 3.4099, 1.0540), Lognormal(0.3961, 4.5165, 0.3507))
ALPACA_OUTPUT_INPUT: Final = (Lognormal(0.6906, 2.4709, 0.8442), Lognormal(0.3094, 4.3817, 0.5497))

# fmt: off
PERCENTS: Final = (
    0, 1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85,
    90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9, 100,
)
SHAREGPT_PROMPT_GRID: Final = (
    1, 2, 3, 7, 9, 11, 13, 15, 18, 21, 24, 29, 35, 44, 55, 71, 94, 133, 203, 324,
    507, 620, 775, 864, 986, 1088, 1230, 1464, 1639, 1873, 2028,
)
SHAREGPT_OUTPUT_GRID: Final = (
    1, 4, 10, 22, 45, 75, 101, 128, 157, 188, 216, 244, 271, 300, 330, 364, 405, 458, 525, 619,
    754, 786, 846, 899, 961, 1040, 1139, 1280, 1443, 1706, 2009,
)
ALPACA_PROMPT_GRID: Final = (
    6, 8, 8, 9, 10, 11, 12, 13, 13, 14, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26,
    30, 33, 37, 39, 43, 49, 58, 74, 92, 136, 508,
)
ALPACA_OUTPUT_GRID: Final = (
    1, 2, 3, 5, 7, 10, 12, 14, 17, 21, 26, 33, 43, 52, 61, 69, 77, 86, 96, 108,
    125, 135, 149, 159, 171, 191, 222, 268, 322, 496, 1470,
)
# fmt: on


def sharegpt(num_requests: int, seed: Seed) -> Pairs:
    """(prompt, output) tokens like the paper's ShareGPT set, in + out at most 2,048."""
    rng = np.random.default_rng(seed)
    prompt, output = np.zeros(0, np.int64), np.zeros(0, np.int64)
    while len(prompt) < num_requests:
        missing = num_requests - len(prompt)
        drawn = missing + missing // 16 + 16  # 4.2 % are rejected
        more_in = mixture(drawn, SHAREGPT_PROMPT, rng, scale=0.9210)
        more_out = mixture(drawn, SHAREGPT_OUTPUT, rng, scale=0.9840)
        fits = more_in + more_out <= SHAREGPT_MAX_TOTAL
        prompt = np.concatenate((prompt, more_in[fits]))
        output = np.concatenate((output, more_out[fits]))
    return prompt[:num_requests], output[:num_requests]


def alpaca(num_requests: int, seed: Seed) -> Pairs:
    """(prompt, output) tokens like the paper's Alpaca set: instructions without an input, and with one."""
    rng = np.random.default_rng(seed)
    has_input = rng.random(num_requests) < ALPACA_INPUT_FRAC
    max_in, max_out = ALPACA_MAX
    n = num_requests
    bare_in = mixture(n, [Lognormal(1, 2.6195, 0.2887)], rng, scale=1.001, minimum=5, maximum=max_in)
    with_in = mixture(n, [Lognormal(1, 3.1648, 0.4611)], rng, scale=1.0195, minimum=6, maximum=max_in)
    bare_out = mixture(n, ALPACA_OUTPUT_BARE, rng, scale=0.997, maximum=max_out)
    with_out = mixture(n, ALPACA_OUTPUT_INPUT, rng, scale=1.0045, maximum=max_out)
    return np.where(has_input, with_in, bare_in), np.where(has_input, with_out, bare_out)


def sharegpt_grid(num_requests: int, seed: Seed) -> Pairs:
    """The same set from its quantiles alone: marginals within 1.5 %, no limit on in + out."""
    return _from_grids(num_requests, seed, SHAREGPT_PROMPT_GRID, SHAREGPT_OUTPUT_GRID)


def alpaca_grid(num_requests: int, seed: Seed) -> Pairs:
    """The Alpaca set from its quantiles alone."""
    return _from_grids(num_requests, seed, ALPACA_PROMPT_GRID, ALPACA_OUTPUT_GRID)


def _from_grids(num_requests: int, seed: Seed, prompt: tuple[int, ...], output: tuple[int, ...]) -> Pairs:
    rng = np.random.default_rng(seed)
    return (
        quantile_grid(num_requests, PERCENTS, prompt, rng),
        quantile_grid(num_requests, PERCENTS, output, rng),
    )


STANDINS: Final = {
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "sharegpt-grid": sharegpt_grid,
    "alpaca-grid": alpaca_grid,
}
