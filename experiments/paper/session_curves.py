"""Curves over request rate of workloads with sessions or shared prefixes, and the rates that systems sustain there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from experiments.paper.experiment import Cell, Table
from experiments.paper.rates import LATENCY, MAX_MORE, THRESHOLD_S, THRESHOLDS_S, Curve
from experiments.paper.runs import NUM_BLOCKS, Lab, Lengths, Measured, agree, artifact_spec, numbers_of
from experiments.paper.sharing_runs import transfers
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import Trace

Rates = Mapping[str, tuple[float, ...]]
CACHED: Final = "paged"
"""Keeps shared prefixes, as the paper's system does with those that its provider registered; reservations cannot."""


class SessionKey(NamedTuple):
    """One run of a session workload, drained."""

    workload: str
    system: str
    rate_per_s: float
    seed: int
    duration_s: int
    shares: bool = True
    """Whether paged memory keeps prefixes."""

    def trace(self, lengths: Lengths) -> Trace:
        """Its first `duration_s` seconds."""
        from workloads import session_trace

        given = {name: pairs for name, pairs in lengths.items() if name == "sharegpt" and self.workload.endswith("17")}
        trace = session_trace(self.workload, self.seed, None, given or None, rate_per_s=self.rate_per_s)
        return trace.window(0, self.duration_s)

    def spec(self) -> RunSpec:
        """The artifact's rules, and the prefix cache of ours where it is asked for."""
        spec = artifact_spec(self.system, NUM_BLOCKS)
        pool = replace(spec.pool, enable_caching=self.shares and self.system == CACHED)
        return replace(spec, pool=pool, record_sharing=True, bytes_per_token=transfers(1).block_bytes)

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it. AssertionError if its numbers contradict each other."""
        done = simulate(self.spec(), self.trace(lengths), CostExecutor(PAPER_13B))
        agree(self, done)
        return numbers_of(done.summary)


class Panel(NamedTuple):
    """One workload: the rates of each system, ascending, in a whole and in a quick run."""

    name: str
    workload: str
    duration_s: int
    grid: Rates
    """The artifact's."""
    quick_duration_s: int
    quick: Rates
    shares: bool = True

    def rates(self, lab: Lab) -> Rates:
        """Those of this run."""
        return self.quick if lab.quick else self.grid

    def key(self, lab: Lab, system: str, rate: float) -> SessionKey:
        """Seed 0: curves of these lengths are long to replay."""
        duration = self.quick_duration_s if lab.quick else self.duration_s
        return SessionKey(self.workload, system, rate, 0, duration, self.shares)

    def runs(self, lab: Lab) -> list[SessionKey]:
        """Every system and rate."""
        return [self.key(lab, system, rate) for system, rates in self.rates(lab).items() for rate in reversed(rates)]

    def curve(self, lab: Lab, system: str) -> Curve:
        """At the panel's rates, and beyond them in steps of the last gap until it passes the threshold."""
        rates = list(self.rates(lab)[system])
        points = lab.measure([self.key(lab, system, rate) for rate in rates])
        step = rates[-1] - rates[-2]
        for _ in range(MAX_MORE):
            if points[-1][LATENCY] > THRESHOLD_S:
                break
            rates.append(round(rates[-1] + step, 6))
            points += lab.measure([self.key(lab, system, rates[-1])])
        return Curve(tuple(rates), tuple(points))

    def ratio(self, lab: Lab, system: str, threshold_s: float = THRESHOLD_S) -> float | None:
        """Paged's sustained rate over the system's."""
        ours, theirs = (self.curve(lab, name).sustained(threshold_s) for name in (CACHED, system))
        return ours / theirs if ours and theirs else None

    def tables(self, lab: Lab, title: str) -> list[Table]:
        """What each system sustains, and every point."""
        rates: list[tuple[Cell, ...]] = []
        points: list[tuple[Cell, ...]] = []
        for system, asked in self.rates(lab).items():
            curve = self.curve(lab, system)
            cells = [(curve.sustained(limit), self.ratio(lab, system, limit)) for limit in THRESHOLDS_S]
            rates.append((system, *(value for pair in cells for value in pair)))
            for rate, point in zip(curve.rates, curve.points, strict=True):
                saved = 100 * point["iter_sharing_saving_frac"]
                told = "yes" if rate in self.grid.get(system, ()) else "added"
                hits = 100 * point.get("prefix_hit_frac", 0.0)
                listed = "" if rate in asked else " (until the threshold)"
                points.append(
                    (system, f"{rate:g}{listed}", told, point[LATENCY], point["mean_batch_size"], saved, hits)
                )
        heads = [name for limit in THRESHOLDS_S for name in (f"req/s at {limit:g} s/token", "paged over it")]
        columns = (
            "system",
            "req/s",
            "artifact's",
            "s/token",
            "running requests",
            "saved by sharing %",
            "prefix hits %",
        )
        return [
            Table(f"{self.name}/rates", f"{title}: rates that each system sustains", ("system", *heads), tuple(rates)),
            Table(f"{self.name}/curves", f"{title}: every point", columns, tuple(points)),
        ]
