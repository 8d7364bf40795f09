"""Fig 18b: end-to-end latency by block size, on the real engine: every size serves the same requests in equal memory.

What memory alone does to it is simulated beside (`fig18b_memory`).
"""

from __future__ import annotations

from typing import Final

from experiments.paper import fig18b_memory, size_runs
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab
from experiments.paper.size_runs import BASE, KV_TOKENS

MODELS: Final = ("opt-13b", "opt-1.3b")
"""The paper's, and the quick one."""
GOOD: Final = {"sharegpt": (16, 32, 64, 128), "alpaca": (16, 32)}
"""Block sizes that the paper calls best."""
SLACK: Final = 5.0
DEGRADED: Final = 90.0
COLUMNS: Final = ("mean_normalized_latency_s", "output_tok_per_s", "mean_batch_size", "kv_live_frac", "num_preemptions")


def curve(lab: Lab, lengths: str) -> size_runs.Curve:
    """Of the paper's model."""
    return size_runs.curve(lab, MODELS[lab.quick], lengths)


def lacking(lab: Lab, lengths: str) -> str:
    """Why there is none; empty where there is one."""
    return size_runs.lacking(lab, MODELS[lab.quick], lengths)


def _best_claim(lab: Lab, lengths: str) -> Claim:
    good = GOOD[lengths]
    return Claim(
        f"fig18b/{lengths}/best",
        f"least normalized latency of block sizes {good[0]} to {good[-1]} over the least of all, less one",
        SLACK,
        "%",
        0.0,
        f"Fig 18b: {good[0]} to {good[-1]} are best",
        "A",
        ("own-rate", "whole-blocks", *_set_deviations(lab, lengths)),
        at_most=True,
    )


def _degraded_claim(lab: Lab) -> Claim:
    return Claim(
        "fig18b/alpaca/256-degrades",
        f"normalized latency at block size {BASE} over that at 256, at most",
        DEGRADED,
        "%",
        0.0,
        "Fig 18b: larger block sizes significantly degrade",
        "A",
        ("own-rate", "alpaca-only", "whole-blocks", *_set_deviations(lab, "alpaca")),
        at_most=True,
    )


def _set_deviations(lab: Lab, lengths: str) -> tuple[str, ...]:
    return () if lab.is_real(lengths) else ("stand-in",)


def judge(lab: Lab) -> list[Result]:
    """The sizes that the paper calls best against all, and the largest for short requests."""
    results = []
    for lengths, good in GOOD.items():
        claim = _best_claim(lab, lengths)
        if reason := lacking(lab, lengths):
            results.append(not_here(claim, reason))
            continue
        found = curve(lab, lengths).latency_s
        best = min(found[size] for size in good if size in found)
        results.append(exact(claim, 100 * (best / min(found.values()) - 1), _note(lab, lengths)))
    if reason := lacking(lab, "alpaca"):
        return [*results, not_here(_degraded_claim(lab), reason)]
    short = curve(lab, "alpaca").latency_s
    results.append(exact(_degraded_claim(lab), 100 * short[BASE] / short[256], _note(lab, "alpaca")))
    return results


def _note(lab: Lab, lengths: str) -> str:
    found = curve(lab, lengths)
    seconds = ", ".join(f"{size}: {value:.4f}" for size, value in found.latency_s.items())
    return f"s a token by block size {seconds}; {found.rate_per_s:.2f} requests/s; {MODELS[lab.quick]}, {found.device}"


def tables(lab: Lab) -> list[Table]:
    """The curves, with what else changes."""
    return [_table(lab, lengths) for lengths in GOOD if not lacking(lab, lengths)]


def _table(lab: Lab, lengths: str) -> Table:
    found = curve(lab, lengths)
    rows = tuple((size, *(row[name] for name in COLUMNS)) for size, row in found.by_size.items())
    where = f"{KV_TOKENS:,} token slots, {MODELS[lab.quick]} on {found.device}"
    title = f"{lengths}: {found.rate_per_s:.2f} requests/s in {where}"
    return Table(f"fig18b/{lengths}", title, ("block size", *COLUMNS), rows)


FIG18B: Final = Experiment(
    "fig18b",
    "Fig 18b: end-to-end latency by block size, in the simulator and on the engine",
    lambda lab: [*fig18b_memory.judge(lab), *judge(lab)],
    fig18b_memory.runs,
    lambda lab: [*fig18b_memory.tables(lab), *tables(lab)],
)
