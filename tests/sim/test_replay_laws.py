"""Laws of a replay, whatever the trace: conservation, Little, M/D/1, work conservation, the same result twice."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from bisect import bisect_right
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.allocator import Reason, Refusal
from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.progress import LivelockError
from engine.core.registry import PoolConfig
from sim import integrals as at
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.pool_state import PoolState
from sim.simulate import Run, RunSpec, simulate
from tests.sim.cases import CONTIGUOUS, US, Case, play, random_case
from tests.sim.planting import instead
from workloads import Trace, synthetic_trace

ROOT = Path(__file__).parents[2]
STEPS = LinearModel(US, 0, 0, 0)
ALLOCATORS = ("paged", *CONTIGUOUS, "contiguous-limit-best-fit", "contiguous-chunk(32)-first-fit")
SEEDS = st.integers(0, 2**32 - 1)


def run(trace: Trace, blocks: int = 64, size: int = 16, allocator: str = "paged", **options: Any) -> Run:
    """One replay with steps of a microsecond; `options` go to the limits, the pool and the spec by name."""
    length = options.pop("max_model_len", blocks * size)
    kinds: dict[str, dict[str, Any]] = {"limits": {}, "pool": {}, "spec": {}}
    for name, value in options.items():
        fits = {"limits": SchedulerConfig, "pool": PoolConfig, "spec": RunSpec}
        kinds[next(kind for kind, made in fits.items() if name in made.__dataclass_fields__)][name] = value
    pool = PoolConfig(blocks, size, length, **kinds["pool"])
    spec = RunSpec(allocator, pool, SchedulerConfig(length, **kinds["limits"]), **kinds["spec"])
    return simulate(spec, trace, CostExecutor(STEPS))


def replayed(case: Case) -> Run | None:
    try:
        return play(case).run
    except LivelockError:
        return None


# Conservation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ALLOCATORS)
@given(seed=SEEDS)
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
def test_every_check_holds_on_random_traces(allocator, seed):
    case = random_case(seed)
    if "chunk(32)" in allocator and 32 % case.spec.pool.block_size:
        allocator = "paged"
    done = replayed(random_case(seed, allocator))
    if done is not None:
        assert [check for check in done.checks if not check.holds] == []
        assert len(done.checks) >= (6 if done.spec.end_s is not None else 12)


def test_requests_are_conserved_by_status():
    for seed in range(60):
        case = random_case(seed)
        done = replayed(case)
        if done is None:
            continue
        failed = int((case.trace.num_output_tokens == 0).sum())
        statuses = [row.status for row in done.rows]
        assert len(statuses) == len(case.trace)
        assert [row.request_id for row in done.rows] == list(range(len(statuses)))
        assert statuses.count("failed") == failed
        assert case.spec.end_s is not None or "unfinished" not in statuses
        served = [row for row in done.rows if row.status in ("finished", "truncated")]
        assert all(row.num_output_tokens <= row.max_tokens for row in served)
        assert all((row.num_output_tokens == row.max_tokens) for row in served if row.status == "truncated")


def test_littles_law_holds_over_the_whole_run():
    done = run(synthetic_trace("poisson", "uniform:1-60,1-60", 300, seed=1, rate_per_s=150_000.0), blocks=40)
    whole = done.integrals_between(0, done.makespan + 1)
    in_system = sum(row.finish - row.arrival for row in done.rows)
    waiting = done.backlog.until(done.makespan + 1)
    assert any(row.num_preemptions for row in done.rows)
    assert whole[at.SEQS] + waiting == in_system


def test_mean_wait_of_one_server_is_pollaczek_khinchines():
    """M/D/1: rho / (2 (1 - rho)) services on average; one sequence, one step each."""
    rho, count = 0.6, 20_000
    trace = synthetic_trace("poisson", "fixed:1,1", count, seed=3, rate_per_s=rho * 1e6)
    done = run(trace, blocks=4, max_num_seqs=1)
    mean = sum(row.first_scheduled - row.arrival for row in done.rows) / count
    assert mean / US == pytest.approx(rho / (2 * (1 - rho)), rel=0.05)
    assert done.summary["mean_queue_s"] == pytest.approx(mean / 1e12)


def test_work_is_conserved():
    """Nothing idles while a request that fits waits: busy time is the steps' time, gaps only before arrivals."""
    trace = synthetic_trace("poisson", "uniform:1-20,1-20", 200, seed=2, rate_per_s=40_000.0)
    done = run(trace, record_steps=True)
    steps = done.recorder.steps
    arrivals = {row.arrival for row in done.rows}
    ends = [step[0] + step[1] for step in steps]
    gaps = [(end, step[0]) for end, step in zip([0, *ends], steps, strict=False) if end != step[0]]
    assert gaps
    assert {start for _, start in gaps} <= arrivals
    in_system = sorted([(row.arrival, 1) for row in done.rows] + [(row.finish, -1) for row in done.rows])
    for end, start in gaps:
        assert sum(change for time, change in in_system[: bisect_right(in_system, (end, 2))]) == 0, (end, start)


@pytest.mark.parametrize("allocator", ["paged", "orca-max", "orca-oracle"])
@pytest.mark.parametrize("column", [at.SEQS, at.TOKENS, at.INTERNAL, at.USED])
def test_one_slot_too_many_makes_a_check_fail(column, allocator):
    def read(original: Any, *args: Any) -> list[int]:
        state = list(original(*args))
        state[column] += 1
        return state

    trace = synthetic_trace("all-at-once", "fixed:20,20", 5, seed=0)
    assert all(check.holds for check in run(trace, allocator=allocator).checks)
    with instead(PoolState, "_read", read):
        assert not all(check.holds for check in run(trace, allocator=allocator).checks)


@pytest.mark.parametrize("final_token_has_slot", [False, True])
@pytest.mark.parametrize("enable_caching", [False, True])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_slots_step_by_step_are_sums_over_requests(size, enable_caching, final_token_has_slot):
    trace = synthetic_trace("poisson", "uniform:1-60,1-60", 60, seed=size, rate_per_s=100_000.0)
    options: dict[str, Any] = {"enable_caching": enable_caching, "final_token_has_slot": final_token_has_slot}
    done = run(trace, blocks=9_000 // size, size=size, max_num_batched_tokens=9_000, **options)
    names = [check.name for check in done.checks if check.name.startswith("step by step")]
    assert len(names) == 3
    assert all(check.holds for check in done.checks)


# The same result twice ------------------------------------------------------------------------------------------------

FINGERPRINT = "from tests.sim.test_replay_laws import fingerprint; print(fingerprint())"


def fingerprint() -> str:
    """Bytes of the tables of two runs, hashed: CSV and Parquet."""
    digest = sha256()
    for allocator in ("paged", "orca-pow2"):
        trace = synthetic_trace("gamma", "uniform:1-60,1-60", 120, seed=4, rate_per_s=150_000.0)
        done = run(trace, blocks=40, allocator=allocator, max_model_len=128, num_snapshots=3)
        for frame in (done.requests(), done.timeline(), done.memory_map()):
            digest.update(frame.to_csv(index=False).encode())
            buffer = io.BytesIO()
            frame.to_parquet(buffer)
            digest.update(buffer.getvalue())
        digest.update(repr(done.summary).encode())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_bytes_in_any_process():
    other = subprocess.run(
        [sys.executable, "-c", FINGERPRINT],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert fingerprint() == fingerprint() == other.stdout.strip()


@pytest.mark.parametrize("allocator", ["paged", "orca-oracle"])
def test_timeline_bins_sum_to_the_integrals(allocator):
    trace = synthetic_trace("poisson", "uniform:1-60,1-60", 100, seed=5, rate_per_s=150_000.0)
    done = run(trace, blocks=40, allocator=allocator, max_model_len=128)
    table, whole = done.timeline(), done.integrals_between(0, done.makespan + 1)
    assert table["num_steps"].sum() == whole[at.STEPS]
    assert table["num_emitted_tokens"].sum() == whole[at.EMITTED] == sum(r.num_output_tokens for r in done.rows)
    assert table["num_computed_tokens"].sum() == whole[at.COMPUTED]
    assert table["duration_s"].sum() == pytest.approx(done.makespan / 1e12)
    running = (table["mean_batch_size"] * table["duration_s"]).sum() * 1e12
    assert running == pytest.approx(whole[at.SEQS])
    parts = ["live", "reserved", "internal", "external", "free"]
    assert table[[f"kv_{part}_frac" for part in parts]].sum(axis=1).to_numpy() == pytest.approx(1.0)
    for part in parts:
        mean = (table[f"kv_{part}_frac"] * table["duration_s"]).sum() / table["duration_s"].sum()
        assert mean == pytest.approx(makespan_memory(done)[f"kv_{part}_frac"])


def makespan_memory(done: Run) -> dict[str, Any]:
    from sim.metrics import memory

    return memory(done.integrals_between(0, done.makespan + 1), done.capacity_slots, reserves=done.reserves)


# Nothing spins --------------------------------------------------------------------------------------------------------


def test_an_allocator_that_always_refuses_is_a_livelock_not_a_hang():
    def refuse(self: Any, request: Any, *args: Any, **kw: Any) -> Refusal:
        return Refusal(Reason.NO_FREE_BLOCKS, 1, 0)

    with mock.patch.object(PagedAllocator, "admit", refuse), pytest.raises(LivelockError, match="refused for ever"):
        run(Trace.build([0], [4], [4]))


def test_an_allocator_that_never_lets_a_request_grow_still_ends():
    def refuse(self: Any, requests: Any, *args: Any, **kw: Any) -> Refusal:
        return Refusal(Reason.NO_FREE_BLOCKS, 1, 0)

    nothing = mock.patch.object(PagedAllocator, "free_run", return_value=0)
    with mock.patch.object(PagedAllocator, "extend", refuse), nothing:
        done = run(Trace.build([0], [16], [4]))
    assert [(row.status, row.num_output_tokens) for row in done.rows] == [("finished", 4)]
    assert done.rows[0].num_preemptions > 0


def test_two_that_cannot_both_finish_end_with_bounded_preemptions():
    done = run(Trace.build([0, 0, 0], [48, 16, 16], [64, 48, 48]), blocks=5)
    assert [row.status for row in done.rows] == ["rejected", "finished", "finished"]
    assert 0 < sum(row.num_preemptions for row in done.rows) <= 4
