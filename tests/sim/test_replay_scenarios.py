"""Small replays with known answers: what other systems' bug reports got wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.core.content import TokenContent
from engine.core.limits import SchedulerConfig
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from sim import integrals as at
from sim import metrics
from sim.metrics import PS
from sim.rows import RequestRow
from sim.shadow import ShadowExecutor
from sim.simulate import Run
from tests.sim.cases import US, random_case
from tests.sim.test_replay_laws import replayed, run
from workloads import Trace


def row(request_id: int = 0, status: str = "finished", **values: Any) -> RequestRow:
    empty = dict.fromkeys(RequestRow._fields, 0) | {"first_scheduled": -1, "first_token": -1, "finish": -1}
    return RequestRow(**(empty | {"request_id": request_id, "status": status} | values))


def test_latencies_follow_their_formulas():
    """Five tokens: the first at 1.0 s, the last at 1.3 s. The first token is no inter-token time."""
    one = row(first_scheduled=PS // 2, first_token=PS, finish=13 * PS // 10, num_output_tokens=5)
    found = metrics.latencies([one])
    assert found["mean_ttft_s"] == 1.0
    assert found["mean_tpot_s"] == pytest.approx(0.075)
    assert found["mean_e2e_s"] == pytest.approx(1.3)
    assert found["mean_queue_s"] == 0.5
    assert found["mean_normalized_latency_s"] == pytest.approx(0.26)


def test_requests_without_a_first_token_are_in_no_mean():
    rows = [
        row(0, first_scheduled=0, first_token=PS, finish=3 * PS, num_output_tokens=3),
        row(1, "rejected"),
        row(2, "unfinished", first_scheduled=PS),
        row(3, first_scheduled=0, first_token=2 * PS, finish=2 * PS, num_output_tokens=1),
    ]
    found, counts = metrics.latencies(rows), metrics.counts(rows)
    assert (found["mean_ttft_s"], found["mean_tpot_s"], found["mean_e2e_s"]) == (1.5, 1.0, 2.5)
    assert (counts["num_finished"], counts["num_rejected"], counts["num_unfinished"]) == (2, 1, 1)
    assert counts["num_requests"] == 4


def test_percentiles_interpolate():
    assert metrics.quantile([10, 20, 30, 40, 1000], 0.9) == pytest.approx(616)
    assert metrics.quantile([], 0.9) is None


def two_rounds_of_preemption() -> Run:
    """Three requests of 16 tokens in 28 slots: the last one loses its place twice."""
    options: dict[str, Any] = {"enable_caching": False, "full_sequence_gate": False}
    return run(Trace.build([0, 1_000, 4_000], [2, 6, 8], [16, 16, 16]), blocks=7, size=4, **options)


def test_a_request_preempted_twice_emits_each_token_once():
    done = two_rounds_of_preemption()
    again = [r.num_recomputed_tokens for r in done.rows]
    assert [r.num_preemptions for r in done.rows] == [0, 1, 2]
    assert [r.num_output_tokens for r in done.rows] == [16, 16, 16]
    whole = done.integrals_between(0, done.makespan + 1)
    assert whole[at.EMITTED] == 3 * 16
    assert whole[at.COMPUTED] == (2 + 6 + 8) + 3 * (16 - 1) + sum(again)
    assert done.summary["num_recomputed_tokens"] == sum(again) > 0
    assert done.summary["recomputed_frac"] == sum(again) / whole[at.COMPUTED]


def test_a_request_forced_out_twice_after_six_of_its_sixteen_tokens_counts_them_once():
    """Two requests of 16 tokens in 20 slots, prompts of 1 and 3, two tokens a step: the second has six tokens at 8 us,
    loses its place, computes five of nine again, loses it once more at 13 us, and waits for the first to end."""
    options: dict[str, Any] = {"enable_caching": False, "full_sequence_gate": False, "max_num_batched_tokens": 2}
    done = run(trace := Trace.build([0, 0], [1, 3], [16, 16]), blocks=5, size=4, **options)
    first, second = done.rows
    assert done.preemptions()["start_s"].tolist() == pytest.approx([8e-6, 13e-6])
    for end_s in (8e-6, 13e-6):
        assert run(trace, blocks=5, size=4, end_s=end_s, **options).rows[1].num_output_tokens == 6
    assert (first.num_output_tokens, second.num_output_tokens) == (16, 16)
    assert (first.num_preemptions, second.num_preemptions, second.first_token) == (0, 2, 3 * US)
    assert first.num_recomputed_tokens == 0
    assert done.summary["num_recomputed_tokens"] == second.num_recomputed_tokens == 12
    assert done.integrals_between(0, done.makespan + 1)[at.EMITTED] == 2 * 16
    assert done.summary["makespan_output_tok_per_s"] == pytest.approx(2 * 16 / (done.makespan / PS))


def test_a_first_token_keeps_its_time_through_a_preemption():
    assert [r.first_token for r in two_rounds_of_preemption().rows] == [US, 2 * US, 5 * US]


def test_refused_and_resumed_requests_count_their_lookup_once():
    """An eight-block prompt with four blocks cached waits for memory, runs, is preempted and resumes: queries 8
    blocks, hits 4; what the resumption finds counts apart."""
    allocator = PagedAllocator(14, 4, max_model_len=100)
    scheduler = Scheduler(SchedulerConfig(100, policy="priority"), allocator)
    executor = ShadowExecutor(allocator)
    text = list(range(100))

    def steps(count: int) -> None:
        for _ in range(count):
            batch = scheduler.schedule()
            scheduler.update(batch, executor.submit(batch).result())

    scheduler.add(Request("warm", 17, 1, content=TokenContent(text[:18])))
    steps(1)
    assert (scheduler.prefix.queries, scheduler.prefix.hits) == (17, 0)
    scheduler.add(Request("long", 33, 6, priority=0))
    steps(1)
    late = Request("late", 32, 9, priority=1, content=TokenContent(text))
    scheduler.add(late)
    for _ in range(5):  # refused five times, and counted at none of them
        steps(1)
        assert (late.status.name, scheduler.prefix.queries) == ("WAITING", 17 + 33)
    steps(2)
    assert (scheduler.prefix.queries, scheduler.prefix.hits) == (17 + 33 + 32, 16)
    scheduler.add(Request("urgent", 20, 20, priority=-1))
    while scheduler.running or scheduler.waiting:
        steps(1)
    assert late.num_preemptions == 1
    assert scheduler.prefix.queries == 17 + 33 + 32 + 20
    assert scheduler.prefix.hits == 16
    assert scheduler.prefix.preempted_queries > 32
    assert scheduler.prefix.preempted_hits > 0


def test_preemptions_make_no_headline_hits():
    preempted = 0
    for seed in range(150):
        case = random_case(seed, "paged")
        done = replayed(case) if case.tokens is None and not case.trace.block_size else None
        if done is not None:
            preempted += done.scheduler.prefix.preempted_hits
            assert done.scheduler.prefix.hits == 0
            assert done.summary["prefix_hit_frac"] in (0.0, None)
    assert preempted > 0


def test_seventeen_tokens_in_two_blocks_fill_seventeen_of_thirty_two_slots():
    done = run(Trace.build([0], [17], [1]))
    found = metrics.memory(done.integrals_between(0, done.makespan + 1), done.capacity_slots, reserves=False)
    assert found["kv_live_frac"] / found["kv_blocks_used_frac"] == pytest.approx(17 / 32)
    assert found["kv_internal_frac"] / found["kv_blocks_used_frac"] == pytest.approx(15 / 32)
    assert found["kv_reserved_frac"] == 0


def test_every_failure_is_counted_once_whatever_its_kind():
    """120 that cannot be served, of three kinds, among 20 that can."""
    prompts, outputs = [8] * 20 + [100] * 40 + [8] * 40 + [40] * 40, [4] * 20 + [4] * 40 + [0] * 40 + [60] * 40
    done = run(Trace.build(range(140), prompts, outputs), blocks=5, size=16, max_model_len=96)
    names = ("num_finished", "num_rejected", "num_failed", "num_truncated", "num_unfinished", "num_requests")
    assert [done.summary[name] for name in names] == [20, 80, 40, 0, 0, 140]
    kinds = [(r.status, r.num_prompt_tokens, r.num_output_tokens) for r in done.rows]
    assert [kinds.count(kind) for kind in (("rejected", 100, 0), ("failed", 8, 0), ("rejected", 40, 0))] == [40] * 3
    assert done.summary["num_finished"] / done.summary["num_requests"] == 20 / 140
    assert all(check.holds for check in done.checks)


@pytest.mark.parametrize("allocator", ["paged", "orca-max", "orca-oracle"])
def test_what_can_never_fit_gets_a_row_and_is_passed_over(allocator):
    done = run(
        Trace.build([0, 0, 0], [40, 4, 400], [40, 4, 4]), blocks=4, size=16, allocator=allocator, max_model_len=64
    )
    assert [r.status for r in done.rows] == ["rejected", "finished", "rejected"]
    assert all(r.num_computed_tokens == 0 for r in done.rows if r.status == "rejected")


def test_nothing_completes_is_nulls_and_strict_json():
    done = run(Trace.build([0, 5_000], [100, 100], [4, 4]), blocks=2, size=16)
    assert [r.status for r in done.rows] == ["rejected", "rejected"]
    summary = metrics.strict_json(done.summary)
    json.dumps(summary, allow_nan=False)
    assert summary["num_finished"] == 0
    for name in ("mean_ttft_s", "p99_ttft_s", "mean_tpot_s", "mean_e2e_s", "mean_normalized_latency_s"):
        assert summary[name] is None
    assert all(check.holds for check in done.checks)


def test_no_request_at_all():
    done = run(Trace.build([], [], []))
    assert done.rows == []
    assert done.makespan == 0
    json.dumps(metrics.strict_json(done.summary), allow_nan=False)


def test_a_cut_leaves_unfinished_rows_with_what_they_got():
    done = run(Trace.build([0, 0, 20_000], [4, 4, 4], [3, 50, 5]), end_s=10.5e-6)
    assert [(r.status, r.finish) for r in done.rows] == [("finished", 3 * US), ("unfinished", -1), ("unfinished", -1)]
    assert [r.num_output_tokens for r in done.rows] == [3, 10, 0]
    assert done.makespan == 10_500_000
    assert done.summary["num_unfinished"] == 2
    whole = done.integrals_between(0, done.makespan)
    assert whole[at.TIME] == done.makespan
    assert whole[at.EMITTED] == 13


def test_a_window_clips_no_latency():
    """Window of a minute's microseconds; one request ends after it."""
    done = run(Trace.build([0, 0], [4, 4], [75, 20]), window_s=(0, 60e-6))
    summary = done.summary
    assert (summary["window_start_s"], summary["window_stop_s"], summary["window_kind"]) == (0, 60e-6, "named")
    assert summary["p99_e2e_s"] > 60e-6
    assert summary["request_throughput_per_s"] == pytest.approx(1 / 60e-6)
    assert summary["output_tok_per_s"] == pytest.approx((59 + 20) / 60e-6)


def test_a_head_is_blocked_while_it_keeps_another_one_waiting():
    """A holds the pool for ten steps. B, the head, is refused from 2 us on; C waits behind it from 5 us on, and alone
    from 10 us to 12 us."""
    options: dict[str, Any] = {"blocks": 8, "size": 4, "allocator": "contiguous-max-first-fit"}
    done = run(Trace.build([0, 1_500, 4_500], [8, 8, 1], [10, 2, 2]), **options)
    assert [r.first_scheduled for r in done.rows] == [0, 10 * US, 12 * US]
    assert done.recorder.blocked == [(5 * US, 10 * US)]
    alone = run(Trace.build([0, 1_500], [8, 8], [10, 2]), **options)
    assert alone.recorder.blocked == []


def test_truncated_requests_stop_at_their_limit():
    done = run(Trace.build([0], [4], [20], limit_tokens=[6]))
    assert [(r.status, r.num_output_tokens) for r in done.rows] == [("truncated", 6)]
    assert done.summary["mean_ttft_s"] is None
