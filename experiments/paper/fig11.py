"""Fig 11: mean lengths of the paper's two sets."""

from __future__ import annotations

from typing import Final

from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment
from experiments.paper.runs import MAX_MODEL_LEN, Lab, Pairs
from workloads.standins import STANDINS

PRINTED: Final = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
RATIOS: Final = (8.4, 5.8)
SIDES: Final = ("prompt", "output")
SET_SIZE: Final = {"sharegpt": 79_731, "alpaca": 52_002}
"""Rows of the real sets within 2,048 tokens: as many are drawn from a stand-in."""
REAL_TOLERANCE: Final = 0.01
STANDIN_FRAC: Final = 0.01


def means(pairs: Pairs) -> tuple[float, float]:
    """Mean prompt and output of the rows with in + out <= 2,048."""
    prompt, output = pairs
    fits = prompt + output <= MAX_MODEL_LEN
    if not fits.any():
        raise ValueError(f"lengths: none of {len(prompt)} rows has in + out <= {MAX_MODEL_LEN}")
    return float(prompt[fits].mean()), float(output[fits].mean())


def _samples(lab: Lab, name: str) -> list[tuple[float, float]]:
    """One pair of means for real lengths, one a seed for a stand-in."""
    if lab.is_real(name):
        return [means(lab.lengths[name])]
    return [means(STANDINS[name](SET_SIZE[name], seed)) for seed in range(lab.num_seeds)]


def _deviations(lab: Lab, *names: str) -> tuple[str, ...]:
    filters = ("strict-filter",) if "sharegpt" in names else ()
    return (*(() if all(map(lab.is_real, names)) else ("stand-in",)), *filters)


def judge(lab: Lab) -> list[Result]:
    """Four means, and what the text says about their ratios."""
    results = []
    samples = {name: _samples(lab, name) for name in PRINTED}
    for name, printed in PRINTED.items():
        for side, expected, values in zip(SIDES, printed, zip(*samples[name], strict=True), strict=True):
            real = lab.is_real(name)
            claim = Claim(
                f"fig11/{name}/mean_{side}",
                f"mean {side} length",
                expected,
                "tokens",
                REAL_TOLERANCE if real else STANDIN_FRAC * expected,
                "Fig 11",
                "A",
                _deviations(lab, name),
            )
            results.append(exact(claim, values[0]) if real else over_seeds(claim, values))
    return results + _ratios(lab, samples)


def _ratios(lab: Lab, samples: dict[str, list[tuple[float, float]]]) -> list[Result]:
    real = lab.is_real("sharegpt") and lab.is_real("alpaca")
    results = []
    for index, (side, expected) in enumerate(zip(SIDES, RATIOS, strict=True)):
        longer, shorter = (
            sum(pair[index] for pair in samples[name]) / len(samples[name]) for name in ("sharegpt", "alpaca")
        )
        claim = Claim(
            f"fig11/ratio/mean_{side}",
            f"mean {side} length, ShareGPT / Alpaca",
            expected,
            "x",
            0.05 if real else 0.05 + 2 * STANDIN_FRAC * expected,
            "Fig 11",
            "A",
            _deviations(lab, "sharegpt", "alpaca"),
        )
        results.append(exact(claim, longer / shorter))
    return results


FIG11 = Experiment("fig11", "Fig 11: mean lengths of ShareGPT and Alpaca", judge)
