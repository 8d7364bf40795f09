"""`gate-storm` and `watermark`: the embedded workloads are the recorded ones, and what the shapes of curves are."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.paper import pressure
from experiments.paper.pressure import GATE_STORM, GATES, MARKS, SMALL_MARKS, WATERMARK, MarkKey, bends
from experiments.paper.recorded_workloads import BLOCK, WORKLOADS, Row, replayed, trace_of
from experiments.paper.runs import Lab
from tests.engine.core.recordings import RECORDED

RECORDINGS = {
    "sched_chunk_gate_off_noapc": "gate-off",
    "sched_chunk_gate_off": "gate-off-caching",
    "sched_chunk_gate_on": "gate-on-caching",
    "sched_storm": "tight-pool",
    "sched_storm_apc": "tight-pool-caching",
    "sched_watermark_0": "small-0",
    "sched_watermark_10": "small-0.1",
    "sched_watermark_25": "small-0.25",
}
SMALL = {small.name: small for small in (*GATES, *SMALL_MARKS)}
AT_HAND = [name for name in RECORDINGS if name in RECORDED]


def rows_of(requests: list[dict[str, Any]]) -> list[Row]:
    """With the earliest request that shares the longest run of leading full blocks."""
    rows = []
    for index, one in enumerate(requests):
        shared = [_common_blocks(one["prompt"], other["prompt"]) for other in requests[:index]]
        most = max(shared, default=0)
        same = (shared.index(most), most) if most else ()
        rows.append(Row(one["arrival_step"], len(one["prompt"]), len(one["output"]), *same))
    return rows


def _common_blocks(a: list[int], b: list[int]) -> int:
    count = 0
    while (count + 1) * BLOCK <= min(len(a), len(b)) and a[: (count + 1) * BLOCK] == b[: (count + 1) * BLOCK]:
        count += 1
    return count


@pytest.mark.parametrize("name", AT_HAND)
def test_the_embedded_workload_is_the_recorded_one(name):
    recorded, small = RECORDED[name], SMALL[RECORDINGS[name]]
    config, workload = recorded["config"], WORKLOADS[small.workload]

    assert workload.rows == rows_of(recorded["requests"])
    assert (workload.num_blocks, BLOCK) == (config["usable_blocks"], config["block_size"])
    assert (workload.max_num_seqs, workload.max_num_batched_tokens) == (
        config["max_num_seqs"],
        config["max_num_batched_tokens"],
    )
    assert (small.caching, small.gate, small.watermark) == (
        config["enable_caching"],
        config["reserve_full_isl"],
        config["watermark"],
    )


@pytest.mark.parametrize("name", AT_HAND)
def test_the_embedded_totals_are_the_recorded_ones(name):
    totals = RECORDED[name]["totals"]

    assert SMALL[RECORDINGS[name]].totals == (totals["steps"], totals["preemptions"], totals["scheduled_tokens"])


def test_all_three_workloads_are_compared_with_a_recording():
    assert {SMALL[RECORDINGS[name]].workload for name in AT_HAND} == set(WORKLOADS)


def test_shared_blocks_have_the_same_ids_and_others_do_not():
    trace = trace_of(WORKLOADS["gate"])

    shared = trace.block_ids_of(3).tolist(), trace.block_ids_of(1).tolist()
    assert shared[0][:1] == shared[1][:1]
    assert len(set(shared[0] + shared[1])) == len(shared[0]) + len(shared[1]) - 1
    assert [len(trace.block_ids_of(i)) for i in range(len(trace))] == [
        -(-row.num_prompt_tokens // BLOCK) for row in WORKLOADS["gate"].rows
    ]


def test_every_recorded_total_comes_out_and_fewer_preemptions_can_take_more_steps():
    results = {result.claim.id: result for result in GATE_STORM.judge(Lab())}

    assert {result.verdict for result in results.values()} == {"pass", "reported"}
    assert len([r for r in results.values() if r.verdict == "pass"]) == 15
    fewer, more = results["gate-storm/gate-on/preemptions"].got, results["gate-storm/gate-off/preemptions"].got
    assert fewer is not None
    assert more is not None
    assert fewer < more
    assert (results["gate-storm/gate-on/steps"].got or 0) > (results["gate-storm/gate-off/steps"].got or 0)


def test_without_preemptions_nothing_is_computed_twice():
    found = replayed(WORKLOADS["gate"], caching=False, gate=True, watermark=0.9)

    assert found.num_preemptions == 0
    assert found.ratio == 1.0


@pytest.mark.parametrize(
    "curve,wrong",
    [([1, 3, 2], 0), ([1, 2, 4, 3], 0), ([1, 2, 3], 1), ([3, 2, 1], 1), ([1, 3, 2, 2.5], 1), ([2, 1, 3, 2], 1)],
)
def test_a_rise_and_a_fall(curve, wrong):
    assert bends([float(value) for value in curve]) == wrong


@pytest.mark.slow
def test_the_curve_has_its_shape_in_each_seed():
    results = {result.claim.id: result for result in WATERMARK.judge(Lab(num_seeds=3))}

    assert {name: r.verdict for name, r in results.items() if r.verdict not in ("pass", "reported")} == {}
    assert results["watermark/curve/throughput"].num_seeds == 3


def test_a_curve_without_its_shape_is_a_miss():
    lab = Lab(num_seeds=1)
    for mark in MARKS:  # throughput that only falls, preemptions that only rise
        lab._done[MarkKey(mark, 0)] = {"num_preemptions": 100 * mark, "makespan_output_tok_per_s": 1 - mark}

    verdicts = {r.claim.id: r.verdict for r in WATERMARK.judge(lab)}
    assert verdicts["watermark/curve/preemptions"] == verdicts["watermark/curve/throughput"] == "miss"


def test_a_smaller_run_of_the_curve_preempts_less_with_a_watermark(monkeypatch):
    monkeypatch.setattr(pressure, "NUM_REQUESTS", 120)
    lab = Lab(num_seeds=1)

    none, some = lab.values([MarkKey(0.0, 0), MarkKey(0.10, 0)], "num_preemptions")
    assert some < none
