"""Fig 14: normalized latency over request rate for parallel samples and beams, OPT-13B, Alpaca.

The more sequences a request has, the more paging gains over reservations: it shares what they have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.rates import LATENCY, MAX_MORE, THRESHOLD_S, THRESHOLDS_S, Curve
from experiments.paper.runs import Lab
from experiments.paper.sharing_runs import GroupKey, Way

ORDER: Final = ("paged", "orca-oracle", "orca-pow2", "orca-max")
BASIC: Final = 1.3
BEAM_6: Final = 2.3
"""Rate of paged over that of orca-oracle (section 6.3)."""
DURATIONS_S: Final = {"parallel": 300, "beam": 100}
QUICK_S: Final = 45
WHY: Final = (
    "step times are too fast for Alpaca's large batches (see fig13b), so that memory binds earlier than on the A100; "
    "which request rate a curve sustains depends on it"
)


class Kind(NamedTuple):
    """How many sequences a request has, in what way, and the rates of each system, ascending."""

    way: Way
    width: int
    grid: dict[str, tuple[float, ...]]
    """The artifact's; for one sequence those of Fig 12d."""

    @property
    def name(self) -> str:
        """Of claims and tables."""
        return "basic" if self.width == 1 else f"{self.way}-{self.width}"


def _grid(*rates: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    return dict(zip(ORDER, rates, strict=True))


KINDS: Final = (
    Kind(
        *("parallel", 1),
        _grid((20.0, 27.5, 31.5, 36.0, 40.0), (20.0, 24.0, 27.0, 29.0), (12.5, 15.0, 18.0), (2.0, 3.0, 4.0, 5.0)),
    ),
    Kind(
        *("parallel", 2),
        _grid(
            (12.5, 15.0, 18.0, 19.0, 20.0), (10.0, 11.0, 12.0, 13.0, 14.0), (6.0, 8.0, 10.0, 12.0), (1.0, 1.5, 2.0, 2.5)
        ),
    ),
    Kind(
        *("parallel", 4),
        _grid(
            (6.0, 8.0, 10.0, 11.0, 12.0),
            (4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
            (2.0, 3.0, 4.0, 5.0, 6.0),
            (0.25, 0.5, 0.75, 1.0),
        ),
    ),
    Kind(
        *("parallel", 6),
        _grid(
            (4.0, 5.0, 6.0, 7.0, 8.0, 9.0), (2.0, 3.0, 4.0, 5.0, 6.0), (1.0, 2.0, 2.5, 3.0, 4.0), (0.25, 0.5, 0.75, 1.0)
        ),
    ),
    Kind(
        *("beam", 2),
        _grid((12.5, 15.0, 17.5, 19.0), (8.0, 9.0, 10.0, 11.0), (6.0, 7.0, 8.0, 9.0), (0.5, 1.0, 1.5, 2.0)),
    ),
    Kind(
        *("beam", 4),
        _grid((8.0, 9.0, 10.0, 11.0), (4.0, 4.5, 5.0, 6.0), (3.0, 3.5, 4.0, 4.5), (0.25, 0.5, 0.75, 1.0)),
    ),
    Kind(
        *("beam", 6),
        _grid((6.0, 7.0, 8.0, 8.5), (3.0, 3.5, 4.0, 4.5), (1.5, 2.0, 2.5, 3.0), (0.25, 0.5, 0.75, 1.0)),
    ),
)
QUICK: Final = {"basic": ((48.0, 60.0, 68.0), (35.0, 43.0, 51.0)), "parallel-6": ((9.0, 12.0, 13.0), (6.0, 7.0, 8.0))}
"""Rates of paged and of orca-oracle in a quick run, which leaves the rest out."""


def kinds(lab: Lab) -> list[Kind]:
    """All seven; a quick run has two."""
    return [kind for kind in KINDS if not lab.quick or kind.name in QUICK]


def grid(lab: Lab, kind: Kind) -> dict[str, tuple[float, ...]]:
    """Rates by system."""
    return dict(zip(ORDER, QUICK[kind.name], strict=False)) if lab.quick else kind.grid


def key(lab: Lab, kind: Kind, system: str, rate: float) -> GroupKey:
    """One run, drained."""
    return GroupKey("alpaca", system, kind.way, kind.width, rate, 0, QUICK_S if lab.quick else DURATIONS_S[kind.way])


def runs(lab: Lab) -> list[GroupKey]:
    """Every kind, system and rate; searches, which take long, first."""
    return [
        key(lab, kind, system, rate)
        for kind in reversed(kinds(lab))
        for system, rates in grid(lab, kind).items()
        for rate in reversed(rates)
    ]


def curve(lab: Lab, kind: Kind, system: str) -> Curve:
    """At the grid's rates, and beyond them in steps of the last gap until it passes the threshold."""
    rates = list(grid(lab, kind)[system])
    points = lab.measure([key(lab, kind, system, rate) for rate in rates])
    step = rates[-1] - rates[-2]
    for _ in range(MAX_MORE):
        if points[-1][LATENCY] > THRESHOLD_S:
            break
        rates.append(round(rates[-1] + step, 6))
        points += lab.measure([key(lab, kind, system, rates[-1])])
    return Curve(tuple(rates), tuple(points))


def ratio(lab: Lab, kind: Kind, system: str, threshold_s: float = THRESHOLD_S) -> float | None:
    """Paged's sustained rate over the system's."""
    ours, theirs = (curve(lab, kind, name).sustained(threshold_s) for name in ("paged", system))
    return ours / theirs if ours and theirs else None


def _claim(lab: Lab, name: str, metric: str, expected: float, unit: str = "x") -> Claim:
    stand_in = () if lab.is_real("alpaca") else ("stand-in",)
    deviations = (
        *stand_in,
        "fig14-length",
        "one-seed",
        "head-of-file",
        "quanta",
        "step-model",
        "threshold",
        "added-rates",
    )
    return Claim(f"fig14/{name}", metric, expected, unit, 0.0, "section 6.3", "A", deviations)


def _result(claim: Claim, value: float | None, note: str = "") -> Result:
    return over_seeds(claim, [math.nan if value is None else value], note)


def judge(lab: Lab) -> list[Result]:
    """Paged over Oracle for one sequence and for six beams, and that the gain grows with the number of sequences."""
    shown = kinds(lab)
    gains = {kind.name: ratio(lab, kind, "orca-oracle") for kind in shown}
    told = "paged over orca-oracle: " + ", ".join(f"{n} {g:.2f}" if g else f"{n} –" for n, g in gains.items())
    metric = f"rate of paged over orca-oracle at {THRESHOLD_S:g} s/token"
    results = []
    for kind in shown:
        expected = {"basic": BASIC, "beam-6": BEAM_6}.get(kind.name)
        if expected is None:
            continue
        claim = replace(_claim(lab, f"{kind.name}/paged-over-orca-oracle", metric, expected), why_reported=WHY)
        claim = claim if kind.way != "beam" else replace(claim, deviations=(*claim.deviations, "ancestry"))
        results.append(_result(claim, gains[kind.name], told))
    return results + [_grows(lab, shown, gains)] + [_order(lab, kind) for kind in shown]


def _grows(lab: Lab, shown: Sequence[Kind], gains: dict[str, float | None]) -> Result:
    most = shown[-1]
    first, last = gains["basic"], gains[most.name]
    metric = f"paged's gain over orca-oracle for one sequence, over its gain for {most.name}, at most"
    claim = replace(_claim(lab, "gain-grows", metric, 100.0, "%"), at_most=True)
    return _result(claim, 100 * first / last if first and last else None)


def _order(lab: Lab, kind: Kind) -> Result:
    """The worst of each system's rate over that of the next better one."""
    found = [curve(lab, kind, system).sustained() for system in grid(lab, kind)]
    metric = "a system's rate over that of the next better one (paged, oracle, pow2, max), at most"
    claim = replace(_claim(lab, f"{kind.name}/order", metric, 100.0, "%"), at_most=True)
    rates = [rate for rate in found if rate]
    worst = max(100 * b / a for a, b in pairwise(rates)) if len(rates) == len(found) else None
    return _result(claim, worst)


def tables(lab: Lab) -> list[Table]:
    """What each system sustains, and every point."""
    rates: list[tuple[Cell, ...]] = []
    points: list[tuple[Cell, ...]] = []
    for kind in kinds(lab):
        for system in grid(lab, kind):
            found = curve(lab, kind, system)
            over = [ratio(lab, kind, system, limit) for limit in THRESHOLDS_S]
            sustained = [found.sustained(limit) for limit in THRESHOLDS_S]
            pairs = zip(sustained, over, strict=True)
            rates.append((kind.name, system, *(value for pair in pairs for value in pair)))
            points += [_point(kind, system, rate, point) for rate, point in zip(found.rates, found.points, strict=True)]
    heads = [name for limit in THRESHOLDS_S for name in (f"req/s at {limit:g} s/token", "paged over it")]
    return [
        Table("fig14/rates", "Fig 14: rates that each system sustains", ("requests", "system", *heads), tuple(rates)),
        Table(
            "fig14/curves", "Fig 14: every point", ("requests", "system", "req/s", "artifact's", *HEADS), tuple(points)
        ),
    ]


HEADS: Final = ("s/token", "running sequences", "saved by sharing %", "preemptions")


def _point(kind: Kind, system: str, rate: float, point: dict[str, float]) -> tuple[Cell, ...]:
    saved = 100 * point["iter_sharing_saving_frac"]
    told = "yes" if rate in kind.grid.get(system, ()) else "added"
    return (
        kind.name,
        system,
        f"{rate:g}",
        told,
        point[LATENCY],
        point["mean_batch_size"],
        saved,
        point["num_preemptions"],
    )


FIG14: Final = Experiment(
    "fig14", "Fig 14: parallel samples and beams over request rate, OPT-13B, Alpaca", judge, runs, tables
)
