"""The figures of the experiments that have one, and the line under each that says where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from experiments.figures.caption import counted
from experiments.figures.panels import legend_of
from experiments.paper import fig1, fig2, fig13a, fig13b, fig18b_memory, rates
from experiments.paper.block_size import CAPACITY_TOKENS
from experiments.paper.experiment import Picture
from experiments.paper.judgement_pictures import JUDGEMENTS, bars_said
from experiments.paper.panels import PANELS, Panel
from experiments.paper.pressure_pictures import PRESSURE
from experiments.paper.runs import NUM_BLOCKS, NUM_QUICK_SEEDS, NUM_SEEDS, Lab, RunKey
from experiments.paper.sharing_pictures import SHARING
from experiments.studies import block_size_engine, one_pool_many_kernels
from experiments.studies.all import FIGURES
from sim.cost import PAPER_MODELS
from workloads import Trace, named_trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

POOL: Final = f"{NUM_BLOCKS} blocks of 16"


def command(lab: Lab, name: str) -> str:
    """As it can be typed again; files of lengths are the reader's own."""
    words = ["pagelab reproduce", name, *(["--quick"] if lab.quick else [])]
    if lab.num_seeds != (NUM_QUICK_SEEDS if lab.quick else NUM_SEEDS):
        words.append(f"--seeds {lab.num_seeds}")
    return " ".join([*words, *(f"--lengths {which}=FILE" for which in sorted(lab.lengths))])


def caption(
    lab: Lab, name: str, trace: Trace, frame: pd.DataFrame, pool: str = POOL, step_model: str = "paper-13b"
) -> str:
    """`trace` is that of the first seed (and rate); `frame` has a row a run, with `rate_per_s` where that varies."""
    low, high = int(frame["num_requests"].min()), int(frame["num_requests"].max())
    seeds = sorted(set(frame["seed"].astype(int)))
    many = counted(low if low == high else f"{low:,} to {high:,}", "request")
    arrivals, lengths = trace.source["arrival"], trace.source["lengths"]
    digest = f"sha256 {trace.sha256()[:12]} at seed {seeds[0]}"
    if "rate_per_s" in frame:
        least, most = frame["rate_per_s"].min(), frame["rate_per_s"].max()
        digest += f" and {arrivals.rpartition(' at ')[2]}"
        arrivals = f"{arrivals.rpartition(' at ')[0]} at {least:g} to {most:g}/s"
    parts = [
        f"n = {many} a run",
        f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}",
        f"trace {trace.name}, {arrivals}, {lengths}, {digest}",
        pool,
        "device: simulated",
        f"step model {step_model} (base {PAPER_MODELS[step_model].base_ps / 1e9:.1f} ms)",
        command(lab, name),
    ]
    return " · ".join(parts)


def frame_of(lab: Lab, keys: Sequence[Any], **columns: Callable[[Any], Any]) -> pd.DataFrame:
    """A row a run: what it measured, its seed, and further columns from its key."""
    import pandas as pd

    more = {"seed": lambda key: key.seed, **columns}
    return pd.DataFrame(
        [{**run, **{n: of(key) for n, of in more.items()}} for key, run in zip(keys, lab.measure(keys), strict=True)]
    )


def _allocator(key: RunKey) -> str:
    return key.allocator


# Fig 1 ----------------------------------------------------------------------------------------------------------------


def _fig1(lab: Lab) -> list[Picture]:
    weights, pool = (fig1.layout()[name] / 1e9 for name in ("parameters", "KV cache"))
    keys = [key for system in fig1.CAPS for key in fig1.keys(system)]
    frame = frame_of(lab, keys, allocator=_allocator, cap=lambda key: key.max_num_seqs)
    frame["memory_gb"] = weights + frame["kv_blocks_used_frac"] * pool
    shown = frame[["allocator", "cap", "mean_batch_size", "memory_gb", "output_tok_per_s"]]

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.growth import growth_with_batch

        axes = canvas.subplots(1, 2, sharex=True)
        plotted = growth_with_batch(shown, list(axes), weights + pool, weights)
        legend_of(canvas, axes[0])
        return plotted

    return [
        Picture(
            "fig1",
            "Fig 1, right: memory and throughput with the batch, OPT-13B",
            "Left: what the parameters and held KV memory take. Reservations to the maximum meet the pool's end at "
            "seven requests, paged memory only when it is full of tokens. Right: tokens a second grow with the batch.",
            caption(lab, "fig1", named_trace("paper-fig2", 0, dict(lab.lengths)), frame),
            draw,
        )
    ]


# Fig 2 and 13 ---------------------------------------------------------------------------------------------------------


def _fig2(lab: Lab) -> list[Picture]:
    from experiments.figures.waste import FIGURE, both_accountings

    frame = frame_of(lab, fig2.runs(lab), allocator=_allocator)
    trace = named_trace(fig2.WORKLOAD, 0, dict(lab.lengths))
    line = caption(lab, "fig2", trace, frame)
    return [Picture("fig2", "Fig 2: KV memory by use", FIGURE.claim, line, partial(both_accountings, frame))]


def _fig13(lab: Lab, name: str, keys: Sequence[RunKey], title: str, claim: str) -> list[Picture]:
    frame = frame_of(lab, keys, allocator=_allocator)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.batch import batched_requests

        return batched_requests(frame, canvas.subplots())

    line = caption(lab, name, named_trace(keys[0].workload, 0, dict(lab.lengths)), frame)
    means = " Coloured bars are means over time, diamonds means over iterations, which is what the paper has."
    spread = bars_said(frame).replace("Bars", "Black lines")
    return [Picture(name, title, claim + means + spread, line, draw, 2.3)]


def _fig13a(lab: Lab) -> list[Picture]:
    claim = "Paged memory runs more requests at a time: memory is full, so what is not wasted holds more of them."
    return _fig13(lab, "fig13a", fig13a.runs(lab), "Fig 13a: running requests, ShareGPT at 2 req/s", claim)


def _fig13b(lab: Lab) -> list[Picture]:
    claim = (
        "Short requests: the pools of the reservations are full, the paged one is not, and so its number hangs on the "
        "step model, which is too fast for such batches (the paper has 132)."
    )
    return _fig13(lab, "fig13b", fig13b.runs(lab), "Fig 13b: running requests, Alpaca at 30 req/s", claim)


# Fig 12 ---------------------------------------------------------------------------------------------------------------


def points(lab: Lab, panel: Panel) -> pd.DataFrame:
    """A row a run of the panel."""
    import pandas as pd

    rows = [
        {"allocator": system, "seed": seed, "rate_per_s": rate, **point}
        for system in rates.systems(lab, panel)
        for seed in rates.seeds(lab, panel)
        for rate, point in zip(*rates.curve(lab, panel, system, seed), strict=True)
    ]
    return pd.DataFrame(rows)


def _fig12(panel: Panel, lab: Lab) -> list[Picture]:
    frame = points(lab, panel)
    found = {name: rates.sustained_by_seed(lab, panel, name) for name in rates.systems(lab, panel)}
    sustained = {name: sum(values) / len(values) for name, values in found.items() if values}

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.rate_curves import rate_curves

        axes = canvas.subplots(1, 2)
        plotted = rate_curves(frame, list(axes), rates.THRESHOLD_S, sustained)
        legend_of(canvas, axes[0])
        return plotted

    trace = rates.key(lab, panel, "paged", rates.rates_of(lab, panel, "paged")[0], 0).trace(lab.lengths)
    pool = f"{panel.num_blocks:,} blocks of 16"
    return [
        Picture(
            panel.name,
            f"Fig 12{panel.letter}: {panel.setting}",
            "Each curve is flat until a system can no longer keep up; then latency runs away. The further right that "
            "is, the more load the same memory carries: rings, and numbers in the legend, are the rates at "
            f"{rates.THRESHOLD_S:g} s a token, the dashed line. The scale is logarithmic. Right: tokens a second stop "
            "growing at the same place." + bars_said(frame),
            caption(lab, panel.name, trace, frame, pool, panel.step_model),
            draw,
        )
    ]


# Fig 18b --------------------------------------------------------------------------------------------------------------


def _fig18b(lab: Lab) -> list[Picture]:
    return [_fig18b_memory(lab, lengths) for lengths in fig18b_memory.RATES]


def _fig18b_memory(lab: Lab, lengths: str) -> Picture:
    keys = [key for key in fig18b_memory.runs(lab) if key.lengths == lengths]
    frame = frame_of(lab, keys, allocator=lambda key: "paged", block_size=lambda key: key.block_size)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.block_size import by_block_size

        return by_block_size(frame, list(canvas.subplots(1, 2, sharex=True)))

    return Picture(
        f"fig18b-{lengths}",
        f"Fig 18b, memory alone: {lengths} at {fig18b_memory.RATES[lengths]:g} req/s",
        "Left: the share of memory that is lost or unusable. Right: requests that run at the same time. A large block "
        "loses the empty end of every request's last block, and short requests hardly fill one.",
        caption(lab, "fig18b", keys[0].trace(lab.lengths), frame, f"{CAPACITY_TOKENS:,} token slots"),
        draw,
    )


PICTURES: Final[Mapping[str, Callable[[Lab], list[Picture]]]] = {
    "fig1": _fig1,
    "fig2": _fig2,
    **{name: partial(_fig12, panel) for name, panel in PANELS.items()},
    "fig13a": _fig13a,
    "fig13b": _fig13b,
    "fig18b": _fig18b,
    block_size_engine.NAME: block_size_engine.pictures,
    one_pool_many_kernels.NAME: one_pool_many_kernels.pictures,
    **JUDGEMENTS,
    **PRESSURE,
    **SHARING,
    **FIGURES,
}
"""By experiment, in the order of the page."""
