"""The figures of prefix hits by size of the cache and of the watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.paper import mooncake, pressure
from experiments.paper.experiment import Picture
from experiments.paper.judgement_pictures import caption_of
from experiments.paper.recorded_workloads import BLOCK
from experiments.paper.runs import NUM_BLOCKS, Lab
from experiments.paper.trials import seeds
from sim.cache_only import POLICIES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

CURVE: Final = tuple(1 << power for power in range(9, 18))
"""Blocks."""


def hit_rates(lab: Lab) -> list[Picture]:
    """Every policy at powers of two and at the sizes of the table; nothing without a trace."""
    import pandas as pd

    cached = lab.cached
    if cached.trace is None:
        return []
    sizes = sorted({*CURVE, *cached.sizes})
    cases = [(policy, size) for policy in POLICIES for size in sizes]
    found = cached.found([*cases, ("lru", cached.unbounded)], lab.jobs)
    rows = [(policy, size, one.hit_pct) for (policy, size), one in zip(cases, found, strict=False)]
    frame = pd.DataFrame(rows, columns=["policy", "num_blocks", "hit_pct"])

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.cache_pressure import hits_by_size
        from experiments.figures.panels import legend_of

        ax = canvas.subplots()
        plotted = hits_by_size(frame, ax, found[-1].hit_pct, mooncake.MEANINGS)
        legend_of(canvas, ax)
        return plotted

    prompts = cached.prompts
    measured = f"n = {len(prompts):,} prompts, the last {len(prompts) - len(prompts) // 2:,} measured"
    trace = f"trace {cached.trace.name}, sha256 {cached.trace.sha256()[:12]}"
    parts = measured, trace, f"blocks of {prompts.block_size}", "no device, no clock"
    return [
        Picture(
            mooncake.NAME,
            "Prefix hits by size of the cache",
            "The gap between the green curve and the others is what a better choice of victims could bring; where they "
            "meet, nothing but a longer trace would.",
            " · ".join([*parts, f"pagelab reproduce {mooncake.NAME} --trace FILE"]),
            draw,
        )
    ]


def watermarks(lab: Lab) -> list[Picture]:
    """Preemptions and throughput."""
    import pandas as pd

    keys = pressure.runs(lab)
    values = {"num_preemptions": "preemptions", "makespan_output_tok_per_s": "output tokens/s (simulated)"}
    rows = [
        {"watermark_pct": 100 * key.watermark, "seed": key.seed, **{name: run[name] for name in values}}
        for key, run in zip(keys, lab.measure(keys), strict=True)
    ]
    frame = pd.DataFrame(rows)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.cache_pressure import over_watermarks

        return over_watermarks(frame, list(canvas.subplots(1, 2)), values)

    many = f"n = {pressure.NUM_REQUESTS:,} a run, all waiting", "ShareGPT's lengths", f"{NUM_BLOCKS} blocks of {BLOCK}"
    return [
        Picture(
            "watermark",
            "What a watermark buys and costs",
            "A few per cent of the pool kept back from newcomers spare the running ones most preemptions and "
            "so tokens computed again; beyond that the pool is just smaller. Bars are the standard deviation over "
            f"{len(seeds(lab))} seeds.",
            caption_of(lab, "watermark", *many, "step model paper-13b"),
            draw,
            2.4,
        )
    ]


PRESSURE: Final = {mooncake.NAME: hit_rates, "watermark": watermarks}
"""By experiment."""
