"""The four allocators on the real engine: it decides as the simulator does, its clock is the wall's, and the paper's
order of the systems holds in measured tokens a second."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.decisions import differences
from experiments.paper.engine_runs import PLACES, Measured, Place, measured
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.runs import ORCAS, Lab
from experiments.paper.tensors import without_torch

ORDER: Final = ("paged", "orca-oracle", "orca-pow2", "orca-max")
"""From the most tokens a second to the fewest."""
MAY_TIE: Final = ("orca-oracle", "orca-pow2")
SLACK: Final = 3.0
"""Per cent: what throughput may differ by from run to run, and the clock from the wall."""
QUANTITIES: Final = {"throughput": "output_tok_per_s", "mean-batch": "mean_batch_size"}
MEANINGS: Final = {"throughput": "output tokens/s", "mean-batch": "running requests"}
TWIN_BAND: Final = (-5.0, 26.0)
"""Per cent by which the contiguous kernel may be ahead: nothing, with some noise, up to all that the paper's kernel
loses by paging."""


def lacking_device() -> str:
    """Why times cannot be measured here; empty where they can."""
    from experiments.bench.machine import why_no_device

    reason = why_no_device()
    return reason and f"no device: {reason}"


def _decisions_claim(place: Place) -> Claim:
    return Claim(
        f"engine-compare/{place.slug}/decisions",
        "differences between the engine's decisions and the simulator's",
        0.0,
        "",
        0.0,
        "ours: both stand on one scheduler, and requests that are all there at 0 leave nothing to the clock",
        "R",
        ("own-law",),
    )


def _clock_claim(lab: Lab, place: Place) -> Claim:
    return Claim(
        f"engine-compare/{place.slug}/clock",
        "the replay's makespan over its wall clock, less one",
        0.0,
        "%",
        SLACK,
        "ours: the sum of the steps' times is the time that passes",
        "R",
        ("own-law", *_set_deviations(lab)),
    )


def _order_claim(lab: Lab, better: str, worse: str, quantity: str) -> Claim:
    ties = (better, worse) == MAY_TIE
    return Claim(
        f"engine-compare/{better}-over-{worse}/{quantity}",
        f"{MEANINGS[quantity]} of {worse} over those of {better}, at most",
        100 + SLACK if ties else 100 - SLACK,
        "%",
        0.0,
        f"Fig 12, 13: {better} {'is not behind' if ties else 'is ahead of'} {worse}",
        "R",
        ("own-order", *_set_deviations(lab)),
        at_most=True,
    )


def _set_deviations(lab: Lab) -> tuple[str, ...]:
    return () if lab.is_real("sharegpt") else ("stand-in",)


def judge(lab: Lab) -> list[Result]:
    """Decisions wherever there is torch; clock and order on a device."""
    if reason := without_torch():
        return [*(not_here(_decisions_claim(place), reason) for place in PLACES), *_untimed(lab, reason)]
    done = measured(lab)
    decided = [_decisions(done, place) for place in PLACES]
    if reason := lacking_device():
        return [*decided, *_untimed(lab, reason)]
    return [*decided, *(_clock(lab, done, place) for place in PLACES), *_order(lab, done)]


def _untimed(lab: Lab, reason: str) -> list[Result]:
    clock = [_clock_claim(lab, place) for place in PLACES]
    order = [_order_claim(lab, *pair, quantity) for quantity in QUANTITIES for pair in pairwise(ORDER)]
    return [not_here(claim, reason) for claim in (*clock, *order)]


def _decisions(done: Measured, place: Place) -> Result:
    found = differences(done.simulated[place.allocator], done.real[place])
    steps, preemptions = (int(done.value(place, name)) for name in ("num_steps", "num_preemptions"))
    return exact(_decisions_claim(place), found.total, f"{steps:,} steps, {preemptions:,} preemptions; {found}")


def _clock(lab: Lab, done: Measured, place: Place) -> Result:
    virtual, wall = done.value(place, "makespan_s"), done.value(place, "replay_wall_s")
    return exact(_clock_claim(lab, place), 100 * (virtual / wall - 1), f"{virtual:.3f} s and {wall:.3f} s")


def _order(lab: Lab, done: Measured) -> list[Result]:
    results = []
    for quantity, name in QUANTITIES.items():
        values = {allocator: done.value(Place(allocator), name) for allocator in ORDER}
        over = ", ".join(f"{allocator} {values[allocator] / values['orca-max']:.2f}" for allocator in ORDER[:-1])
        note = f"{MEANINGS[quantity]} over orca-max: {over}; {done.setup.model}, {done.device}"
        for better, worse in pairwise(ORDER):
            claim = _order_claim(lab, better, worse, quantity)
            results.append(exact(claim, 100 * values[worse] / values[better], note))
    return results


def tables(lab: Lab) -> list[Table]:
    """Everybody's numbers, and what the block table costs in them."""
    if without_torch():
        return []
    done, reason = measured(lab), lacking_device()
    return [_runs_table(done, reason)] if reason else [_runs_table(done, reason), _kernels_table(done)]


def _runs_table(done: Measured, reason: str) -> Table:
    base = Place("orca-max")
    rows: list[tuple[Cell, ...]] = []
    for place in PLACES:
        rate, batch = (done.value(place, name) for name in QUANTITIES.values())
        times: list[Cell] = [
            *(rate, rate / done.value(base, "output_tok_per_s"), done.value(place, "wall_output_tok_per_s")),
            *(batch, batch / done.value(base, "mean_batch_size"), 100 * done.value(place, "kv_live_frac")),
        ]
        counts: list[Cell] = [int(done.value(place, name)) for name in ("num_preemptions", "num_steps")]
        rows.append((place.series, *([None] * len(times) if reason else times), *counts))
    heads = ("output tok/s", "over orca-max", "by wall clock", "mean batch", "over orca-max", "live %")
    setup = done.setup
    model = setup.model or "a model of two tiny layers"
    title = f"{setup.num_requests} requests at 0 in {setup.kv_tokens:,} token slots: {model} on {done.device}"
    note = f"Times, and means over time, are not measured here: {reason}" if reason else "Means are over the makespan."
    return Table("engine-compare/runs", title, ("allocator", *heads, "preemptions", "steps"), tuple(rows), note)


def _kernels_table(done: Measured) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in ORCAS:
        paged, twin = (done.value(Place(name, kernel), "output_tok_per_s") for kernel in ("paged", "contiguous"))
        ahead = 100 * (twin / paged - 1)
        rows.append((name, paged, twin, ahead, "yes" if TWIN_BAND[0] <= ahead <= TWIN_BAND[1] else "no"))
    low, high = TWIN_BAND
    return Table(
        "engine-compare/kernels",
        "Contiguous against paged attention kernel, output tokens/s",
        ("allocator", "paged", "contiguous", "contiguous ahead, %", "in band"),
        tuple(rows),
        f"Reported, not judged. The band is ours: {low:g} to {high:g} %, up to what the paper's kernel alone loses.",
    )


ENGINE_COMPARE: Final = Experiment(
    "engine-compare", "The four allocators on the engine and in the simulator", judge, tables=tables
)
