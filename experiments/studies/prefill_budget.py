"""The token budget of a step with chunked prefill: what decodes pay for prompts that share their steps.

A step takes as long as its tokens; the more of a prompt it may hold, the longer every decode in it waits for its next
token. Sarathi-Serve chooses the budget by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import seeds
from experiments.studies.case import Case, case, frame_of, mean_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab

NAME: Final = "prefill-budget"
BUDGETS: Final = (256, 512, 1024, 2048, 4096)
LENGTHS: Final = "uniform:1000-5000,50-350"
RATES: Final = {"below": 2.0, "above": 4.0}
"""Requests a second, below saturation and above it."""
NUM_REQUESTS: Final = 400
LLAMA: Final = (
    ("model", "llama-3-8b"),
    ("gpu", "a100-80g"),
    ("allocator", "paged"),
    ("kv_tokens", 200_000),
    ("max_model_len", 8192),
    ("enable_prefix_caching", False),
    ("max_num_seqs", 256),
)
SARATHI: Final = "Sarathi-Serve (OSDI 2024), section 4: larger chunks, longer time between tokens"


def _case(load: str, budget: int, seed: int) -> Case:
    made = case(LLAMA, NUM_REQUESTS, RATES[load], seed, max_num_batched_tokens=budget)
    return made._replace(lengths=LENGTHS)


def runs(lab: Lab) -> list[Case]:
    """Every budget below saturation and above it."""
    return [_case(load, budget, seed) for load in RATES for budget in BUDGETS for seed in seeds(lab)]


def _claim(
    name: str, metric: str, expected: float | None, unit: str, tolerance: float = 0.0, *, why: str = ""
) -> Claim:
    deviations = ("own-study", "roofline")
    return Claim(
        f"{NAME}/{name}", metric, expected, unit, tolerance, SARATHI, "B", deviations, why_reported=why
    )  # fmt: skip


def judge(lab: Lab) -> list[Result]:
    """Time between tokens rises with the budget; below saturation throughput stays what arrives."""
    results = []
    for load in RATES:
        for column, what in (("mean_tpot_s", "mean TPOT"), ("p99_tpot_s", "p99 TPOT")):
            falls = [float(sum(b <= a for a, b in pairwise(_curve(lab, load, column, seed)))) for seed in seeds(lab)]
            results.append(
                over_seeds(_claim(f"{load}/{column}", f"{load}: larger budgets with no longer {what}", 0, ""), falls)
            )
    spread = []
    for seed in seeds(lab):
        curve = _curve(lab, "below", "makespan_output_tok_per_s", seed)
        spread.append(100 * (max(curve) / min(curve) - 1))
    results.append(
        over_seeds(_claim("below/throughput", "below: spread of output tokens/s over budgets", 0, "%", 2.0), spread)
    )
    factor = [curve[-1] / curve[0] for curve in (_curve(lab, "below", "p99_tpot_s", seed) for seed in seeds(lab))]
    made = _claim(
        "below/factor", "below: p99 TPOT at 4,096 over that at 256 tokens", None, "times", why="hangs on the roofline"
    )
    results.append(over_seeds(made, factor))
    return results


def _curve(lab: Lab, load: str, column: str, seed: int) -> list[float]:
    return lab.values([_case(load, budget, seed) for budget in BUDGETS], column)


COLUMNS: Final = (
    "mean_ttft_s",
    "p99_ttft_s",
    "mean_tpot_s",
    "p99_tpot_s",
    "makespan_output_tok_per_s",
    "mean_batch_size",
)


def tables(lab: Lab) -> Sequence[Table]:
    """Means over seeds."""
    rows = []
    for load in RATES:
        for budget in BUDGETS:
            cases = [_case(load, budget, seed) for seed in seeds(lab)]
            rows.append((load, budget, *(mean_of(lab, cases, name) for name in COLUMNS)))
    title = f"Llama-3-8B on an A100 (roofline), {NUM_REQUESTS} requests of 1,000 to 5,000 + 50 to 350 tokens"
    heads = ("load", "budget", "TTFT s", "p99 TTFT s", "TPOT s", "p99 TPOT s", "tokens/s", "running")
    note = ", ".join(f"{load}: {rate:g} req/s" for load, rate in RATES.items())
    return [Table(f"{NAME}/runs", title, heads, tuple(rows), note)]


def pictures(lab: Lab) -> list[Picture]:
    """Both latencies over the budget, below saturation."""
    cases = [({"budget": b, "model": "paged"}, _case("below", b, s)) for b in BUDGETS for s in seeds(lab)]
    frame = frame_of(lab, cases, ("p99_tpot_s", "p99_ttft_s"))

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.study_curves import curves

        left, right = canvas.subplots(1, 2)
        shown = curves(frame, left, "budget", "p99_tpot_s", "model", "p99 time per output token (s)")
        also = curves(frame, right, "budget", "p99_ttft_s", "model", "p99 time to first token (s)")
        for ax in (left, right):
            ax.set_xlabel("most tokens in a step")
        return shown.merge(also, on=["model", "budget", "num_runs"])

    said = f"n = {NUM_REQUESTS} a run at {RATES['below']:g} req/s", LENGTHS, "Llama-3-8B", "roofline of an A100"
    claim = (
        "Left: every decode waits for the chunks of prompts in its steps, and the larger they may be, the longer. "
        "Right: prompts are hardly sooner done." + bars_said(frame)
    )
    return [Picture(NAME, "The budget of a step with chunked prefill", claim, caption_of(lab, NAME, *said), draw, 2.4)]


PREFILL_BUDGET: Final = Experiment(NAME, "The budget of a step with chunked prefill", judge, runs, tables)
