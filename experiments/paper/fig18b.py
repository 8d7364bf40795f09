"""Fig 18b: end-to-end latency by block size, on the real engine: every size serves the same requests in equal memory.

What memory alone does to it is simulated beside (`fig18b_memory`).

The paper's rates are an A100's. Here the rate is a share of what the engine sustains at block size 16 on the device at
hand, measured first with all requests waiting from the start.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from experiments.paper import fig18b_memory
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab

if TYPE_CHECKING:
    from experiments.resolve import Plan
    from workloads import Trace

SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
QUICK_SIZES: Final = (1, 16, 64, 256)
BASE: Final = 16
KV_TOKENS: Final = 61 * 256
"""The paper's pool in whole blocks of every size."""
MAX_NUM_SEQS: Final = 256
LOAD: Final = 0.9
NUM_REQUESTS: Final = {"sharegpt": 150, "alpaca": 500}
QUICK_SHARE: Final = 3
BACKEND: Final = "gpu"
MODELS: Final = ("opt-13b", "opt-1.3b")
"""The paper's, and the quick one."""
GOOD: Final = {"sharegpt": (16, 32, 64, 128), "alpaca": (16, 32)}
"""Block sizes that the paper calls best."""
SLACK: Final = 5.0
DEGRADED: Final = 90.0
COLUMNS: Final = ("mean_normalized_latency_s", "output_tok_per_s", "mean_batch_size", "kv_live_frac", "num_preemptions")


class Curve(NamedTuple):
    """One set of lengths at every block size."""

    rate_per_s: float
    device: str
    by_size: dict[int, dict[str, Any]]
    """The summary of each run."""

    @property
    def latency_s(self) -> dict[int, float]:
        """Mean normalized latency."""
        return {size: float(row["mean_normalized_latency_s"]) for size, row in self.by_size.items()}


def lacking() -> str:
    """Why nothing can be measured here; empty where it can."""
    from experiments.bench.machine import why_no_device

    reason = why_no_device()
    return reason and f"no device: {reason}"


def curve(lab: Lab, lengths: str, model: str | None = None) -> Curve:
    """Every size at one rate; once in a lab's life. The paper's model unless another is named."""
    model = model or MODELS[lab.quick]
    return lab.once(f"fig18b/{model}/{lengths}", lambda: _measured(lab, lengths, model))


def _measured(lab: Lab, lengths: str, model: str) -> Curve:
    count = NUM_REQUESTS[lengths] // (QUICK_SHARE if lab.quick else 1)
    closed = _run(model, _trace(lab, lengths, count, None), BASE)
    rate = LOAD * count / float(closed["makespan_s"])
    _say(f"fig18b {model} {lengths}: {count} requests at {rate:.2f} a second")
    trace, rows = _trace(lab, lengths, count, rate), {}
    for size in QUICK_SIZES if lab.quick else SIZES:
        rows[size] = _run(model, trace, size)
        _say(f"  block size {size}: {rows[size]['mean_normalized_latency_s']:.4f} s a token")
    return Curve(rate, str(closed["device"]), rows)


def _trace(lab: Lab, lengths: str, count: int, rate_per_s: float | None) -> Trace:
    """Poisson arrivals at the rate; None: all at once."""
    from workloads import synthetic_trace

    recipe = lab.lengths.get(lengths, lengths)
    arrival = "all-at-once" if rate_per_s is None else "poisson"
    return synthetic_trace(arrival, recipe, count, 0, rate_per_s=rate_per_s or 1.0, name=f"{lengths}-{count}")


def _run(model: str, trace: Trace, block_size: int) -> dict[str, Any]:
    from experiments.cells import run_task, task_of

    plan = plan_for(model, trace, block_size)
    outcome = run_task(task_of(plan, plan.cells[0]))
    if outcome.summary is None:
        raise RuntimeError(f"fig18b, block size {block_size}: {outcome.error}\n{outcome.details}")
    assert not outcome.failed_checks, f"fig18b, block size {block_size}: {outcome.failed_checks}"
    return {**outcome.summary, "device": outcome.engine["device"]}


def plan_for(model: str, trace: Trace, block_size: int) -> Plan:
    """The artifact's rules on the real engine."""
    from experiments.resolve import plan_of
    from experiments.settings import Config

    config = Config.of(
        model={"name": model},
        max_model_len=2048,
        allocator="paged",
        block_size=block_size,
        kv_tokens=KV_TOKENS,
        preset="sosp23",
        max_num_seqs=MAX_NUM_SEQS,
        backend=BACKEND,
        weights_seed=0,
        too_long="truncate",
        map_frames=0,
    )
    return plan_of(config, verb="run", writes=False, trace=trace)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
    if reason := lacking():
        claims = [*(_best_claim(lab, lengths) for lengths in GOOD), _degraded_claim(lab)]
        return [not_here(claim, reason) for claim in claims]
    results = []
    for lengths, good in GOOD.items():
        found = curve(lab, lengths).latency_s
        best = min(found[size] for size in good if size in found)
        results.append(exact(_best_claim(lab, lengths), 100 * (best / min(found.values()) - 1), _note(lab, lengths)))
    short = curve(lab, "alpaca").latency_s
    results.append(exact(_degraded_claim(lab), 100 * short[BASE] / short[256], _note(lab, "alpaca")))
    return results


def _note(lab: Lab, lengths: str) -> str:
    found = curve(lab, lengths)
    seconds = ", ".join(f"{size}: {value:.4f}" for size, value in found.latency_s.items())
    return f"s a token by block size {seconds}; {found.rate_per_s:.2f} requests/s; {MODELS[lab.quick]}, {found.device}"


def tables(lab: Lab) -> list[Table]:
    """The curves, with what else changes."""
    if lacking():
        return []
    return [_table(lab, lengths) for lengths in GOOD]


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
