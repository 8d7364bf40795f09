"""Normalized latency against request rate: the runs of Fig 12, their curves, and the rate that each system sustains.

Sustained is the largest rate before the curve passes a threshold, which the paper never states: here 0.5 s a token, by
interpolation that is linear in the rate and in the logarithm of the latency; 0.2 and 1.0 are shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from experiments.paper.panels import FT, HOUR, PANELS, Panel
from experiments.paper.runs import BLOCK_SIZE, MAX_MODEL_LEN, SYSTEMS, Lab, Lengths, Measured, agree, artifact_spec
from experiments.paper.runs import numbers_of as numbers
from sim.cost import PAPER_MODELS
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import Trace, named_trace

THRESHOLD_S: Final = 0.5
THRESHOLDS_S: Final = (0.2, THRESHOLD_S, 1.0)
LATENCY: Final = "mean_normalized_latency_s"
ALL_SYSTEMS: Final = (FT, *SYSTEMS)
MAX_SEEDS: Final = {"sharegpt": 5, "alpaca": 2}
"""Hours of 40 requests a second are long to replay, and large numbers of requests leave little noise."""
MAX_MORE: Final = 12
"""Rates that may be tried beyond the last before a curve counts as flat."""


class RateKey(NamedTuple):
    """One run of one panel, drained."""

    panel: str
    system: str
    rate_per_s: float
    seed: int
    duration_s: int

    @property
    def trace_name(self) -> str:
        """The workload that arrives."""
        return PANELS[self.panel].workload

    def trace(self, lengths: Lengths) -> Trace:
        """What arrives."""
        return named_trace(
            self.trace_name, self.seed, dict(lengths), rate_per_s=self.rate_per_s, duration_s=self.duration_s
        )

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it. AssertionError if its numbers contradict each other."""
        panel = PANELS[self.panel]
        done = simulate(spec_of(panel, self.system), self.trace(lengths), CostExecutor(PAPER_MODELS[panel.step_model]))
        agree(self, done)
        return numbers(done.summary)


def spec_of(panel: Panel, system: str) -> RunSpec:
    """The artifact's rules in the panel's pool."""
    if system == FT:
        return fastertransformer(panel.num_blocks, panel.max_batch)
    return artifact_spec(system, panel.num_blocks)


def fastertransformer(num_blocks: int, max_batch: int) -> RunSpec:
    """Request-level batches of at most `max_batch`, whole prompts whatever their length, and for each request a
    contiguous reservation to the most that lets so many of them into the pool: 2,048 tokens, or fewer for large
    batches. What is longer is rejected."""
    spec = artifact_spec("contiguous-max-first-fit", num_blocks, max_num_seqs=max_batch)
    longest = min(MAX_MODEL_LEN, num_blocks // max_batch * BLOCK_SIZE)
    limits = replace(spec.limits, max_model_len=longest, max_num_batched_tokens=max_batch * longest, batching="request")
    return replace(spec, pool=replace(spec.pool, max_model_len=longest), limits=limits)


class Curve(NamedTuple):
    """One system in one panel, one seed."""

    rates: tuple[float, ...]
    points: tuple[Measured, ...]

    @property
    def latencies(self) -> tuple[float, ...]:
        """Mean normalized latency, s a token."""
        return tuple(point[LATENCY] for point in self.points)

    def sustained(self, threshold_s: float = THRESHOLD_S) -> float | None:
        """Requests a second."""
        return sustained(self.rates, self.latencies, threshold_s)


def sustained(rates: Sequence[float], latencies: Sequence[float], threshold_s: float) -> float | None:
    """The rate at which the curve first passes the threshold; None if it starts above it or never reaches it."""
    if latencies[0] > threshold_s:
        return None
    for (low, below), (high, above) in pairwise(zip(rates, latencies, strict=True)):
        if above > threshold_s:
            share = math.log(threshold_s / below) / math.log(above / below)
            return low + (high - low) * share
    return None


def seeds(lab: Lab, panel: Panel) -> range:
    """As many as the lab has, up to what such runs are worth; one in a quick one."""
    return range(1 if lab.quick else min(lab.num_seeds, MAX_SEEDS[panel.lengths]))


def systems(lab: Lab, panel: Panel) -> list[str]:
    """Those with rates; a quick run leaves out the baseline that needs an hour for a few requests."""
    return [system for system in ALL_SYSTEMS if rates_of(lab, panel, system)]


def rates_of(lab: Lab, panel: Panel, system: str) -> tuple[float, ...]:
    """Ascending."""
    if lab.quick:
        return panel.quick.get(system, ())
    return (*panel.grid[system], *panel.added.get(system, ()))


def key(lab: Lab, panel: Panel, system: str, rate_per_s: float, seed: int) -> RateKey:
    """The artifact's FasterTransformer always runs for an hour."""
    duration = panel.quick_duration_s if lab.quick else HOUR if system == FT else panel.duration_s
    return RateKey(panel.name, system, rate_per_s, seed, duration)


def runs(lab: Lab, panel: Panel) -> list[RateKey]:
    """Every system, rate and seed; the long ones first, so that several processes end together."""
    wanted = [
        key(lab, panel, system, rate, seed)
        for seed in seeds(lab, panel)
        for system in systems(lab, panel)
        for rate in rates_of(lab, panel, system)
    ]
    return sorted(wanted, key=lambda one: -one.rate_per_s)


def curve(lab: Lab, panel: Panel, system: str, seed: int) -> Curve:
    """At the panel's rates, and beyond them in steps of the last gap until the curve passes the threshold."""
    rates = list(rates_of(lab, panel, system))
    points = lab.measure([key(lab, panel, system, rate, seed) for rate in rates])
    step = rates[-1] - rates[-2]
    for _ in range(MAX_MORE):
        if points[-1][LATENCY] > THRESHOLD_S:
            break
        rates.append(round(rates[-1] + step, 6))
        points += lab.measure([key(lab, panel, system, rates[-1], seed)])
    return Curve(tuple(rates), tuple(points))


def curves(lab: Lab, panel: Panel, system: str) -> list[Curve]:
    """One a seed."""
    return [curve(lab, panel, system, seed) for seed in seeds(lab, panel)]


def sustained_by_seed(lab: Lab, panel: Panel, system: str, threshold_s: float = THRESHOLD_S) -> list[float] | None:
    """One rate a seed; None if any of them has none."""
    found = [one.sustained(threshold_s) for one in curves(lab, panel, system)]
    rates = [rate for rate in found if rate is not None]
    return rates if len(rates) == len(found) else None


def ratios(lab: Lab, panel: Panel, system: str, threshold_s: float = THRESHOLD_S) -> list[float] | None:
    """Paged's sustained rate over the system's, a seed each."""
    paged, other = (sustained_by_seed(lab, panel, name, threshold_s) for name in ("paged", system))
    if paged is None or other is None:
        return None
    return [ours / theirs for ours, theirs in zip(paged, other, strict=True)]
