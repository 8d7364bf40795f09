"""Who gives way where memory runs out: the last to come, or who has computed least.

A victim's tokens are computed again, so taking memory from who has least of it costs the fewest tokens each time; it
frees less memory, too, and so happens more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import seeds
from experiments.studies.case import OPT_13B, POOL_SAID, Case, case, frame_of, mean_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab

NAME: Final = "victim-policy"
POLICIES: Final = ("last", "priority", "least-computed")
NUM_REQUESTS: Final = 600
COLUMNS: Final = (
    "num_preemptions", "recomputed_frac", "makespan_output_tok_per_s", "mean_normalized_latency_s", "p99_ttft_s",
    "p99_tpot_s",
)  # fmt: skip


def _case(policy: str, seed: int) -> Case:
    return case(OPT_13B, NUM_REQUESTS, 0.0, seed, allocator="paged", victim=policy)


def runs(lab: Lab) -> list[Case]:
    """Every policy."""
    return [_case(policy, seed) for policy in POLICIES for seed in seeds(lab)]


def _claim(name: str, metric: str, expected: float | None, unit: str, *, why: str = "") -> Claim:
    source = "what is lost with a victim is what it has computed"
    return Claim(
        f"{NAME}/{name}", metric, expected, unit, 0.0, source, "R", ("own-study", "step-model"), why_reported=why
    )  # fmt: skip


def _pair(lab: Lab, column: str) -> list[tuple[float, float]]:
    """(last, least-computed) a seed."""
    last, least = (
        lab.values([_case(policy, seed) for seed in seeds(lab)], column) for policy in ("last", "least-computed")
    )
    return list(zip(last, least, strict=True))


def judge(lab: Lab) -> list[Result]:
    """Fewer tokens again, each time and in all; equal priorities decide nothing."""
    counts, again = _pair(lab, "num_preemptions"), _pair(lab, "num_recomputed_tokens")
    each = [(a[0] / n[0], a[1] / n[1]) for a, n in zip(again, counts, strict=True)]
    rates = _pair(lab, "makespan_output_tok_per_s")
    same = [
        float(sum(a[name] != b[name] for name in COLUMNS))
        for a, b in zip(
            lab.measure([_case("last", seed) for seed in seeds(lab)]),
            lab.measure([_case("priority", seed) for seed in seeds(lab)]),
            strict=True,
        )
    ]
    gain = [100 * (least / last - 1) for last, least in rates]
    more = [least / last for last, least in counts]
    return [
        over_seeds(
            _claim("priority", "numbers in which `priority` differs from `last` at equal priorities", 0, ""), same
        ),
        over_seeds(
            _claim("each", "runs where a victim of `least-computed` loses no fewer tokens than the last", 0, "runs"),
            [float(least >= last) for last, least in each],
        ),
        over_seeds(
            _claim("total", "runs where `least-computed` computes no fewer tokens again in all", 0, "runs"),
            [float(least >= last) for last, least in again],
        ),
        over_seeds(
            _claim(
                "more", "preemptions of `least-computed` over those of `last`", None, "times", why="hangs on the load"
            ),
            more,
        ),
        over_seeds(_claim("gain", "throughput gained", None, "%", why="hangs on the step model"), gain),
    ]


def tables(lab: Lab) -> Sequence[Table]:
    """Means over seeds."""
    rows = []
    for policy in POLICIES:
        cases = [_case(policy, seed) for seed in seeds(lab)]
        shown = [mean_of(lab, cases, name) for name in COLUMNS]
        rows.append((policy, shown[0], 100 * shown[1], *shown[2:]))
    heads = (
        "victim",
        "preemptions",
        "recomputed %",
        "tokens/s",
        "normalized latency s/token",
        "p99 TTFT s",
        "p99 TPOT s",
    )
    title = f"{POOL_SAID}, {NUM_REQUESTS} requests of ShareGPT's lengths, all there at the start"
    return [Table(f"{NAME}/runs", title, heads, tuple(rows))]


def pictures(lab: Lab) -> list[Picture]:
    """Preemptions and what they cost."""
    cases = [({"victim": p, "run": ""}, _case(p, s)) for p in ("last", "least-computed") for s in seeds(lab)]
    frame = frame_of(lab, cases, ("num_preemptions", "recomputed_frac", "p99_tpot_s"))
    panels = {"num_preemptions": "preemptions", "recomputed_frac": "", "p99_tpot_s": "p99 time per output token (s)"}

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.study_curves import grouped_bars
        from experiments.style import percent_axis

        axes, plotted = canvas.subplots(1, 3), None
        for ax, (name, label) in zip(axes, panels.items(), strict=True):
            shown = grouped_bars(frame, ax, "victim", name, "run", label, ("paged",))
            plotted = shown if plotted is None else plotted.merge(shown, on=["victim", "run", "num_runs"])
        percent_axis(axes[1].yaxis, "tokens computed again", whole=False)
        assert plotted is not None
        return plotted

    said = f"n = {NUM_REQUESTS} a run, all waiting", "ShareGPT's lengths", POOL_SAID, "step model paper-13b"
    claim = (
        "Taking memory from who has computed least happens more often and costs less: fewer tokens are computed "
        "again. Some requests give way again and again, and wait longer between their tokens." + bars_said(frame)
    )
    return [Picture(NAME, "Who gives way where memory runs out", claim, caption_of(lab, NAME, *said), draw, 2.4)]


VICTIMS: Final = Experiment(NAME, "Who gives way where memory runs out", judge, runs, tables)
