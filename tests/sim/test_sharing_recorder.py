"""What sequences share, counted step by step: the same however steps are grouped, and right by hand."""

from dataclasses import replace
from random import Random

import pytest

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from engine.core.step import never_skip
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.sharing_recorder import UNIT
from sim.simulate import RunSpec, simulate
from tests.sim.cases import play, random_cuts, random_shared_case
from workloads import Trace

MS = 10**9
FIELDS = ("num_steps_counted", "extra_ratio", "logical_blocks", "physical_blocks", "num_forks")


def counted(case, cut=None):
    run = play(replace(case, spec=replace(case.spec, record_sharing=True)), cut).run
    assert [check for check in run.checks if not check.holds] == []
    return {name: getattr(run.recorder, name) for name in FIELDS}


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_do_not_depend_on_how_steps_are_grouped(seed):
    case = random_shared_case(seed)
    stepped = counted(case, never_skip)

    assert counted(case) == stepped
    assert counted(case, random_cuts(Random(seed))) == stepped


def three_samples(prompt, block_size=16, **options):
    """One request of three samples with four tokens each; a step takes a millisecond."""
    pool = PoolConfig(64, block_size, 2048, enable_caching=False)
    spec = RunSpec("paged", pool, SchedulerConfig(2048), num_samples=3, record_sharing=True, **options)
    return simulate(spec, Trace.build([0], [prompt], [4], limit_tokens=[4]), CostExecutor(LinearModel(MS, 0, 0, 0)))


def test_three_samples_of_a_whole_number_of_blocks():
    """48 tokens are 3 blocks; the first step computes them, then three steps hold 3 shared and 3 own ones."""
    run = three_samples(48, bytes_per_token=10)

    assert (run.recorder.physical_blocks, run.recorder.logical_blocks) == (3 + 3 * 6, 3 + 3 * 12)
    assert run.recorder.extra_ratio == 3 * UNIT
    summary = run.summary
    assert (summary["num_forks"], summary["num_copied_blocks"]) == (2, 0)
    assert summary["iter_sharing_saving_frac"] == pytest.approx(1 - 1 / ((1 + 3 * 2) / 4))
    assert summary["sharing_saving_frac"] == pytest.approx(1 - (3 + 18) / (3 + 36))
    assert summary["mean_physical_blocks"] == pytest.approx((3 + 18) / 4)
    assert summary["swapped_out_bytes"] == summary["num_swapped_out_blocks"] == 0


def test_three_samples_with_a_last_block_to_copy():
    """50 tokens: two of the three writers copy the fourth block, the third writes in place."""
    run = three_samples(50)

    assert run.summary["num_copied_blocks"] == 2
    assert (run.recorder.physical_blocks, run.recorder.logical_blocks) == (4 + 3 * (3 + 3), 4 + 3 * 12)


def test_what_was_swapped_is_told_in_blocks_and_bytes():
    """Two pairs of samples in a pool for little more than one: the later one goes to the host and comes back."""
    pool = PoolConfig(8, 4, 64, enable_caching=False, host_blocks=8)
    limits = SchedulerConfig(64, preemption="auto")
    spec = RunSpec("paged", pool, limits, num_samples=2, record_sharing=True, bytes_per_token=100)
    trace = Trace.build([0, 0], [4, 4], [11, 11], limit_tokens=[11, 11])

    run = simulate(spec, trace, CostExecutor(LinearModel(MS, 0, 0, 0), swap_block_ps=MS))

    summary = run.summary
    assert [check for check in run.checks if not check.holds] == []
    assert summary["num_swapped_out_blocks"] == summary["num_swapped_in_blocks"] > 0
    assert summary["swapped_out_bytes"] == summary["num_swapped_out_blocks"] * 4 * 100
    assert summary["num_recomputed_tokens"] == summary["num_swaps_refused"] == 0
    full = simulate(replace(spec, pool=replace(pool, host_blocks=1)), trace, CostExecutor(LinearModel(MS, 0, 0, 0)))
    assert full.summary["num_swaps_refused"] > 0
    assert full.summary["num_recomputed_tokens"] > 0


def test_the_window_bounds_what_is_counted():
    run = three_samples(48, window_s=(0.001, 0.003))

    assert run.recorder.num_steps_counted == 2
    assert run.recorder.physical_blocks == 12
