"""Decode over a shared prefix: what it gains to attend to it once for all sequences, by the length of the prefix."""

from __future__ import annotations

import math
from typing import Final

from experiments.bench.cases import SHARED_CURVE, SHARED_RATIO, shapes_of, shared_decode
from experiments.bench.ours import PAGED
from experiments.bench.ours_shared import SHARED
from experiments.bench.shapes import Shape
from experiments.exits import UsageError
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Cell, Experiment, Table
from experiments.paper.kernels import Row, of
from experiments.paper.runs import Lab

CASE: Final = "shared-prefix"
NAME: Final = "shared-prefix-decode"
FA3, TWO_CALLS = "fa3", "fa3-two-calls"
PEERS: Final = (SHARED, PAGED, FA3, TWO_CALLS, "flashinfer", "vllm-triton")
MOST_OF_FA3_FRAC: Final = 0.5
"""Twice as fast, the merge included."""
GOAL: Final = shared_decode(*SHARED_RATIO[0], 16).label


def _claim(against: str, label: str) -> Claim:
    subject = label.removeprefix("gqa ").replace(" ", "")
    if against == FA3:
        metric = "time over FlashAttention-3's paged decode, which knows no prefix, at most"
        source = "own goal: twice as fast; FlashAttention-3 takes 326 µs on an H200"
        return Claim(f"{NAME}/fa3/{subject}", metric, 100 * MOST_OF_FA3_FRAC, "%", 0.0, source, "R", at_most=True)
    metric, source = "time over the plain paged kernel's, at most", "own goal: sharing never costs where it is used"
    return Claim(f"{NAME}/plain/{subject}", metric, 100.0, "%", 0.0, source, "R", at_most=True)


def _judged() -> list[tuple[str, Shape]]:
    """Against FlashAttention-3 where the goal is, against the plain kernel everywhere."""
    shapes = shapes_of(CASE)
    return [(FA3, shape) for shape in shapes if shape.label == GOAL] + [(PAGED, shape) for shape in shapes]


def _lacking(lab: Lab) -> str:
    """Why nothing can be judged: no device, or a stored result from before there was this case."""
    reason = lab.kernels.lacking()
    if reason:
        return reason
    try:
        lab.kernels.rows(CASE)
    except UsageError as error:
        return str(error)
    return ""


def judge(lab: Lab) -> list[Result]:
    """Medians of one session against each other."""
    lacking = _lacking(lab)
    if lacking:
        return [not_here(_claim(against, shape.label), lacking) for against, shape in _judged()]
    rows = lab.kernels.rows(CASE)
    return [_result(rows, against, shape, lab.kernels.origin(CASE)) for against, shape in _judged()]


def _result(rows: list[Row], against: str, shape: Shape, origin: str) -> Result:
    claim, label = _claim(against, shape.label), shape.label
    failed = [r for r in rows if r["shape"] == label and r["peer"] in (SHARED, PAGED) and r["status"] != "ok"]
    if failed:
        return exact(claim, math.nan, f"{failed[0]['peer']} {failed[0]['status']}: {failed[0]['reason']}")
    place = label, shape.block_size
    ours, other = of(rows, SHARED).get(place), of(rows, against).get(place)
    if ours is None or other is None:
        return not_here(claim, f"no rows of {SHARED} and {against} on {label} among the measurements")
    over = float(ours["median_s"] / other["median_s"])
    times = f"{ours['median_s'] * 1e6:.1f} against {other['median_s'] * 1e6:.1f} µs: {1 / over:.2f} times as fast"
    return exact(claim, 100 * over, f"{times}; {origin}")


def tables(lab: Lab) -> list[Table]:
    """Microseconds of everybody, and the curve over the prefix: how many times as fast."""
    if _lacking(lab):
        return []
    rows, note = lab.kernels.rows(CASE), lab.kernels.origin(CASE)
    by_peer = {peer: found for peer in PEERS if (found := of(rows, peer))}
    shapes = [shape for shape in shapes_of(CASE) if any((shape.label, shape.block_size) in f for f in by_peer.values())]
    latency: list[tuple[Cell, ...]] = []
    for shape in shapes:
        measured = [peer.get((shape.label, shape.block_size)) for peer in by_peer.values()]
        times: list[Cell] = [row["median_s"] * 1e6 if row else None for row in measured]
        latency.append((shape.label, *times))
    title = "Decode over a shared prefix, µs (fa3-two-calls: without the merge)"
    curve = Table(f"{NAME}/latency", title, ("shape", *by_peer), tuple(latency), note)
    return [curve, _speedups(by_peer, note)]


def _speedups(by_peer: dict[str, dict[tuple[str, int], Row]], note: str) -> Table:
    lines: list[tuple[Cell, ...]] = []
    others = [peer for peer in by_peer if peer != SHARED]
    for batch, prefix, own in SHARED_CURVE:
        place = shared_decode(batch, prefix, own, 16).label, 16
        ours = by_peer.get(SHARED, {}).get(place)
        if ours is not None:
            times = [by_peer[peer].get(place) for peer in others]
            over: list[Cell] = [row["median_s"] / ours["median_s"] if row else None for row in times]
            lines.append((prefix, *over))
    batch, _, own = SHARED_CURVE[0]
    title = f"Times as fast as others, {batch} sequences with {own} tokens of their own"
    return Table(f"{NAME}/curve", title, ("shared tokens", *others), tuple(lines), note)


SHARED_PREFIX_DECODE: Final = Experiment(NAME, "Decode over a shared prefix", judge, tables=tables)
