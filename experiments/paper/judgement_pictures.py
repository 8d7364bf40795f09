"""The figures of the chapter's judgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.figures.panels import legend_of
from experiments.paper import concurrency, upper_bound, waste_vs_variance
from experiments.paper.experiment import Picture
from experiments.paper.runs import SYSTEMS, Lab
from experiments.paper.trials import BLOCK, seeds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.holding import Held


def bars_said(frame: pd.DataFrame) -> str:
    """What error bars are, where there are any: `frame` has a row a run."""
    return " Bars are the standard deviation over seeds." if frame["seed"].nunique() > 1 else ""


def caption_of(lab: Lab, name: str, *parts: str) -> str:
    """Where a figure comes from, and the command."""
    many = seeds(lab)
    words = ["pagelab reproduce", name, *(["--quick"] if lab.quick else [])]
    shown = f"seeds 0 to {many[-1]}" if len(many) > 1 else "seed 0"
    return " · ".join([*parts, shown, "device: simulated", " ".join(words)])


def variance(lab: Lab) -> list[Picture]:
    """Live share over the spread of lengths."""
    import pandas as pd

    rows = [
        {"load": load, "allocator": name, "cv": cv, "seed": seed, "live_frac": waste_vs_variance.share(load, one) / 100}
        for load in waste_vs_variance.RATES
        for name in waste_vs_variance.allocators(lab)
        for seed in seeds(lab)
        for cv, one in zip(waste_vs_variance.CVS, waste_vs_variance.curve(lab, load, name, seed), strict=True)
    ]
    frame = pd.DataFrame(rows)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.variance import live_over_spread

        axes = canvas.subplots(1, 2, sharey=True)
        titles = {"below": "below saturation: of what is held", "saturated": "at saturation: of the pool"}
        plotted = live_over_spread(frame, list(axes), titles)
        axes[1].set_ylabel("")
        legend_of(canvas, axes[0])
        return plotted

    counts, rates = waste_vs_variance.NUM_REQUESTS, waste_vs_variance.RATES
    loads = [f"n = {counts[load]:,} at {rates[load]:g} req/s ({load})" for load in rates]
    means = f"{waste_vs_variance.MEAN_PROMPT} + {waste_vs_variance.MEAN_OUTPUT} tokens on average"
    pool = f"{waste_vs_variance.NUM_BLOCKS:,} blocks of {BLOCK}"
    return [
        Picture(
            "waste_vs_variance",
            "What the spread of lengths does to live memory (4.1.2)",
            "All points have the same mean lengths; to the right they differ more and more. Contiguous allocators lose "
            "live memory, most where requests come and go all the time; paging does not." + bars_said(frame),
            caption_of(lab, "waste_vs_variance", ", ".join(loads), f"lognormal, {means}", pool, "step model paper-13b"),
            draw,
        )
    ]


def _bars(held: dict[str, dict[str, list[Held]]], claimed: int, canvas: Canvas) -> pd.DataFrame:
    """A panel a workload: running requests by allocator, and a line at what the chapter says."""
    import pandas as pd

    from experiments.figures.batch import batched_requests

    axes = canvas.subplots(1, len(held), sharey=True)
    plotted = []
    for ax, (title, by_system) in zip(axes, held.items(), strict=True):
        rows = [(name, one.mean_running) for name, values in by_system.items() for one in values]
        table = batched_requests(pd.DataFrame(rows, columns=["allocator", "mean_batch_size"]), ax)
        ax.axvline(claimed, color="black", linewidth=1, linestyle=(0, (3, 2)))
        ax.set_title(title)
        plotted.append(table.assign(workload=title))
    return pd.concat(plotted, ignore_index=True)


def bound(lab: Lab) -> list[Picture]:
    """33 requests, and what runs."""
    measured = upper_bound.measured(lab)
    titles = {"full-length": "all of 1,024 + 1,024 tokens", "sharegpt": "ShareGPT's lengths"}
    held = {
        title: {name: measured[workload, name] for name in SYSTEMS} for workload, title in titles.items()
    }  # fmt: skip
    counts = upper_bound.NUM_QUICK_REQUESTS if lab.quick else upper_bound.NUM_REQUESTS
    many = " and ".join(f"{counts[workload]:,}" for workload in titles)
    return [
        Picture(
            "upper_bound",
            "33 requests in 54 GB, and what each allocator sustains (4.1.1)",
            "The dashed line is the chapter's upper bound. A reservation of the longest request meets it whatever "
            "arrives; paging runs more even of the longest requests, as not all are at their full length at once.",
            caption_of(lab, "upper_bound", f"n = {many}, all waiting", f"{upper_bound.NUM_BLOCKS:,} blocks of {BLOCK}"),
            lambda canvas: _bars(held, upper_bound.CLAIMED, canvas),
            2.4,
        )
    ]


def conversations(lab: Lab) -> list[Picture]:
    """32 conversations, and what runs of them."""
    measured, asked = concurrency.measured(lab), concurrency.LOAD.concurrency
    titles = {"cv 0": "all of 800 + 256 tokens", "cv 1": "the same means, cv 1"}
    held = {title: {name: measured[name, lengths, asked] for name in SYSTEMS} for lengths, title in titles.items()}
    pool = f"{concurrency.NUM_BLOCKS:,} blocks of {BLOCK}"
    return [
        Picture(
            "concurrency",
            "32 conversations in 6 GB, as estimated and as held (4.8)",
            "The dashed line is the concurrency that the estimate of 2,112 of 2,457 blocks allows, and that is allowed "
            "to run. Paging reaches it; the same blocks hold half as many reservations, or an eighth.",
            caption_of(lab, "concurrency", f"n = {concurrency.NUM_REQUESTS}, all waiting", pool, "steps of 20 ms"),
            lambda canvas: _bars(held, asked or 0, canvas),
            2.4,
        )
    ]


JUDGEMENTS: Final = {"upper_bound": bound, "waste_vs_variance": variance, "concurrency": conversations}
"""By experiment."""
