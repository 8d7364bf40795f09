"""Block sizes on the real engine, of two head shapes: what the kernel pays, what memory pays, and what comes of it.

Fig 18 has the kernel's side on an A100 for two block sizes and the whole for OPT-13B. Here both sides are measured at
every size on the device at hand, for a model with a KV head a query head and for one with a KV head for four of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from experiments.paper import fig18b, size_runs
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.kernels import of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab

NAME: Final = "block-size-engine"
LENGTHS: Final = "sharegpt"
MODELS: Final[Mapping[str, tuple[str, str]]] = {"mha": fig18b.MODELS, "gqa": ("llama-3-8b", "llama-3.2-1b")}
"""By head shape: in full, and quickly."""
KERNELS: Final = {"mha": "mha 8 x 4k", "gqa": "gqa 64 x 4k"}
"""Decode shapes of `bench kernel --case block-size` beside them."""
GOOD: Final = fig18b.GOOD[LENGTHS]
BASE, SLACK = size_runs.BASE, fig18b.SLACK
TICKS: Final = (1, 4, 16, 64, 256)
ENDS: Final = {1: "smallest", 256: "largest"}


def _curve(lab: Lab, heads: str) -> size_runs.Curve:
    return size_runs.curve(lab, MODELS[heads][lab.quick], LENGTHS)


def _lacking(lab: Lab, heads: str) -> str:
    return size_runs.lacking(lab, MODELS[heads][lab.quick], LENGTHS)


def _shown(lab: Lab) -> list[str]:
    """Head shapes of which there is a curve."""
    return [heads for heads in MODELS if not _lacking(lab, heads)]


def kernel_over_base(lab: Lab, heads: str) -> dict[int, float]:
    """Time of the paged decode kernel by block size over that at 16; empty without measurements of kernels."""
    if lab.kernels.lacking():
        return {}
    found = of(lab.kernels.rows("block-size"), "pagelab")
    times = {size: row["median_s"] for (label, size), row in found.items() if label == KERNELS[heads]}
    return {size: time / times[BASE] for size, time in sorted(times.items())} if BASE in times else {}


def _claims(heads: str) -> tuple[Claim, list[Claim]]:
    deviations = ("own-rate", "whole-blocks", "stand-in")
    paper = heads == "mha"
    source = f"Fig 18b: {GOOD[0]} to {GOOD[-1]} are best" if paper else "own: what the paper says, for grouped heads"
    metric = f"{heads}: least latency of block sizes {GOOD[0]} to {GOOD[-1]} over the least of all, less one"
    confidence = "A" if paper else "R"
    best = Claim(f"{NAME}/{heads}/best", metric, SLACK, "%", 0.0, source, confidence, deviations, at_most=True)
    why = "no number in the paper; the note says what limits it"
    ends = [
        Claim(f"{NAME}/{heads}/{name}", f"{heads}: latency at {size} over that at {BASE}", 100.0, "%", source=source,
              confidence=confidence, deviations=deviations, why_reported=why)
        for size, name in ENDS.items()
    ]  # fmt: skip
    return best, ends


def judge(lab: Lab) -> list[Result]:
    """The sizes that the paper calls best against all, and what is lost at both ends."""
    results: list[Result] = []
    for heads in MODELS:
        best, ends = _claims(heads)
        if reason := _lacking(lab, heads):
            results += [not_here(claim, reason) for claim in (best, *ends)]
            continue
        found = _curve(lab, heads)
        seconds = found.latency_s
        least = min(seconds[size] for size in GOOD if size in seconds)
        note = f"{MODELS[heads][lab.quick]} on {found.device}, {found.rate_per_s:.2f} requests/s"
        results.append(exact(best, 100 * (least / min(seconds.values()) - 1), note))
        for size, claim in zip(ENDS, ends, strict=True):
            results.append(exact(claim, 100 * seconds[size] / seconds[BASE], _limits(lab, heads, size)))
    return results


def _limits(lab: Lab, heads: str, size: int) -> str:
    """What a size costs beside the base: the kernel's time, memory, host."""
    rows, kernel = _curve(lab, heads).by_size, kernel_over_base(lab, heads).get(size)
    one, base = rows[size], rows[BASE]
    said = [f"kernel {kernel:.3f} times"] if kernel else []
    said += [
        f"{100 * one['kv_internal_frac']:.1f} % of the pool internal against {100 * base['kv_internal_frac']:.1f} %",
        f"{one['num_preemptions']:g} preemptions against {base['num_preemptions']:g}",
        f"host gap {1e3 * one['mean_host_gap_s']:.2f} against {1e3 * base['mean_host_gap_s']:.2f} ms a step",
    ]
    return ", ".join(said)


def _rows(lab: Lab) -> list[dict[str, Any]]:
    """A row a head shape and block size: what is shown."""
    rows = []
    for heads in _shown(lab):
        found, kernel = _curve(lab, heads), kernel_over_base(lab, heads)
        for size, row in found.by_size.items():
            rows.append(
                {
                    "heads": heads,
                    "block_size": size,
                    "latency_over_16": row["mean_normalized_latency_s"]
                    / found.by_size[BASE]["mean_normalized_latency_s"],
                    "kernel_over_16": kernel.get(size),
                    "kv_internal_frac": row["kv_internal_frac"],
                    "output_tok_per_s": row["output_tok_per_s"],
                    "mean_batch_size": row["mean_batch_size"],
                    "mean_host_gap_s": row["mean_host_gap_s"],
                    "num_preemptions": row["num_preemptions"],
                }
            )
    return rows


def tables(lab: Lab) -> list[Table]:
    """Both sides at every size."""
    if not (rows := _rows(lab)):
        return []
    where = "; ".join(f"{heads}: {MODELS[heads][lab.quick]} on {_curve(lab, heads).device}" for heads in _shown(lab))
    title = f"{LENGTHS}, {size_runs.KV_TOKENS:,} token slots, at nine tenths of what size {BASE} sustains"
    return [Table(f"{NAME}/sizes", title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), where)]


def _command(lab: Lab) -> str:
    words = ["pagelab reproduce", NAME]
    words += ["--quick"] if lab.quick else []
    for flag, folder in (("--block-sizes", lab.block_sizes), ("--kernels", lab.kernels.stored)):
        words += [flag, str(folder)] if folder is not None else []
    return " ".join(words)


def pictures(lab: Lab) -> list[Picture]:
    """Latency, kernel and waste over the block size, both head shapes; grey: the sizes that the paper calls best."""
    if not (rows := _rows(lab)):
        return []
    shown = _shown(lab)
    panels = {"latency_over_16": "latency (16 = 1)", "kernel_over_16": "kernel time (16 = 1)"}

    def draw(canvas: Canvas) -> pd.DataFrame:
        import pandas as pd

        from experiments.style import log2_axis, look_of, percent_axis

        frame = pd.DataFrame(rows)
        axes = canvas.subplots(1, 3)
        for ax, column in zip(axes, [*panels, "kv_internal_frac"], strict=True):
            for heads, name in (("mha", "orca-oracle"), ("gqa", "paged")):
                if heads not in shown:
                    continue
                one, look = frame[frame["heads"] == heads].dropna(subset=[column]), look_of(name)
                ax.plot(one["block_size"], one[column], color=look.colour, linestyle=look.line, marker=look.marker,
                        markersize=4.5, label=f"{heads} ({MODELS[heads][lab.quick]})")  # fmt: skip
            ax.axvspan(GOOD[0], GOOD[-1], color="#00000012", linewidth=0)
            log2_axis(ax, pd.Series(TICKS), "block size (tokens)")
            ax.set_ylim(0, 1.15 * frame[column].max() if frame[column].notna().any() else 1)
            ax.set_ylabel(panels.get(column, ""))
        percent_axis(axes[2].yaxis, "slots never filled", whole=False)
        canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return frame

    found = _curve(lab, shown[0])
    caption = " · ".join(
        [
            f"{LENGTHS} lengths, seed 0",
            "traces " + ", ".join(_curve(lab, heads).by_size[BASE]["trace_sha256"][:8] for heads in shown),
            f"{size_runs.KV_TOKENS:,} token slots · {found.device}",
            _command(lab),
        ]
    )
    claim = (
        "Small blocks cost the kernel and the host a little and memory nothing; large ones cost memory: the empty end "
        "of every request's last block. Grey: the sizes that the paper calls best."
    )
    return [Picture(NAME, "Block sizes on the engine", claim, caption, draw, 2.6)]


BLOCK_SIZE_ENGINE: Final = Experiment(NAME, "Block sizes on the real engine, two head shapes", judge, tables=tables)
