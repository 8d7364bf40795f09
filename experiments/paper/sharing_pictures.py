"""The figures of samples, beams, shared prefixes, chats and swaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from experiments.figures.panels import legend_of
from experiments.paper import fig14, fig15, fig16, fig17, fig19
from experiments.paper.experiment import Picture
from experiments.paper.rates import LATENCY, THRESHOLD_S, Curve
from experiments.paper.runs import NUM_BLOCKS, Lab

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

POOL: Final = f"{NUM_BLOCKS} blocks of 16 · device: simulated · step model paper-13b"
PANEL_ROWS: Final = 4
"""Panels in a row of a figure, at most."""


def _caption(lab: Lab, name: str, *parts: str) -> str:
    words = ["pagelab reproduce", name, *(["--quick"] if lab.quick else [])]
    words += [f"--lengths {which}=FILE" for which in sorted(lab.lengths)]
    return " · ".join([*parts, " ".join(words)])


def _requests(points: Sequence[Mapping[str, float]]) -> str:
    counts = [int(point["num_requests"]) for point in points]
    low, high = min(counts), max(counts)
    return f"n = {low:,} requests a run" if low == high else f"n = {low:,} to {high:,} requests a run"


def panels(
    lab: Lab, name: str, title: str, claim: str, curves: Mapping[tuple[str, str], Curve], *parts: str
) -> Picture:
    """Latency over rate, a panel each; `curves` by panel and system."""
    import pandas as pd

    rows = [
        {"panel": panel, "allocator": system, "rate_per_s": rate, LATENCY: point[LATENCY]}
        for (panel, system), curve in curves.items()
        for rate, point in zip(curve.rates, curve.points, strict=True)
    ]
    frame = pd.DataFrame(rows)
    names = list(dict.fromkeys(panel for panel, _ in curves))
    columns = min(PANEL_ROWS, len(names))
    lines = -(-len(names) // columns)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.sharing import latency_panels

        axes = canvas.subplots(lines, columns, sharey=True, squeeze=False)
        used = list(axes.flat)[: len(names)]
        for spare in list(axes.flat)[len(names) :]:
            spare.set_visible(False)
        plotted = latency_panels(frame, used, THRESHOLD_S)
        for line in axes:
            line[0].set_ylabel("normalized latency (s/token)")
        legend_of(canvas, used[0])
        return plotted

    points = [point for curve in curves.values() for point in curve.points]
    caption = _caption(lab, name, _requests(points), "seed 0", *parts, POOL)
    return Picture(name, title, claim, caption, draw, 2.6 * lines)


def _fig14(lab: Lab) -> list[Picture]:
    curves = {
        (kind.name, system): fig14.curve(lab, kind, system)
        for kind in fig14.kinds(lab)
        for system in fig14.grid(lab, kind)
    }
    claim = (
        "The further right a curve turns up, the more load the same memory carries. Six sequences of one request share "
        "its prompt, and beams most of what they have: paged memory stores that once, reservations store it six times."
    )
    lengths = f"alpaca {'as given' if lab.is_real('alpaca') else 'stand-in'}"
    return [panels(lab, "fig14", "Fig 14: samples and beams, OPT-13B, Alpaca", claim, curves, lengths)]


def _fig16(lab: Lab) -> list[Picture]:
    curves = {
        (name, system): panel.curve(lab, system) for name, panel in fig16.PANELS.items() for system in panel.rates(lab)
    }
    claim = (
        "Every request begins with the same examples. Paged memory keeps one copy of them, computed once; reservations "
        "keep one a request and compute each. The longer the examples, the more load that carries."
    )
    return [panels(lab, "fig16", "Fig 16: a shared prefix, LLaMA-13B, WMT16", claim, curves, "wmt16 stand-in")]


def _fig17(lab: Lab) -> list[Picture]:
    curves = {("chatbot", system): fig17.PANEL.curve(lab, system) for system in fig17.PANEL.rates(lab)}
    claim = (
        "Prompts are the last 1,024 tokens of a talk, so that every reservation is rounded up to 2,048 tokens, however "
        "well the answer's length is known: the three Orcas are nearly one. Paged memory takes what is there."
    )
    lengths = f"sharegpt {'as given' if lab.is_real('sharegpt') else 'stand-in'}"
    return [panels(lab, "fig17", "Fig 17: a chatbot, OPT-13B, ShareGPT", claim, curves, lengths)]


def _fig15(lab: Lab) -> list[Picture]:
    import pandas as pd

    rows = []
    for result in fig15.judge(lab):
        _, lengths, what, *more = result.claim.id.split("/")
        if more or what.startswith("requests"):
            continue
        way, width = what.split("-")
        panel = {"parallel": "samples of a prompt", "beam": "beams of a search"}[way]
        label = f"{'Alpaca' if lengths == 'alpaca' else 'ShareGPT'}\n{width}"
        rows.append({"panel": panel, "label": label, "ours": result.got, "paper": result.claim.expected})
    frame = pd.DataFrame(rows)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.sharing import saved

        axes = canvas.subplots(1, 2)
        plotted = saved(frame, list(axes))
        legend_of(canvas, axes[0])
        return plotted

    claim = (
        "Blocks that several sequences of a request hold need to be stored once. Samples share their prompt, which is "
        "short on Alpaca and long on ShareGPT; beams share much of their answers, too. Which beams do is a model here, "
        "fitted to two beams on Alpaca."
    )
    many = [lab.measure([key])[0] for key in fig15.runs(lab)]
    sets = ", ".join(f"{name} {'as given' if lab.is_real(name) else 'stand-in'}" for name in fig15.RATES)
    caption = _caption(lab, "fig15", _requests(many), sets, POOL)
    return [Picture("fig15", "Fig 15: memory saved by sharing, OPT-13B", claim, caption, draw, 2.6)]


def _fig19a(lab: Lab) -> list[Picture]:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for size in fig19.SIZES:
        way = 1000 * fig19.swap_s(size)
        rows.append({"way": "out", "name": "one way", "block_size": size, "ms": way})
        rows.append({"way": "swap", "name": "out and in", "block_size": size, "ms": 2 * way})
        again = 1000 * fig19.recompute_s()
        rows.append({"way": "recompute", "name": "recompute", "block_size": size, "ms": again})
    frame = pd.DataFrame(rows)

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.sharing import by_way

        ax = canvas.subplots()
        plotted = by_way(frame, ax, "ms", "ms, modelled")
        legend_of(canvas, ax)
        return plotted

    claim = (
        "Small blocks are copied one by one, and each copy has a price of its own: swapping gets cheaper as blocks "
        "grow. Computing the tokens again does not know what a block is."
    )
    model = "OPT-13B, 256 tokens, PCIe 4: 25 GB/s and 3 us a copy · step model paper-13b · no randomness"
    return [Picture("fig19a", "Fig 19a: swapping and recomputing", claim, _caption(lab, "fig19a", model), draw, 2.4)]


def _fig19b(lab: Lab) -> list[Picture]:
    import pandas as pd

    keys = fig19.runs_b(lab)
    rows = [
        {"way": key.mode, "name": key.mode, "block_size": key.block_size, LATENCY: point[LATENCY]}
        for key, point in zip(keys, lab.measure(keys), strict=True)
    ]
    frame = pd.DataFrame(rows).groupby(["way", "name", "block_size"], as_index=False, sort=False).mean()

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.sharing import by_way

        ax = canvas.subplots()
        plotted = by_way(frame, ax, LATENCY, "s/token, simulated")
        legend_of(canvas, ax)
        return plotted

    claim = (
        "Latency of a whole workload whose victims are computed again, or swapped out and in. From a block size of 16 "
        "on both cost about the same; below, swapping suffers from its many small copies. Large blocks waste memory."
    )
    seeds = sorted({key.seed for key in keys})
    told = f"seeds 0 to {seeds[-1]}, means" if len(seeds) > 1 else "seed 0"
    lengths = f"sharegpt {'as given' if lab.is_real('sharegpt') else 'stand-in'} at {fig19.RATE_PER_S:g} req/s"
    caption = _caption(lab, "fig19b", _requests(lab.measure(keys)), told, lengths, "step model paper-13b")
    return [Picture("fig19b", "Fig 19b: swap against recomputation", claim, caption, draw, 2.4)]


SHARING: Final[Mapping[str, Callable[[Lab], list[Picture]]]] = {
    "fig14": _fig14,
    "fig15": _fig15,
    "fig16": _fig16,
    "fig17": _fig17,
    "fig19a": _fig19a,
    "fig19b": _fig19b,
}
