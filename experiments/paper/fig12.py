"""Fig 12: normalized latency over request rate, six panels, and how much more load paging carries at equal latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.panels import FT, PANELS, Panel
from experiments.paper.rates import (
    ALL_SYSTEMS,
    LATENCY,
    THRESHOLD_S,
    THRESHOLDS_S,
    curves,
    fastertransformer,
    ratios,
    runs,
    seeds,
    sustained_by_seed,
    systems,
)
from experiments.paper.runs import Lab

BANDS: Final = {"orca-oracle": (1.7, 2.7), "orca-max": (2.7, 8.0)}
"""Rates over these, on ShareGPT, all models together (section 6.2)."""
UP_TO_FT: Final = 22.0
ALPACA_13B: Final = 1.3
"""Over Oracle, on Alpaca, one sequence a request (section 6.3, of Fig 14)."""
RECOMPUTED: Final = {"paged": 2.12, "orca-oracle": 1.13, "orca-pow2": 0.84, "orca-max": 0.65}
"""Rates at 0.5 s a token of panel (a), from the artifact's allocators and its seed 0, with the same step model."""
RECOMPUTED_FRAC: Final = 0.08
ORDER: Final = ("paged", "orca-oracle", "orca-pow2", "orca-max")
SCRIPT_DEVIATIONS: Final = {"c": ("script-typo",), "e": ("script-typo",), "f": ("ft-memory",)}


def deviations(lab: Lab, panel: Panel) -> tuple[str, ...]:
    """Those that apply to everything of the panel."""
    stand_in = () if lab.is_real(panel.lengths) else ("stand-in",)
    short = ("short-traces",) if lab.quick else ()
    models = ("scaled-model",) if panel.step_model != "paper-13b" else ()
    rest = ("warm-up", "step-model", *models, "threshold", "added-rates", "seeds")
    return (*stand_in, *short, "head-of-file", "quanta", *rest, *SCRIPT_DEVIATIONS.get(panel.letter, ()))


def _claim(lab: Lab, panel: Panel, what: str, metric: str, expected: float, tolerance: float = 0.0) -> Claim:
    source = f"Fig 12{panel.letter}"
    return Claim(f"{panel.name}/{what}", metric, expected, "x", tolerance, source, "A", deviations(lab, panel))


def _result(claim: Claim, values: Sequence[float] | None, note: str = "") -> Result:
    """A curve without a sustained rate is a miss, not something that is left out."""
    if values is None:
        return Result(claim, math.nan, note=f"no rate at which the latency passes {THRESHOLD_S:g} s/token")
    return over_seeds(claim, values, note)


def _note(lab: Lab, panel: Panel, system: str) -> str:
    """The two rates, and the ratio at the other thresholds."""
    ours, theirs = (sustained_by_seed(lab, panel, name) for name in ("paged", system))
    if ours is None or theirs is None:
        return ""
    others = [
        f"{limit:g}: {_shown(ratios(lab, panel, system, limit))}" for limit in THRESHOLDS_S if limit != THRESHOLD_S
    ]
    return f"{_mean(ours):.3g} over {_mean(theirs):.3g} req/s; at other thresholds (s/token) {', '.join(others)}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _shown(values: Sequence[float] | None) -> str:
    return f"{_mean(values):.2f}" if values else "–"


def _band(lab: Lab, panel: Panel, system: str) -> Result:
    low, high = BANDS[system]
    metric = f"rate of paged over {system} at {THRESHOLD_S:g} s/token"
    claim = replace(
        _claim(lab, panel, f"paged-over-{system}", metric, (low + high) / 2, (high - low) / 2),
        source="section 6.2",
        note=f"the text: {low:g} to {high:g} times, over all three models",
    )
    return _result(claim, ratios(lab, panel, system), _note(lab, panel, system))


def _fastertransformer(lab: Lab, panel: Panel) -> Result:
    claim = _claim(lab, panel, f"paged-over-{FT}", f"rate of paged over {FT}, at most", UP_TO_FT)
    claim = replace(
        claim,
        source="section 6.2: up to 22 times",
        at_most=True,
        deviations=(*claim.deviations, "request-level"),
    )
    return _result(claim, ratios(lab, panel, FT), _note(lab, panel, FT))


def _order(lab: Lab, panel: Panel) -> list[Result]:
    """Each system's rate over that of the next better one."""
    results = []
    for better, worse in pairwise(ORDER):
        claim = _claim(lab, panel, f"{better}-over-{worse}/order", f"rate of {worse} over {better}'s, at most", 100.0)
        ours, theirs = (sustained_by_seed(lab, panel, name) for name in (better, worse))
        values = None
        if ours is not None and theirs is not None:
            values = [100 * below / above for above, below in zip(ours, theirs, strict=True)]
        results.append(_result(replace(claim, unit="%", at_most=True), values))
    return results


def _recomputed(lab: Lab, panel: Panel) -> list[Result]:
    results = []
    for system, rate in RECOMPUTED.items():
        tolerance = rate * RECOMPUTED_FRAC * (2 if lab.quick else 1)
        claim = replace(
            _claim(lab, panel, f"{system}/rate", f"rate at {THRESHOLD_S:g} s/token", rate, tolerance),
            unit="req/s",
            source="recomputed beforehand, one-hour trace, artifact's seed 0",
            confidence="R",
        )
        results.append(_result(claim, sustained_by_seed(lab, panel, system)))
    return results


def _alpaca(lab: Lab, panel: Panel) -> Result:
    claim = replace(
        _claim(lab, panel, "paged-over-orca-oracle", "rate of paged over orca-oracle", ALPACA_13B),
        source="section 6.3",
        why_reported="the step model makes Alpaca's large batches too fast (see fig13b), so paging gains more here",
    )
    return _result(claim, ratios(lab, panel, "orca-oracle"), _note(lab, panel, "orca-oracle"))


def _less_pronounced(lab: Lab, panel: Panel) -> Result:
    """The same model and GPUs on both sets."""
    long = PANELS["fig12c"]
    claim = _claim(lab, panel, "less-pronounced", "advantage over orca-oracle, over that of fig12c, at most", 100.0)
    both = tuple(dict.fromkeys((*claim.deviations, *deviations(lab, long))))
    claim = replace(
        claim,
        source="section 6.2: less pronounced, for memory is ample and sequences are short",
        unit="%",
        at_most=True,
        deviations=both,
    )
    here, there = (ratios(lab, one, "orca-oracle") for one in (panel, long))
    values = None if here is None or there is None else [100 * _mean(here) / _mean(there)]
    return _result(claim, values, f"{_shown(here)} against {_shown(there)} times")


def judge(lab: Lab, panel: Panel) -> list[Result]:
    """Ratios where the text has any, the order of the systems everywhere."""
    results = [_band(lab, panel, system) for system in BANDS] if panel.lengths == "sharegpt" else []
    if panel.letter == "a":
        results += [_fastertransformer(lab, panel), *_recomputed(lab, panel)]
    if panel.letter == "d":
        results.append(_alpaca(lab, panel))
    if panel.letter == "f":
        results.append(_less_pronounced(lab, panel))
    return results + _order(lab, panel)


def tables(lab: Lab, panel: Panel) -> list[Table]:
    """What each system sustains, then every point."""
    return [_rates_table(lab, panel), _points_table(lab, panel)]


def _rates_table(lab: Lab, panel: Panel) -> Table:
    rows = []
    for system in systems(lab, panel):
        cells: list[Cell] = [system]
        for limit in THRESHOLDS_S:
            found = sustained_by_seed(lab, panel, system, limit)
            over = ratios(lab, panel, system, limit)
            cells += [_mean(found) if found else None, _mean(over) if over else None]
        rows.append(tuple(cells))
    heads = [name for limit in THRESHOLDS_S for name in (f"req/s at {limit:g} s/token", "paged over it")]
    return Table(
        f"{panel.name}/rates",
        f"Rates that each system sustains, {panel.setting}, step model {panel.step_model}",
        ("system", *heads),
        tuple(rows),
        f"– : the curve starts above the threshold or ends below it. {FT}: at most {panel.max_batch} requests, "
        f"{fastertransformer(panel.num_blocks, panel.max_batch).limits.max_model_len:,} slots reserved for each.",
    )


def _points_table(lab: Lab, panel: Panel) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for system in (name for name in ALL_SYSTEMS if name in systems(lab, panel)):
        found = curves(lab, panel, system)
        for rate in found[0].rates:
            points = [dict(zip(one.rates, one.points, strict=True))[rate] for one in found if rate in one.rates]
            means = [_mean([p[name] for p in points]) for name in (LATENCY, "output_tok_per_s", "mean_batch_size")]
            rejected = _mean([point["num_rejected"] for point in points])
            rows.append((system, f"{rate:g}", "yes" if rate in panel.grid[system] else "added", *means, rejected))
    columns = ("system", "req/s", "artifact's", "s/token", "output tok/s", "running requests", "rejected")
    return Table(
        f"{panel.name}/curves", f"The curves: means over seeds {list(seeds(lab, panel))}", columns, tuple(rows)
    )


def experiment(panel: Panel) -> Experiment:
    """Of one panel. Panel (f) needs the runs of (c), which it is compared with."""
    needed = [panel, PANELS["fig12c"]] if panel.letter == "f" else [panel]
    return Experiment(
        panel.name,
        f"Fig 12{panel.letter}: normalized latency over request rate, {panel.setting}",
        lambda lab: judge(lab, panel),
        lambda lab: [key for one in needed for key in runs(lab, one)],
        lambda lab: tables(lab, panel),
    )


FIG12: Final = tuple(experiment(panel) for panel in PANELS.values())
