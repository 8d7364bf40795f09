"""Metrics of runs that watch more than every run does: shared and swapped blocks, the lives of cached ones, and several
replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.metrics import HIGHER, LOWER, PS, Metric, mean, quantile, ratio

if TYPE_CHECKING:
    from sim.residency import Residency

FLEET_METRICS: tuple[Metric, ...] = (
    Metric("num_replicas", "replicas", "pools, each with a scheduler of its own", "replicas"),
    Metric(
        "load_imbalance",
        "load imbalance",
        "max over mean of the replicas' requests running and in the queue, each a time-weighted mean over W",
        "1",
    ),
    Metric("token_imbalance", "token imbalance", "max over mean of the replicas' tokens emitted in W", "1"),
)
"""Columns that only runs of several replicas have. Counts, tokens and requests of such a run are the whole fleet's,
`head_blocked_s` is in replica-seconds, shares are of the fleet's capacity."""

SHARING_METRICS: tuple[Metric, ...] = (
    Metric("mean_logical_blocks", "logical blocks", "entries of running sequences' block tables, over time", "blocks"),
    Metric("mean_physical_blocks", "physical blocks", "blocks with an owner, each once, over time", "blocks", LOWER),
    Metric(
        "sharing_saving_frac", "saved by sharing", "1 - sum of physical / sum of logical blocks, over time", "1", HIGHER
    ),
    Metric(
        "iter_sharing_saving_frac",
        "saved by sharing, by iteration",
        "1 - 1 / mean over steps of logical / physical blocks: the mean of ratios that the SOSP'23 artifact takes",
        "1",
        HIGHER,
    ),
    Metric(
        "mean_cached_free_blocks", "cached free blocks", "free blocks that hold a cached prefix, over time", "blocks"
    ),
    Metric("num_forks", "forks", "sequences that started with another one's blocks, over the run", "sequences"),
    Metric(
        "num_copied_blocks",
        "copied blocks",
        "blocks copied on the device (copy-on-write, moves), over the run",
        "blocks",
        LOWER,
    ),
    Metric("num_swapped_out_blocks", "swapped out", "blocks copied to host memory, over the run", "blocks", LOWER),
    Metric("num_swapped_in_blocks", "swapped in", "blocks copied back, over the run", "blocks", LOWER),
    Metric("swapped_out_bytes", "swapped out", "num_swapped_out_blocks x bytes of a block on one rank", "bytes", LOWER),
    Metric("swapped_in_bytes", "swapped in", "num_swapped_in_blocks x bytes of a block on one rank", "bytes", LOWER),
    Metric(
        "num_swaps_refused", "swaps refused", "victims recomputed because host memory was full", "preemptions", LOWER
    ),
)
"""Columns that only runs with `record_sharing` have; tokens recomputed and the prefix cache's hits every run has. The
means over time are told wherever prompts may meet in the prefix cache."""

RESIDENCY_METRICS: tuple[Metric, ...] = (
    Metric("num_stored_blocks", "blocks cached", "blocks that became findable over the run", "blocks"),
    Metric("num_evicted_blocks", "blocks evicted", "cached blocks given up for another request", "blocks", LOWER),
    Metric(
        "num_hit_blocks", "blocks found", "cached blocks that admissions took, held by others or not", "blocks", HIGHER
    ),
    Metric("mean_block_lifetime_s", "life of a cached block", "evicted blocks: eviction - caching", "s"),
    Metric(
        "mean_idle_before_eviction_s", "idle before eviction", "evicted blocks: eviction - last release by anybody", "s"
    ),
    Metric("mean_reuse_gap_s", "gap before reuse", "hits on idle blocks: hit - last release by anybody", "s"),
)
"""Columns that only runs with `record_residency` have, over the whole run."""


def sharing_saving(logical: int, physical: int) -> float | None:
    """1 - physical / logical, of sums of blocks; None where there are none."""
    share = ratio(physical, logical)
    return None if share is None else 1.0 - share


def mean_of_ratios_saving(extra_ratio: int, unit: int, num_steps: int) -> float | None:
    """1 - 1 / mean of logical / physical, from the sum over steps of (logical - physical) / physical in 1 / `unit`."""
    return sharing_saving(num_steps * unit + extra_ratio, num_steps * unit)


def residency(lived: Residency | None) -> dict[str, float | None]:
    """The columns of `RESIDENCY_METRICS`, with percentiles; null where nothing is cached or nothing happened."""
    spans = {
        "block_lifetime": lived.lifetimes if lived else (),
        "idle_before_eviction": lived.idle_times if lived else (),
        "reuse_gap": lived.gaps if lived else (),
    }
    table: dict[str, float | None] = {
        "num_stored_blocks": lived.num_stored if lived else None,
        "num_evicted_blocks": len(lived.idle_times) if lived else None,
        "num_hit_blocks": lived.num_hits if lived else None,
    }
    for name, values in spans.items():
        table[f"mean_{name}_s"] = sum(values) / len(values) / PS if values else None
        for q in (50, 99):
            found = quantile(values, q / 100)
            table[f"p{q}_{name}_s"] = None if found is None else found / PS
    return table


def imbalance(loads: Sequence[float]) -> float | None:
    """Max over mean: 1 where all carry the same, N where one of N carries everything; None without load."""
    average = mean(loads)
    return max(loads) / average if average else None
