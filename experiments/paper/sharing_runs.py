"""Runs of requests with several sequences: parallel samples as groups or as requests of their own, and beams.

All use the artifact's rules in OPT-13B's pool, with host memory as large as the pool (the paper's bound): groups are
swapped, single sequences recomputed. Copies and swaps take the time that `experiments.sharing` gives them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, NamedTuple

from engine.core.catalogue import lookup
from engine.core.gpus import lookup_gpu
from experiments.paper.runs import BLOCK_SIZE, NUM_BLOCKS, Lengths, Measured, agree, artifact_spec, numbers_of
from experiments.sharing import BEAM_SPREAD, PCIE4, Transfers
from experiments.step_cost import BANDWIDTH_EFFICIENCY
from sim.ancestry import Ancestry
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import Trace, named_trace
from workloads.samples import as_requests

Way = Literal["parallel", "beam", "requests"]
Draw = Literal["own", "artifact"]
WORKLOADS: Final = {"sharegpt": "paper-fig12a", "alpaca": "paper-fig12d"}


def transfers(block_size: int = BLOCK_SIZE) -> Transfers:
    """Of OPT-13B on the paper's A100, over PCIe 4."""
    spec, (bandwidth, call) = lookup("opt-13b").kv_spec(), PCIE4
    on_device = BANDWIDTH_EFFICIENCY * lookup_gpu("a100-40g").bandwidth_bytes_per_s / 2
    return Transfers(spec.bytes_per_token * block_size, 2 * spec.layers_per_rank, bandwidth, call, on_device)


def spec_of(
    system: str, way: Way, width: int, *, num_blocks: int = NUM_BLOCKS, block_size: int = BLOCK_SIZE
) -> RunSpec:
    """The artifact's rules for requests of `width` sequences; samples that are requests share through the prefix
    cache, which the artifact has not."""
    spec = artifact_spec(system, num_blocks, block_size)
    as_group = way != "requests"
    pool = replace(
        spec.pool,
        enable_caching=system == "paged" and not as_group,
        host_blocks=num_blocks if system == "paged" and as_group else 0,
    )
    return replace(
        spec,
        pool=pool,
        limits=replace(spec.limits, preemption="auto" if as_group else "recompute"),
        num_samples=width if as_group else 1,
        beam_search=way == "beam",
        record_sharing=True,
        bytes_per_token=transfers(block_size).block_bytes // block_size,
    )


class GroupKey(NamedTuple):
    """One run: whose memory, how many sequences a request has and in what way, at which rate, for how long."""

    lengths: str
    system: str
    way: Way
    width: int
    rate_per_s: float
    seed: int
    duration_s: int
    window_s: tuple[float, float] | None = None
    """The run is cut where it ends; None: it is drained."""
    draw: Draw = "own"
    spread: float = BEAM_SPREAD

    def trace(self, lengths: Lengths) -> Trace:
        """What arrives, each request once."""
        name, rate = WORKLOADS[self.lengths], self.rate_per_s
        return named_trace(name, self.seed, dict(lengths), rate_per_s=rate, duration_s=self.duration_s, draw=self.draw)

    def run(self, lengths: Lengths) -> Measured:
        """Simulates it. AssertionError if its numbers contradict each other."""
        trace, spec, costs = self.trace(lengths), spec_of(self.system, self.way, self.width), transfers()
        if self.window_s is not None:
            spec = replace(spec, window_s=self.window_s, end_s=self.window_s[1])
        executor = CostExecutor(
            PAPER_13B,
            copy_block_ps=costs.copy_block_ps,
            swap_block_ps=costs.swap_block_ps,
            ancestry=Ancestry(self.seed, self.spread) if self.way == "beam" else None,
        )
        done = simulate(spec, as_requests(trace, self.width) if self.way == "requests" else trace, executor)
        agree(self, done)
        return numbers_of(done.summary)
