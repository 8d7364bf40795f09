"""Every allocator over the load: equal below saturation, far apart above it.

Throughput below saturation is what arrives, whoever hands out memory; only where requests wait does it rank anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import seeds
from experiments.studies.case import OPT_13B, POOL_SAID, Case, case, frame_of, mean_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab

NAME: Final = "allocator-load"
ORDER: Final = ("orca-max", "orca-pow2", "orca-oracle", "virtual", "paged")
"""From the fewest running requests to the most; pages of 2 MiB are 204 tokens of this model."""
RATES: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
QUICK_RATES: Final = (0.25, 1.5, 4.0)
LOWEST, HIGHEST = RATES[0], RATES[-1]
NUM_REQUESTS: Final = 600
MOST_OF_MAX: Final = 15_744 // 2048
"""Whole reservations of 2,048 tokens in the pool."""


def rates(lab: Lab) -> tuple[float, ...]:
    """Requests a second."""
    return QUICK_RATES if lab.quick else RATES


def _case(allocator: str, rate_per_s: float, seed: int) -> Case:
    return case(OPT_13B, NUM_REQUESTS, rate_per_s, seed, allocator=allocator)


def runs(lab: Lab) -> list[Case]:
    """The grid."""
    return [_case(name, rate, seed) for name in ORDER for rate in rates(lab) for seed in seeds(lab)]


def _claim(
    name: str, metric: str, expected: float, unit: str, tolerance: float = 0.0, *, at_most: bool = False
) -> Claim:
    why = "a queue that does not grow gives back what arrives; SOSP'23 sections 6.2 and 6.3 for the order"
    return Claim(
        f"{NAME}/{name}", metric, expected, unit, tolerance, why, "R", ("own-study", "step-model"), at_most=at_most
    )


def judge(lab: Lab) -> list[Result]:
    """Below saturation nothing differs; above it the order, and Orca's pool by hand."""
    spread, inverted, flat = [], {"output_tok_per_s": [], "mean_batch_size": []}, []  # type: ignore[var-annotated]
    for seed in seeds(lab):
        low = lab.values([_case(name, LOWEST, seed) for name in ORDER], "output_tok_per_s")
        spread.append(100 * (max(low) / min(low) - 1))
        for column, counts in inverted.items():
            high = lab.values([_case(name, HIGHEST, seed) for name in ORDER], column)
            counts.append(float(sum(b <= a for a, b in pairwise(high))))
        twice = lab.values([_case("orca-max", rate, seed) for rate in (1.5, HIGHEST)], "output_tok_per_s")
        flat.append(100 * abs(twice[1] / twice[0] - 1))
    full = lab.values([_case("orca-max", HIGHEST, seed) for seed in seeds(lab)], "mean_batch_size")
    words = {"output_tok_per_s": "output tokens/s", "mean_batch_size": "running requests"}
    return [
        over_seeds(_claim("below", f"spread of output tokens/s at {LOWEST:g} req/s", 0, "%", 1.0), spread),
        *(
            over_seeds(
                _claim(f"order/{c}", f"neighbours of the order that {HIGHEST:g} req/s inverts in {w}", 0, ""),
                inverted[c],
            )
            for c, w in words.items()
        ),
        over_seeds(
            _claim(
                "plateau", f"orca-max: change of output tokens/s from 1.5 to {HIGHEST:g} req/s", 3, "%", at_most=True
            ),
            flat,
        ),
        over_seeds(
            _claim("max", "orca-max: running requests at saturation, 15,744 // 2,048", MOST_OF_MAX, "requests", 0.1),
            full,
        ),
    ]


def tables(lab: Lab) -> Sequence[Table]:
    """Means over seeds."""
    names = (
        "output_tok_per_s",
        "mean_batch_size",
        "kv_live_frac",
        "mean_normalized_latency_s",
        "p99_ttft_s",
        "saturated",
    )
    rows = []
    for allocator in ORDER:
        for rate in rates(lab):
            cases = [_case(allocator, rate, seed) for seed in seeds(lab)]
            shown = [mean_of(lab, cases, name) for name in names]
            rows.append((allocator, rate, *shown[:2], 100 * shown[2], *shown[3:5], "yes" if shown[5] > 0.5 else ""))
    heads = (
        "allocator",
        "req/s",
        "tokens/s",
        "running",
        "live %",
        "normalized latency s/token",
        "p99 TTFT s",
        "saturated",
    )
    return [Table(f"{NAME}/runs", f"{POOL_SAID}, {NUM_REQUESTS} requests of ShareGPT's lengths", heads, tuple(rows))]


def pictures(lab: Lab) -> list[Picture]:
    """Throughput and running requests over the load."""
    cases = [
        ({"allocator": name, "rate_per_s": rate}, _case(name, rate, seed))
        for name in ORDER
        for rate in rates(lab)
        for seed in seeds(lab)
    ]
    frame = frame_of(lab, cases, ("output_tok_per_s", "mean_batch_size"))

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.panels import legend_of
        from experiments.figures.study_curves import curves

        left, right = canvas.subplots(1, 2)
        shown = curves(frame, left, "rate_per_s", "output_tok_per_s", "allocator", "output tokens/s (simulated)")
        also = curves(frame, right, "rate_per_s", "mean_batch_size", "allocator", "running requests")
        for ax in (left, right):
            ax.set_xlabel("requests a second that arrive")
        legend_of(canvas, left)
        return shown.merge(also, on=["allocator", "rate_per_s", "num_runs"])

    said = f"n = {NUM_REQUESTS} a run", "Poisson, ShareGPT's lengths", POOL_SAID, "step model paper-13b"
    claim = (
        "At low rates all allocators deliver what arrives, and their numbers say nothing about them. Each curve bends "
        "where its pool is full; from there on memory decides." + bars_said(frame)
    )
    return [Picture(NAME, "Allocators over the load", claim, caption_of(lab, NAME, *said), draw)]


ALLOCATOR_LOAD: Final = Experiment(NAME, "Allocators over the load", judge, runs, tables)
