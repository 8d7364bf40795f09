"""The highest rate that an allocator serves within a latency objective, by bisection.

All rates of an allocator and seed have the same requests and the same gaps, only stretched, so that more load is never
easier but for what rounding of batches does; the bracket is checked at the end, not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Cell, Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import in_processes, seeds
from experiments.studies.case import OPT_13B, POOL_SAID, case

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab, Lengths, Measured

NAME: Final = "capacity-search"
ORDER: Final = ("orca-max", "orca-pow2", "orca-oracle", "virtual", "paged")
QUICK_ORDER: Final = ("orca-max", "orca-oracle", "paged")
NUM_REQUESTS: Final = 400
OBJECTIVE: Final = {"p99_ttft_s": 10.0, "p99_tpot_s": 0.2}
LOW, HIGH = 0.05, 8.0
"""Requests a second: one that everybody serves, and one that nobody does."""
RATIO: Final = 1.05
"""Between the bracket's ends when the search is over."""


class Found(NamedTuple):
    """What came of a search."""

    rate_per_s: float
    """Highest rate that was tried and met the objective."""
    missed_per_s: float
    """Lowest rate above it that was tried; it missed."""
    met: Measured
    missed: Measured
    num_runs: int


class Search(NamedTuple):
    """One search; small, and the same in every process."""

    allocator: str
    seed: int


def meets(run: Measured) -> bool:
    """Whether the run is within the objective; a run that finished nobody is not."""
    return all(run.get(name, math.inf) <= bound for name, bound in OBJECTIVE.items())


def bisect(run: Callable[[float], Measured], low: float = LOW, high: float = HIGH, ratio: float = RATIO) -> Found:
    """The bracket's middle, on a logarithmic scale, until its ends are within `ratio`. ValueError where `low` misses or
    `high` meets the objective: what is looked for does not lie between them."""
    met, missed, count = run(low), run(high), 2
    if not meets(met) or meets(missed):
        raise ValueError(f"the objective is not met at {low:g} and missed at {high:g} requests/s: search elsewhere")
    while high / low > ratio:
        middle, count = math.sqrt(low * high), count + 1
        tried = run(middle)
        if meets(tried):
            low, met = middle, tried
        else:
            high, missed = middle, tried
    return Found(low, high, met, missed, count)


def run_search(search: Search, lengths: Lengths) -> Found:
    """Simulates it."""

    def run(rate_per_s: float) -> Measured:
        return case(OPT_13B, NUM_REQUESTS, rate_per_s, search.seed, allocator=search.allocator).run(lengths)

    return bisect(run)


def allocators(lab: Lab) -> tuple[str, ...]:
    """Those that are searched for."""
    return QUICK_ORDER if lab.quick else ORDER


def found(lab: Lab) -> dict[Search, Found]:
    """Every allocator and seed."""

    def make() -> dict[Search, Found]:
        searches = [Search(name, seed) for name in allocators(lab) for seed in seeds(lab)]
        done = in_processes(partial(run_search, lengths=dict(lab.lengths)), searches, lab.jobs)
        return dict(zip(searches, done, strict=True))

    return lab.once(NAME, make)


def _claim(name: str, metric: str, expected: float, unit: str, tolerance: float = 0.0, source: str = "") -> Claim:
    deviations = ("own-objective", "step-model")
    return Claim(
        f"{NAME}/{name}", metric, expected, unit, tolerance, source or "of a search by bisection", "R", deviations
    )


def judge(lab: Lab) -> list[Result]:
    """The bracket holds, the order is the paper's, and paging's lead lies in its range."""
    done = found(lab)
    open_ends = [one for one in done.values() if not (meets(one.met) and not meets(one.missed))]
    wide = [one for one in done.values() if one.missed_per_s / one.rate_per_s > RATIO]
    inverted, lead = [], []
    for seed in seeds(lab):
        rates = [done[Search(name, seed)].rate_per_s for name in allocators(lab)]
        inverted.append(float(sum(b <= a for a, b in pairwise(rates))))
        lead.append(done[Search("paged", seed)].rate_per_s / done[Search("orca-oracle", seed)].rate_per_s)
    paper = "SOSP'23 section 6.2: 1.7 to 2.7 times Orca (Oracle)'s rate"
    return [
        Result(
            _claim("bracket", f"searches that end with no miss within {RATIO - 1:.0%} above", 0, ""),
            float(len(open_ends) + len(wide)),
        ),
        over_seeds(
            _claim(
                "order",
                "neighbours of the order max, pow2, oracle, virtual, paged that are inverted",
                0,
                "",
                0.0,
                paper,
            ),
            inverted,
        ),
        over_seeds(_claim("lead", "rate of paged over that of orca-oracle", 2.2, "times", 0.5, paper), lead),
    ]


def tables(lab: Lab) -> Sequence[Table]:
    """Means over seeds."""
    rows: list[tuple[Cell, ...]] = []
    for name in allocators(lab):
        ones = [found(lab)[Search(name, seed)] for seed in seeds(lab)]
        columns = (
            [one.rate_per_s for one in ones],
            *([one.met[column] for one in ones] for column in (*OBJECTIVE, "mean_batch_size", "kv_live_frac")),
            [float(one.num_runs) for one in ones],
        )
        rows.append((name, *(math.fsum(values) / len(values) for values in columns)))
    heads = ("allocator", "req/s", "p99 TTFT s", "p99 TPOT s", "running", "live share", "runs")
    within = " and ".join(f"{name} <= {bound:g}" for name, bound in OBJECTIVE.items())
    return [
        Table(
            f"{NAME}/rates",
            f"Highest rate with {within}: {POOL_SAID}, {NUM_REQUESTS} requests",
            heads,
            tuple(rows),
        )
    ]


def pictures(lab: Lab) -> list[Picture]:
    """The rates."""
    import pandas as pd

    frame = pd.DataFrame(
        [{"allocator": s.allocator, "seed": s.seed, "rate_per_s": one.rate_per_s} for s, one in found(lab).items()]
    )

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.repeats import over_seeds as averaged
        from experiments.style import look_of

        ax = canvas.subplots()
        table = averaged(frame, ["allocator"], ["rate_per_s"])
        for place, row in enumerate(table.to_dict("records")):
            look, rate, sd = look_of(str(row["allocator"])), float(row["rate_per_s"]), float(row["rate_per_s_sd"])
            spread = 0.0 if sd != sd else sd
            ax.barh(place, rate, xerr=spread, color=look.colour, hatch=look.hatch, edgecolor="white", capsize=2)
            ax.annotate(f"{rate:.2f}", (rate + spread, place), (5, -3), textcoords="offset points")
        ax.set_yticks(range(len(table)), table["allocator"])
        ax.set_xlabel("highest requests a second within the objective")
        ax.margins(x=0.12)
        return table

    within = " and ".join(
        f"{name.split('_')[0]} {name.split('_')[1].upper()} of {bound:g} s" for name, bound in OBJECTIVE.items()
    )
    said = f"n = {NUM_REQUESTS} a run", "Poisson, ShareGPT's lengths", POOL_SAID, "step model paper-13b"
    claim = f"What a pool is worth to users: the load that each allocator carries within {within}." + bars_said(frame)
    return [Picture(NAME, "The highest rate within an objective", claim, caption_of(lab, NAME, *said), draw, 2.3)]


CAPACITY_SEARCH: Final = Experiment(NAME, "The highest rate within an objective", judge, tables=tables)
