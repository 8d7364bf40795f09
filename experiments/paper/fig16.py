"""Fig 16: translation behind shared examples: what keeping one copy of the prefix gains over reservations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.rates import THRESHOLD_S
from experiments.paper.runs import Lab
from experiments.paper.session_curves import CACHED, Panel, SessionKey

GAINS: Final = {"1-shot": 1.67, "5-shot": 3.58}
"""Rate of paged over orca-oracle (section 6.4)."""
DURATION_S: Final = 300
QUICK_S: Final = 60
ORACLE: Final = "orca-oracle"
PANELS: Final = {
    "1-shot": Panel(
        *("fig16/1-shot", "paper-fig16-1shot", DURATION_S),
        {CACHED: (32.0, 40.0, 48.0, 52.0), ORACLE: (24.0, 28.0, 30.0, 32.0)},
        QUICK_S,
        {CACHED: (48.0, 64.0, 80.0), ORACLE: (32.0, 40.0, 48.0)},
    ),
    "5-shot": Panel(
        *("fig16/5-shot", "paper-fig16-5shot", DURATION_S),
        {CACHED: (36.0, 40.0, 44.0, 48.0), ORACLE: (8.0, 10.0, 11.0, 12.0, 13.0)},
        QUICK_S,
        {CACHED: (48.0, 64.0, 80.0), ORACLE: (10.0, 13.0, 16.0)},
    ),
}
WHY: Final = (
    "sentence lengths are stand-ins, and step times were fitted to another workload: at these batches they are rough"
)


DEVIATIONS: Final = (
    *("fig16-length", "wmt16-lengths", "prefix-cache", "one-seed", "quanta"),
    *("step-model", "threshold", "added-rates"),
)


def runs(lab: Lab) -> list[SessionKey]:
    """Both prefixes."""
    return [key for panel in PANELS.values() for key in panel.runs(lab)]


def _claim(name: str, metric: str, expected: float, unit: str = "x") -> Claim:
    return Claim(f"fig16/{name}", metric, expected, unit, 0.0, "section 6.4", "A", DEVIATIONS)


def _result(claim: Claim, value: float | None, note: str = "") -> Result:
    return over_seeds(claim, [math.nan if value is None else value], note)


def judge(lab: Lab) -> list[Result]:
    """Both ratios reported; that sharing gains, and the more the longer the prefix, judged."""
    found = {name: panel.ratio(lab, ORACLE) for name, panel in PANELS.items()}
    results = []
    for name, expected in GAINS.items():
        metric = f"rate of paged over {ORACLE} at {THRESHOLD_S:g} s/token, {name}"
        rates = [PANELS[name].curve(lab, system).sustained() for system in (CACHED, ORACLE)]
        shown = " over ".join("–" if rate is None else f"{rate:.3g}" for rate in rates) + " req/s"
        claim = replace(_claim(f"{name}/paged-over-{ORACLE}", metric, expected), why_reported=WHY)
        results.append(_result(claim, found[name], shown))
    short, long = found["1-shot"], found["5-shot"]
    gains = replace(_claim("1-shot/order", f"rate of {ORACLE} over paged's, 1-shot, at most", 100.0, "%"), at_most=True)
    grows = replace(
        _claim("longer-gains-more", "gain of 1-shot over that of 5-shot, at most", 100.0, "%"), at_most=True
    )
    results.append(_result(gains, 100 / short if short else None))
    results.append(_result(grows, 100 * short / long if short and long else None))
    return [*results, _shared(lab)]


def _shared(lab: Lab) -> Result:
    """As in the artifact, the shared part is a multiple of the block: 341 tokens are 336."""
    panel = PANELS["5-shot"]
    (point,) = lab.measure([panel.key(lab, CACHED, panel.rates(lab)[CACHED][0])])
    hits = point["prefix_hit_tokens"] / (336 * point["num_finished"])
    claim = _claim(
        "5-shot/shared-tokens", "tokens found of the 336 of each request, all but the first ones", 100.0, "%"
    )
    claim = replace(claim, tolerance=1.0, source="artifact: 341 tokens are cut to 336", confidence="R")
    return over_seeds(claim, [100 * hits])


def tables(lab: Lab) -> list[Table]:
    """Rates and points of both."""
    return [table for name, panel in PANELS.items() for table in panel.tables(lab, f"Fig 16, {name}")]


FIG16: Final = Experiment("fig16", "Fig 16: a shared prefix, LLaMA-13B, WMT16 en-de", judge, runs, tables)
