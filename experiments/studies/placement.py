"""How much is reserved, and where it is placed: every reservation of contiguous memory with every placement.

Reservations decide more than placements do. Where all are equally long the placement is nothing; buddies pay with their
rounding up to powers of two, holes of first and best fit are about as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.paper.claims import Claim, Result, over_seeds
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import BLOCK, seeds
from experiments.studies.case import OPT_13B, POOL_SAID, Case, case, frame_of, mean_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab, Lengths

NAME: Final = "reservation-placement"
RESERVES: Final = ("max", "pow2", "oracle", "chunk(256)", "chunk(64)")
"""From what keeps the least memory live to what keeps the most."""
QUICK_RESERVES: Final = ("max", "oracle", "chunk(256)")
FITS: Final = ("first-fit", "best-fit", "buddy")
NUM_REQUESTS: Final = 600
RATE: Final = 4.0
KNUTH: Final = "Knuth, TAOCP 1, section 2.5: buddies round up; lengths of the trace by hand"
WILSON: Final = "Wilson et al., Dynamic storage allocation (1995): first fit and best fit waste about the same"


def reserves(lab: Lab) -> tuple[str, ...]:
    """Those that are run."""
    return QUICK_RESERVES if lab.quick else RESERVES


def _case(reserve: str, fit: str, seed: int) -> Case:
    return case(OPT_13B, NUM_REQUESTS, RATE, seed, allocator=f"contiguous-{reserve}-{fit}")


def runs(lab: Lab) -> list[Case]:
    """The grid."""
    return [_case(reserve, fit, seed) for reserve in reserves(lab) for fit in FITS for seed in seeds(lab)]


def roundup_by_hand(lengths: Lengths, seed: int) -> float:
    """Share of what buddies hold that rounding up adds, for reservations of the true length: each request counts with
    its tokens, as it stays about so many steps."""
    trace = _case("oracle", "buddy", seed).trace(lengths)
    asked = trace.num_prompt_tokens + trace.num_output_tokens
    granted = BLOCK * 2 ** np.ceil(np.log2(-(-asked // BLOCK)))
    steps = trace.num_output_tokens
    return float(((granted - asked) * steps).sum() / (granted * steps).sum())


def _claim(name: str, metric: str, expected: float, unit: str, tolerance: float = 0.0, **more: str) -> Claim:
    source, confidence = more.pop("source", "equal extents fit wherever one fits"), more.pop("confidence", "R")
    return Claim(
        f"{NAME}/{name}", metric, expected, unit, tolerance, source, confidence, ("own-study", "step-model"),
        at_most=bool(more.pop("at_most", "")),
    )  # fmt: skip


def judge(lab: Lab) -> list[Result]:
    """Placement without consequence, the buddies' price, fits side by side, and the order of reservations."""
    differ, apart, by_hand = [], [], []
    inverted: dict[str, list[float]] = {fit: [] for fit in FITS}
    for seed in seeds(lab):
        batches = {f: lab.values([_case(r, f, seed) for r in reserves(lab)], "mean_batch_size") for f in FITS}
        whole = [batches[fit][0] for fit in FITS]
        differ.append(max(whole) - min(whole))
        pairs = zip(batches["first-fit"], batches["best-fit"], strict=True)
        apart.append(max(100 * abs(first / best - 1) for first, best in pairs))
        for fit in FITS:
            live = lab.values([_case(r, fit, seed) for r in reserves(lab)], "kv_live_frac")
            inverted[fit].append(float(sum(b <= a for a, b in pairwise(live))))
        by_hand.append(100 * (_roundup(lab, seed) - roundup_by_hand(lab.lengths, seed)))
    return [
        over_seeds(
            _claim("max", "reservations of the longest length: most difference a placement makes", 0, "requests"),
            differ,
        ),
        over_seeds(
            _claim(
                "buddy",
                "buddy, true lengths: share of held slots lost to rounding up, less that by hand",
                0,
                "points",
                3.0,
                source=KNUTH,
            ),
            by_hand,
        ),
        over_seeds(
            _claim(
                "fits",
                "first fit against best fit: most difference in running requests",
                10,
                "%",
                source=WILSON,
                confidence="C",
                at_most="yes",
            ),
            apart,
        ),
        *(
            over_seeds(
                _claim(f"order/{fit}", f"{fit}: smaller reservations that keep no more memory live", 0, ""), counts
            )
            for fit, counts in inverted.items()
        ),
    ]


def _roundup(lab: Lab, seed: int) -> float:
    (run,) = lab.measure([_case("oracle", "buddy", seed)])
    return run["kv_internal_roundup_frac"] / run["kv_blocks_used_frac"]


COLUMNS: Final = (
    "mean_batch_size", "kv_live_frac", "kv_reserved_frac", "kv_internal_reserve_frac", "kv_internal_roundup_frac",
    "kv_external_hole_frac", "kv_external_short_frac", "num_preemptions", "num_copied_blocks",
)  # fmt: skip


def tables(lab: Lab) -> Sequence[Table]:
    """Means over seeds."""
    rows = []
    for reserve in reserves(lab):
        for fit in FITS:
            scaled = ((name, 100.0 if name.endswith("_frac") else 1.0) for name in COLUMNS)
            cases = [_case(reserve, fit, seed) for seed in seeds(lab)]
            rows.append((reserve, fit, *(mean_of(lab, cases, name, scale) for name, scale in scaled)))
    heads = (
        "reserves",
        "placed",
        "running",
        "live %",
        "reserved %",
        "beyond length %",
        "round-up %",
        "holes %",
        "too little %",
    )
    note = "chunks grow in place, else move: copied blocks are copied within the device"
    title = f"{POOL_SAID}, {NUM_REQUESTS} requests of ShareGPT's lengths at {RATE:g}/s"
    return [Table(f"{NAME}/runs", title, (*heads, "preemptions", "copied blocks"), tuple(rows), note)]


def pictures(lab: Lab) -> list[Picture]:
    """Running requests by reservation and placement."""
    cases = [
        ({"reserve": reserve.replace("(", "\n("), "fit": fit}, _case(reserve, fit, seed))
        for reserve in reserves(lab)
        for fit in FITS
        for seed in seeds(lab)
    ]
    frame = frame_of(lab, cases, ("mean_batch_size", "kv_external_hole_frac"))

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.panels import legend_of
        from experiments.figures.study_curves import grouped_bars
        from experiments.style import percent_axis

        left, right = canvas.subplots(1, 2)
        looks = ("orca-pow2", "paged", "orca-oracle")
        shown = grouped_bars(frame, left, "reserve", "mean_batch_size", "fit", "running requests", looks)
        also = grouped_bars(frame, right, "reserve", "kv_external_hole_frac", "fit", "", looks)
        percent_axis(right.yaxis, "free, but in too small holes", whole=False)
        for ax in (left, right):
            ax.set_xlabel("what is reserved")
        legend_of(canvas, left)
        return shown.merge(also, on=["reserve", "fit", "num_runs"])

    said = f"n = {NUM_REQUESTS} a run at {RATE:g} req/s", "ShareGPT's lengths", POOL_SAID, "step model paper-13b"
    claim = (
        "What is reserved decides how many requests run; where it is placed matters less, and not at all where all "
        "reservations are equal. Buddies have fewer running requests: they round up." + bars_said(frame)
    )
    return [Picture(NAME, "Reservation and placement of contiguous memory", claim, caption_of(lab, NAME, *said), draw)]


PLACEMENT: Final = Experiment(NAME, "Reservation and placement of contiguous memory", judge, runs, tables)
