"""Reservations that grow: their shares are shares, in either accounting, and in each part of a share."""

from __future__ import annotations

import pytest

from engine.core.limits import SchedulerConfig
from engine.core.registry import FITS, PoolConfig
from sim.cost import PAPER_13B
from sim.cost_executor import CostExecutor
from sim.simulate import RunSpec, simulate
from workloads import synthetic_trace

PARTS = ("kv_internal_reserve_frac", "kv_internal_roundup_frac", "kv_reserved_frac", "kv_external_frac", "kv_free_frac")


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("reserve", ["chunk(16)", "chunk(64)", "max", "limit", "pow2", "oracle"])
def test_no_share_is_negative(reserve, fit):
    trace = synthetic_trace("poisson", "uniform:1-60,1-200", 60, seed=3, rate_per_s=50.0)
    pool = PoolConfig(64, 16, max_model_len=512)
    spec = RunSpec(f"contiguous-{reserve}-{fit}", pool, SchedulerConfig(512))
    summary = simulate(spec, trace, CostExecutor(PAPER_13B)).summary

    paper = [value for name, value in summary.items() if "paper_" in name]
    assert min(*paper, *(summary[name] for name in PARTS)) >= 0
    assert sum(
        summary[f"paper_{name}_frac"] for name in ("token", "reserved", "internal", "external")
    ) == pytest.approx(1)
    internal = summary["kv_internal_reserve_frac"] + summary["kv_internal_roundup_frac"]
    assert internal == pytest.approx(summary["kv_internal_frac"])
