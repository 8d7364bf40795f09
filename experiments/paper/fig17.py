"""Fig 17: a chatbot whose prompts are the last 1,024 tokens: all reservations are alike, and paging carries more."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment, Table
from experiments.paper.rates import THRESHOLD_S
from experiments.paper.runs import NUM_BLOCKS, ORCAS, Lab, agree, artifact_spec
from experiments.paper.session_curves import CACHED, Panel, SessionKey
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import Run, simulate
from workloads import Trace

GAIN: Final = 2.0
CONCURRENT: Final = 7
PROMPT: Final = 1024
BACKLOG: Final = 140
WINDOW_S: Final = (5.0, 60.0)
"""Of the backlog: all seven places are taken, and many requests wait."""
_ORCA: Final = (0.3, 0.4, 0.5, 0.6, 0.7)
_QUICK_ORCA: Final = (0.4, 0.55, 0.7)
PANEL: Final = Panel(
    *("fig17", "paper-fig17", 3600),
    {CACHED: (0.6, 0.8, 0.9, 1.0, 1.1), **dict.fromkeys(reversed(ORCAS), _ORCA)},
    600,
    {CACHED: (0.7, 0.9, 1.1), **dict.fromkeys(reversed(ORCAS), _QUICK_ORCA)},
    shares=False,
)
WHY: Final = "lengths of turns are drawn one by one, and the step model was fitted to another workload"
WHY_ORCAS: Final = "first rounds have prompts under 1,024 tokens, of which reservations by length hold more than seven"


def backlog(lab: Lab) -> Trace:
    """Requests that all wait from the start, with prompts of 1,024 tokens and the workload's answers."""
    from workloads import session_trace

    given = {"sharegpt": lab.lengths["sharegpt"]} if lab.is_real("sharegpt") else None
    drawn = session_trace("paper-fig17", 0, None, given, rate_per_s=1.0, num_requests=BACKLOG)
    return Trace.build([0] * BACKLOG, [PROMPT] * BACKLOG, drawn.num_output_tokens, name="full prompts")


def full_prompts(lab: Lab) -> dict[str, Run]:
    """The backlog under each estimator of the reservations."""

    def replay(system: str) -> Run:
        spec = replace(artifact_spec(system, NUM_BLOCKS), window_s=WINDOW_S)
        done = simulate(spec, backlog(lab), CostExecutor(PAPER_13B))
        agree(system, done)
        return done

    return lab.once("fig17/full-prompts", lambda: {system: replay(system) for system in ORCAS})


def _deviations(lab: Lab) -> tuple[str, ...]:
    stand_in = () if lab.is_real("sharegpt") else ("stand-in",)
    short = ("short-traces",) if lab.quick else ()
    return (
        *stand_in,
        *short,
        "new-conversation",
        "chatbot-turns",
        "one-seed",
        "step-model",
        "threshold",
        "added-rates",
    )


def judge(lab: Lab) -> list[Result]:
    """Seven requests at a time for every estimator, alike to the picosecond; the rate ratio reported."""
    found = full_prompts(lab)
    results = []
    for system, done in found.items():
        claim = Claim(
            f"fig17/{system}/concurrent", "running requests, all prompts of 1,024 tokens", CONCURRENT, "requests"
        )
        claim = replace(
            claim, tolerance=0.0, source="65 or more blocks are rounded up to 128: floor(984 / 128)", confidence="R"
        )
        results.append(exact(claim, float(done.summary["mean_batch_size"])))
    finishes = [np.asarray(done.rows.column("finish").tolist()) for done in found.values()]
    apart = int(sum((one != finishes[0]).sum() for one in finishes[1:]))
    claim = Claim(
        "fig17/orcas-coincide", "answers that do not end at the same time under all three Orcas", 0, "requests"
    )
    results.append(exact(replace(claim, source="Fig 17: the three coincide"), apart, f"of {BACKLOG}"))
    return [*results, *_rates(lab)]


def _rates(lab: Lab) -> list[Result]:
    results = []
    for system in reversed(ORCAS):
        metric = f"rate of paged over {system} at {THRESHOLD_S:g} s/token"
        why = WHY if system == ORCAS[0] else f"{WHY}; {WHY_ORCAS}"
        claim = Claim(f"fig17/paged-over-{system}", metric, GAIN, "x", 0.0, "section 6.5", "A", _deviations(lab))
        value = PANEL.ratio(lab, system)
        results.append(over_seeds(replace(claim, why_reported=why), [math.nan if value is None else value]))
    worst = [PANEL.ratio(lab, system) for system in ORCAS]
    claim = Claim(
        "fig17/order", "rate of the best Orca over paged's, at most", 100.0, "%", 0.0, "Fig 17", "A", _deviations(lab)
    )
    least = min((ratio for ratio in worst if ratio is not None), default=None)
    value = None if least is None or None in worst else 100 / least
    return [*results, over_seeds(replace(claim, at_most=True), [math.nan if value is None else value])]


def runs(lab: Lab) -> list[SessionKey]:
    """All four systems."""
    return PANEL.runs(lab)


def tables(lab: Lab) -> list[Table]:
    """Rates and points."""
    return PANEL.tables(lab, "Fig 17")


FIG17: Final = Experiment("fig17", "Fig 17: a chatbot, OPT-13B, ShareGPT", judge, runs, tables)
