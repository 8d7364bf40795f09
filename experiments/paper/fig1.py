"""Fig 1, qualitatively: what lies in a GPU's memory, and how memory and throughput grow with the batch.

The paper's right half has axes and no numbers. Here the batch is capped at ever more requests under Fig 2's load, and
each system is watched until its memory, not the cap, ends the growth.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.core.capacity import sosp23_capacity
from engine.core.catalogue import lookup
from engine.core.gpus import lookup_gpu
from engine.core.parameters import weight_bytes
from experiments.paper.claims import Claim, Result, exact
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab, RunKey

GPU_BYTES: Final = 40 * 10**9
CAPS: Final = {"orca-max": (1, 2, 4, 6, 8), "paged": (1, 2, 4, 7, 12, 16, 24, 32, 40)}
EXISTING, PAGED = CAPS
DEVIATIONS: Final = ("axes-only", "step-model", "head-of-file", "pool-984", "one-seed")


class Point(NamedTuple):
    """One cap on the running requests."""

    cap: int
    batch: float
    kv_bytes: float
    """Held in blocks that anybody references, mean over time."""
    tokens_per_s: float


def keys(system: str) -> list[RunKey]:
    """Every cap, one seed: the curves are far apart."""
    return [RunKey("paper-fig2", system, 0, max_num_seqs=cap) for cap in CAPS[system]]


def curve(lab: Lab, system: str) -> list[Point]:
    """In the order of the caps."""
    pool = layout()["KV cache"]
    measured = lab.measure(keys(system))
    return [
        Point(cap, run["mean_batch_size"], run["kv_blocks_used_frac"] * pool, run["output_tok_per_s"])
        for cap, run in zip(CAPS[system], measured, strict=True)
    ]


def layout() -> dict[str, float]:
    """Bytes of the left half."""
    shape = lookup("opt-13b")
    weights, kv = weight_bytes(shape), sosp23_capacity(shape, lookup_gpu("a100-40g")).kv_bytes
    return {"parameters": weights, "KV cache": kv, "others": GPU_BYTES - weights - kv}


def _claim(
    lab: Lab, name: str, metric: str, expected: float, tolerance: float = 0.0, *, at_most: bool = False
) -> Claim:
    drawn = (*(() if lab.is_real("sharegpt") else ("stand-in",)), *DEVIATIONS) if "right" in name else ("gpu-bytes",)
    return Claim(f"fig1/{name}", metric, expected, "%", tolerance, "Fig 1", "A", drawn, at_most=at_most)


def judge(lab: Lab) -> list[Result]:
    """Shares of the left half; of the right half, which curve lies below and which goes further."""
    shares = layout()
    share = {name: 100 * value / GPU_BYTES for name, value in shares.items()}
    existing, paged = curve(lab, EXISTING), curve(lab, PAGED)
    last = existing[-1]
    same = min(paged, key=lambda point: abs(point.batch - last.batch))
    best, best_paged = (max(points, key=lambda point: point.tokens_per_s) for points in (existing, paged))
    at = (
        f"{last.kv_bytes / 1e9:.1f} GB for {last.batch:.1f} requests, {same.kv_bytes / 1e9:.1f} GB for {same.batch:.1f}"
    )
    return [
        exact(_claim(lab, "left/parameters", "parameters, of 40 GB", 65, 1.0), share["parameters"]),
        exact(
            _claim(lab, "left/not-kv", "all but the KV cache, of 40 GB, at most", 70, at_most=True),
            100 - share["KV cache"],
            "the paper: more than 30 % are KV cache",
        ),
        exact(
            _claim(
                lab, "right/memory", "KV memory of paged over orca-max's at its fullest, at most", 100, at_most=True
            ),
            100 * same.kv_bytes / last.kv_bytes,
            at,
        ),
        exact(
            _claim(lab, "right/batch", "largest batch of orca-max over paged's, at most", 100, at_most=True),
            100 * max(p.batch for p in existing) / max(p.batch for p in paged),
        ),
        exact(
            _claim(lab, "right/throughput", "most tokens/s of orca-max over paged's, at most", 100, at_most=True),
            100 * best.tokens_per_s / best_paged.tokens_per_s,
            f"{best.tokens_per_s:,.0f} and {best_paged.tokens_per_s:,.0f} output tokens/s",
        ),
    ]


def tables(lab: Lab) -> list[Table]:
    """Both halves."""
    shares = layout()
    left = tuple((name, value / 1e9, 100 * value / GPU_BYTES) for name, value in shares.items())
    rows = []
    for system in CAPS:
        for point in curve(lab, system):
            total = (shares["parameters"] + point.kv_bytes) / 1e9
            rows.append((system, str(point.cap), point.batch, total, point.tokens_per_s))
    heads = ("system", "cap", "running requests", "parameters + held KV, GB", "output tok/s")
    note = f"{EXISTING} stops at seven requests, {PAGED} where the pool is full of tokens. Step model paper-13b."
    return [
        Table("fig1/layout", "Fig 1, left: OPT-13B on 40 GB", ("what", "GB", "%"), left),
        Table("fig1/growth", "Fig 1, right: memory and throughput by batch", heads, tuple(rows), note),
    ]


FIG1: Final = Experiment(
    "fig1",
    "Fig 1: memory layout and growth with the batch (qualitative)",
    judge,
    lambda lab: [key for system in CAPS for key in keys(system)],
    tables,
)
