"""Fig 18a: the latency of the attention kernel, paged against contiguous, and what the block size does to it."""

from __future__ import annotations

import math
from typing import Final

from experiments.bench.cases import BLOCK_SIZES, shapes_of
from experiments.bench.rows import geometric_mean
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.kernels import Row, of
from experiments.paper.runs import Lab

CASE: Final = "fig18a"
PAPER_FRAC: Final = (0.20, 0.26)
OURS, TWIN, TWIN_EQUAL = "pagelab", "pagelab-twin", "pagelab-twin-equal"
PEERS: Final = (OURS, TWIN, TWIN_EQUAL, "torch-flash", "torch-cudnn", "fa3", "fa3-contiguous")
SIZES_CASE: Final = "block-size"
MOST_OVER_16: Final = 0.15
BASE: Final = 16


def _claim(batch: int, context: int) -> Claim:
    return Claim(
        f"fig18a/batch-{batch}/context-{context}",
        "latency of the paged kernel over contiguous, at most the paper's",
        100 * PAPER_FRAC[1],
        "%",
        0.0,
        "Fig 18a: 20 to 26 % slower",
        "A",
        ("own-twin",),
        at_most=True,
    )


def judge(lab: Lab) -> list[Result]:
    """Best against best: paging may cost at most the paper's upper end."""
    shapes = {(shape.num_seqs, shape.seq_lens[0]): shape for shape in shapes_of(CASE)}
    lacking = lab.kernels.lacking()
    if lacking:
        return [not_here(_claim(*key), lacking) for key in shapes]
    rows = lab.kernels.rows(CASE)
    ours, twin, equal = (of(rows, peer) for peer in (OURS, TWIN, TWIN_EQUAL))
    results = []
    for key, shape in shapes.items():
        place = shape.label, shape.block_size
        if place not in ours or place not in twin:
            results.append(_absent(_claim(*key), rows, shape.label))
            continue
        over = _over(ours[place], twin[place])
        flight = f"at equal bytes in flight {_over(ours[place], equal[place]):+.1%}; " if place in equal else ""
        results.append(exact(_claim(*key), 100 * over, flight + lab.kernels.origin(CASE)))
    return results


def _absent(claim: Claim, rows: list[Row], label: str) -> Result:
    """A kernel of ours that failed is a miss; rows that nobody asked for (`--quick`) are just not there."""
    failed = [row for row in rows if row["shape"] == label and row["peer"].startswith(OURS) and row["status"] != "ok"]
    if failed:
        return exact(claim, math.nan, f"{failed[0]['peer']} {failed[0]['status']}: {failed[0]['reason']}")
    return not_here(claim, f"no rows of {label} among the measurements")


def _over(one: Row, other: Row) -> float:
    return float(one["median_s"] / other["median_s"] - 1)


def tables(lab: Lab) -> list[Table]:
    """Microseconds of everybody."""
    if lab.kernels.lacking():
        return []
    return [
        _table(
            "fig18a/latency", "Latency of the attention kernel, µs", lab.kernels.rows(CASE), lab.kernels.origin(CASE)
        )
    ]


def _table(name: str, title: str, rows: list[Row], note: str) -> Table:
    by_peer = {peer: found for peer in PEERS if (found := of(rows, peer))}
    places = list(dict.fromkeys(place for found in by_peer.values() for place in found))
    cells: list[tuple[Cell, ...]] = []
    for place in places:
        times: list[Cell] = [found[place]["median_s"] * 1e6 if place in found else None for found in by_peer.values()]
        cells.append((place[0], place[1], *times))
    return Table(name, title, ("shape", "block size", *by_peer), tuple(cells), note)


FIG18A: Final = Experiment("fig18a", "Fig 18a: paged against contiguous attention kernel", judge, tables=tables)


def _size_claim(label: str) -> Claim:
    return Claim(
        f"kernel-block-size/{label.replace(' ', '')}",
        f"slowest block size over {BASE}, at most",
        100 * MOST_OVER_16,
        "%",
        0.0,
        "chapter 4.3.4: below 16 the table dominates; here it must not",
        "R",
        at_most=True,
    )


def judge_sizes(lab: Lab) -> list[Result]:
    """The paged kernel's latency at every block size against that at 16."""
    labels = list(dict.fromkeys(shape.label for shape in shapes_of(SIZES_CASE)))
    lacking = lab.kernels.lacking()
    if lacking:
        return [not_here(_size_claim(label), lacking) for label in labels]
    ours = of(lab.kernels.rows(SIZES_CASE), OURS)
    results = []
    for label in labels:
        times = {size: ours[label, size]["median_s"] for size in BLOCK_SIZES if (label, size) in ours}
        if len(times) < len(BLOCK_SIZES):
            results.append(_absent(_size_claim(label), lab.kernels.rows(SIZES_CASE), label))
            continue
        ratios = {size: time / times[BASE] for size, time in times.items()}
        most = 100 * (max(ratios.values()) - 1)
        curve = ", ".join(f"{size}: {ratio:.3f}" for size, ratio in ratios.items())
        mean = geometric_mean(ratios.values())
        note = f"over {BASE}: {curve}; geometric mean {mean:.3f}; {lab.kernels.origin(SIZES_CASE)}"
        results.append(exact(_size_claim(label), most, note))
    return results


def size_tables(lab: Lab) -> list[Table]:
    """The curves."""
    if lab.kernels.lacking():
        return []
    rows, title = lab.kernels.rows(SIZES_CASE), "Latency of the decode kernel by block size, µs"
    return [_table("kernel-block-size/latency", title, rows, lab.kernels.origin(SIZES_CASE))]


KERNEL_BLOCK_SIZE: Final = Experiment(
    "kernel-block-size", "Kernel latency by block size", judge_sizes, tables=size_tables
)
