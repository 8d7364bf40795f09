"""`sim_vs_gpu`: how far the simulator with a calibrated step model is from the engine, load by load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from experiments.fidelity.stored import Row, Stored, read_all
from experiments.paper.claims import Claim, Result, exact, not_here
from experiments.paper.experiment import Experiment, Table
from experiments.paper.runs import Lab

NAME: Final = "sim_vs_gpu"
BELOW: Final = (0.4, 0.7)
"""Loads below saturation at which latencies are judged; there throughput is the rate of arrival and proves nothing."""
ABOVE: Final = 1.5
NEAR: Final = (0.9, 1.1)
"""Here a bias of 1 % in step times becomes 10 to 40 % of a queue: reported, not judged."""
LATENCIES: Final = ("ttft", "tpot", "e2e")
MEAN_BELOW, TAIL_BELOW, ALL_ABOVE, RATE_ABOVE = 3.0, 5.0, 5.0, 2.0
"""Per cent."""
SHARES: Final = ("kv_live_frac", "kv_reserved_frac", "kv_internal_frac", "kv_external_frac")
POINTS: Final = 1.0
PREEMPTIONS: Final = 5.0
SOURCE: Final = "aim of this project"


def error_percent(simulated: Row, engine: Sequence[Row], name: str) -> float:
    """Of the simulator against the mean of the engine's runs."""
    truth = sum(row[name] for row in engine) / len(engine)
    return float(100 * (simulated[name] / truth - 1)) if truth else float(100 * (simulated[name] != 0))


def spread_percent(engine: Sequence[Row], name: str) -> float:
    """How far the engine's own runs of the same trace are apart."""
    values = [row[name] for row in engine]
    mean = sum(values) / len(values)
    return float(100 * (max(values) - min(values)) / mean) if mean else 0.0


def _tolerance(load: float, which: str, spread: float) -> float:
    if load > 1:
        return ALL_ABOVE
    if which == "mean":
        return MEAN_BELOW
    return max(TAIL_BELOW, 2 * spread) if which == "p99" else TAIL_BELOW


def judge(lab: Lab) -> list[Result]:
    """Latencies at every load, throughput above saturation, and what memory was used for."""
    if lab.fidelity is None:
        lacking = "no runs of engine and simulator: --fidelity FOLDER judges stored ones"
        metric = "errors of the simulator against the engine"
        return [not_here(Claim(NAME, metric, 0.0, "%", source=SOURCE, confidence="R"), lacking)]
    results: list[Result] = []
    for found in _stored(lab):
        for allocator, load, engine, simulated in found.pairs():
            place = f"{NAME}/{found.about['wanted']['lengths']}/{allocator}/{load}"
            results += _latencies(found, place, load, engine, simulated)
            results += _memory(found, place, load, engine, simulated)
    return results


def _stored(lab: Lab) -> list[Stored]:
    folder = lab.fidelity
    assert folder is not None
    return lab.once(NAME, lambda: read_all(folder))


def _latencies(found: Stored, place: str, load: float, engine: list[Row], simulated: Row) -> list[Result]:
    names = [(which, f"{which}_{latency}_s") for latency in LATENCIES for which in ("mean", "p95", "p99")]
    if load > 1:
        names = [(which, name) for which, name in names if which != "p95"] + [("rate", "output_tok_per_s")]
    results = []
    for which, name in names:
        spread = spread_percent(engine, name)
        tolerance = RATE_ABOVE if which == "rate" else _tolerance(load, which, spread)
        claim = Claim(f"{place}/{name}", f"{name}: error at {load} of saturation", 0.0, "%", tolerance)
        results.append(
            _result(found, claim, load, error_percent(simulated, engine, name), _told(name, engine, simulated))
        )
    return results


def _memory(found: Stored, place: str, load: float, engine: list[Row], simulated: Row) -> list[Result]:
    results = []
    for name in SHARES:
        truth = sum(row[name] for row in engine) / len(engine)
        claim = Claim(f"{place}/{name}", f"{name}: difference", 0.0, "points", POINTS)
        points = 100 * (simulated[name] - truth)
        results.append(_result(found, claim, load, points, f"{100 * truth:.2f} % on the engine"))
    name = "num_preemptions"
    claim = Claim(f"{place}/{name}", f"{name}: error", 0.0, "%", PREEMPTIONS)
    results.append(_result(found, claim, load, error_percent(simulated, engine, name), _told(name, engine, simulated)))
    return results


def _result(found: Stored, claim: Claim, load: float, got: float, note: str) -> Result:
    near = "near saturation a bias of 1 % in step times is 10 to 40 % of the queue" if load in NEAR else ""
    device = found.about.get("machine", {}).get("device", "a CPU")
    claim = replace(claim, source=SOURCE, confidence="R", why_reported=near)
    return exact(claim, got, f"{note}; {device}, stored in {found.folder.name}")


def _told(name: str, engine: Sequence[Row], simulated: Row) -> str:
    runs = ", ".join(f"{row[name]:.4g}" for row in engine)
    return f"engine {runs}; simulated {simulated[name]:.4g}"


def shown(name: str) -> str:
    """Times are shown in milliseconds."""
    return f"{name.removesuffix('_s')}, ms" if name.endswith("_s") and scale(name) != 1 else name


def scale(name: str) -> float:
    """Of what is shown to what is stored."""
    return 1000.0 if name.endswith(tuple(f"_{latency}_s" for latency in LATENCIES)) else 1.0


def tables(lab: Lab) -> list[Table]:
    """Errors by load, and the engine's own spread."""
    return [] if lab.fidelity is None else [_table(found) for found in _stored(lab)]


def _table(found: Stored) -> Table:
    names = [f"{which}_{latency}_s" for latency in LATENCIES for which in ("mean", "p50", "p95", "p99")]
    rows = []
    for allocator, load, engine, simulated in found.pairs():
        for name in [*names, "output_tok_per_s"]:
            times, truth = scale(name), sum(row[name] for row in engine) / len(engine)
            spread = spread_percent(engine, name) if len(engine) > 1 else None
            error = error_percent(simulated, engine, name)
            rows.append((allocator, load, shown(name), times * truth, times * simulated[name], error, spread))
    wanted = found.about["wanted"]
    note = (
        f"{wanted['num_requests']:,} requests of {wanted['lengths']} lengths, {wanted['model']} in "
        f"{wanted['kv_tokens']:,} token slots; calibration {found.about['calibration_sha256'][:12]}"
    )
    heads = ("allocator", "load", "metric", "engine", "simulated", "error %", "engine's spread %")
    name = f"{NAME}/{wanted['lengths']}"
    return Table(name, f"The simulator against the engine, {wanted['lengths']}", heads, tuple(rows), note)


SIM_VS_GPU = Experiment(NAME, "The simulator held against the engine", judge, tables=tables)
