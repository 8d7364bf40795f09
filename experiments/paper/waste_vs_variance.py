"""Section 4.1.2 of the chapter tried: contiguous waste grows with the spread of lengths, and with churn; paging's not.

Lengths are lognormal, prompts and outputs alike, of the same means at every coefficient of variation (cv). Below
saturation every request finds room, so that a share of the pool says how much arrives; there the share of what is held
counts. At saturation the queue never ends, requests come and go all the time, and the share of the whole pool counts.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.runs import Lab
from experiments.paper.trials import Shares, Trial, in_processes, run_trial, seeds

CVS: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
JUDGED: Final = ("orca-oracle", "contiguous-oracle-best-fit", "paged")
ALSO: Final = ("orca-max", "orca-pow2")
"""Shown, unless it must be quick."""
MEAN_PROMPT, MEAN_OUTPUT = 256, 512
"""768 tokens are 48 blocks, which buddies round up by a third: neither their best case nor their worst."""
NUM_BLOCKS: Final = 6144
MAX_MODEL_LEN: Final = 32_768
"""No length of the widest spread is cut."""
RATES: Final = {"below": 0.5, "saturated": 8.0}
NUM_REQUESTS: Final = {"below": 400, "saturated": 1600}
PAGED_RANGE: Final = 1.0
"""Points within which paging stays."""
DEVIATIONS: Final = ("tendency", "step-model")


def allocators(lab: Lab) -> tuple[str, ...]:
    """Those that are run."""
    return JUDGED if lab.quick else (*ALSO, *JUDGED)


def _trial(load: str, allocator: str, cv: float, seed: int) -> Trial:
    lengths = MEAN_PROMPT, MEAN_OUTPUT, cv
    return Trial(allocator, NUM_BLOCKS, MAX_MODEL_LEN, *lengths, RATES[load], NUM_REQUESTS[load], seed)


def _measured(lab: Lab) -> dict[Trial, Shares]:
    """Every load, allocator, spread and seed."""

    def make() -> dict[Trial, Shares]:
        grid = [
            (load, name, cv, seed) for load in RATES for name in allocators(lab) for cv in CVS for seed in seeds(lab)
        ]
        trials = [_trial(*point) for point in grid]
        return dict(zip(trials, in_processes(run_trial, trials, lab.jobs), strict=True))

    return lab.once("waste_vs_variance", make)


def curve(lab: Lab, load: str, allocator: str, seed: int) -> list[Shares]:
    """One seed's shares over the spread."""
    found = _measured(lab)
    return [found[_trial(load, allocator, cv, seed)] for cv in CVS]


def share(load: str, shares: Shares) -> float:
    """Per cent of the pool at saturation, of what is held below."""
    return 100 * (shares.live if load == "saturated" else shares.live_of_used)


def mean(lab: Lab, load: str, allocator: str) -> list[float]:
    """`share` over the spread, averaged over seeds."""
    curves = [[share(load, shares) for shares in curve(lab, load, allocator, seed)] for seed in seeds(lab)]
    return [math.fsum(values) / len(values) for values in zip(*curves, strict=True)]


def judge(lab: Lab) -> list[Result]:
    """Oracle falls from spread to spread, in every seed; paging stays where it is, on average over seeds."""
    results = []
    for load, of in (("saturated", "the pool"), ("below", "what is held")):
        for system in JUDGED[:2]:
            made = _claim(
                f"{load}/{system}/falls", f"wider spreads that do not lower the live share of {of}", 0, "steps"
            )
            rises = []
            for seed in seeds(lab):
                shares = [share(load, one) for one in curve(lab, load, system, seed)]
                rises.append(float(sum(wide >= narrow for narrow, wide in pairwise(shares))))
            results.append(over_seeds(made, rises, _listed(lab, load, system)))
        values = mean(lab, load, "paged")
        made = _claim(
            *(f"{load}/paged/range", f"paged: highest less lowest live share of {of}", PAGED_RANGE, "points"),
            at_most=True,
        )
        results.append(Result(made, max(values) - min(values), None, len(seeds(lab)), _listed(lab, load, "paged")))
    return [*results, _saturated(lab)]


def _saturated(lab: Lab) -> Result:
    """The two loads are what they are called."""
    wrong = 0
    for trial, shares in _measured(lab).items():
        if trial.allocator == "paged":
            wrong += shares.saturated != (trial.rate_per_s == RATES["saturated"])
    return Result(_claim("loads", "paged runs that are not below, or not at, saturation", 0, "runs"), float(wrong))


def _claim(name: str, metric: str, expected: float, unit: str, *, at_most: bool = False) -> Claim:
    source = "chapter 4.1.2: waste grows with the variance of lengths and with churn"
    return Claim(
        f"waste_vs_variance/{name}", metric, expected, unit, 0.0, source, "R", DEVIATIONS, at_most=at_most
    )  # fmt: skip


def _listed(lab: Lab, load: str, allocator: str) -> str:
    shares = ", ".join(f"{cv:g}: {value:.2f}" for cv, value in zip(CVS, mean(lab, load, allocator), strict=True))
    return f"{allocator} live % by cv {shares}"


def tables(lab: Lab) -> list[Table]:
    """The curves, and what else happens to the pool."""
    found = []
    for load, title in (
        ("saturated", "At saturation: live share of the pool, %"),
        ("below", "Below: of what is held, %"),
    ):
        rows: list[tuple[Cell, ...]] = [(name, *mean(lab, load, name)) for name in allocators(lab)]
        columns = ("allocator", *(f"cv {cv:g}" for cv in CVS))
        found.append(Table(f"waste_vs_variance/{load}", title, columns, tuple(rows), f"{len(seeds(lab))} seeds"))
    return [*found, _churn(lab)]


def _churn(lab: Lab) -> Table:
    """What coming and going adds: memory that is free and of no use."""
    rows: list[tuple[Cell, ...]] = []
    for name in allocators(lab):
        cells: list[float] = []
        for load in RATES:
            curves = [curve(lab, load, name, seed) for seed in seeds(lab)]
            for index in (CVS.index(0.0), CVS.index(2.0)):
                cells.append(100 * math.fsum(one[index].external for one in curves) / len(curves))
        rows.append((name, *cells))
    columns = ("allocator", *(f"{load}, cv {cv}" for load in RATES for cv in (0, 2)))
    return Table("waste_vs_variance/external", "Free, but of no use to the head of the queue, %", columns, tuple(rows))


WASTE_VS_VARIANCE = Experiment("waste_vs_variance", "Waste over the spread of lengths (4.1.2)", judge, tables=tables)
