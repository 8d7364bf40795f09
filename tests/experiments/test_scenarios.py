"""Bug reports of other systems as small scenarios with known numbers, S1 to S21: here are those that nothing else
holds, S1, S5, S6, S7, S9, S10, S11, S12, S16 and S18. The others are in

tests/sim/test_replay_scenarios.py
    S2   no first token: test_requests_without_a_first_token_are_in_no_mean
    S3   preempted twice: test_a_request_forced_out_twice_after_six_of_its_sixteen_tokens_counts_them_once,
         test_a_request_preempted_twice_emits_each_token_once
    S4   retries count hits: test_refused_and_resumed_requests_count_their_lookup_once,
         test_preemptions_make_no_headline_hits
    S8   nothing completes: test_nothing_completes_is_nulls_and_strict_json, with exit 3 and the report in
         tests/experiments/test_compare.py, test_nothing_completes_is_said_with_nulls_and_exit_3, of sweeps in
         tests/experiments/sweep/test_sweep_verb.py,
         test_where_nothing_completes_there_are_nulls_a_word_and_exit_code_3
    S21  three kinds of failure: test_every_failure_is_counted_once_whatever_its_kind
tests/engine/core/test_model_shape.py
    S17  head_dim, latents, nested configurations, windows: the first eight tests
tests/engine/core/test_paged.py
    S19  partial last block: test_a_partly_filled_last_block_takes_tokens_without_a_new_one
tests/experiments/sweep/
    S13  duplicate points: test_planning.py, test_equal_cells_are_planned_once_and_said,
         test_ten_points_between_one_and_four_are_four_cells_and_six_merged; test_merging.py
    S14  resume: test_interruptions.py
    S20  workers and seeds: test_launchers.py, test_several_processes_give_what_one_gives_in_any_order;
         test_planning.py, test_seeds_are_of_the_repeat_and_the_draw_not_of_the_cell_the_axes_or_their_order
tests/experiments/
    S15  the truth of a configuration: test_config.py (files, --set, flags), test_environment.py (variables), of sweeps
         sweep/test_sweep_verb.py, test_the_command_line_wins_over_the_file_and_an_axis_over_both
"""

import json
import re
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from engine.core.limits import SchedulerConfig
from engine.core.registry import PoolConfig
from experiments import report
from experiments.figures import FIGURES
from experiments.figures.pareto import on_frontier
from experiments.figures.stored import Stored
from experiments.report_of_sweep import means
from sim.cost import LinearModel
from sim.cost_executor import CostExecutor
from sim.emissions import Stream, peak_rate
from sim.simulate import RunSpec, simulate
from tests.experiments.pages import PageReader
from tests.experiments.swept import write_sweep
from workloads import Trace, load_trace, save_trace

SECOND_STEPS = ("--step-model", "linear:1,0,0,0", "--kv-tokens", "16000", "--max-model-len", "2048")
NS = 10**9


def replay(trace, step_ps=10**12, blocks=500):
    limits = SchedulerConfig(max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2048)
    spec = RunSpec("paged", PoolConfig(blocks, 16, 2048, enable_caching=False), limits)
    return simulate(spec, trace, CostExecutor(LinearModel(step_ps, 0, 0, 0)))


# S1 -------------------------------------------------------------------------------------------------------------------


def test_s1_a_step_of_several_tokens_makes_several_gaps():
    """One token at 1.00 s, three at 1.20, one at 1.30."""
    stream = Stream(0.0, (1.0, 1.2, 1.3), (1, 3, 1))
    assert stream.ttft_s == 1.0
    assert stream.tpot_s == pytest.approx(0.075)
    assert stream.inter_token_s == pytest.approx([0.2 / 3] * 3 + [0.1])
    assert stream.mean_inter_token_s == pytest.approx(stream.tpot_s)
    assert stream.step_gaps_s == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize("counts", [(1,), (4,), (2, 1), (1, 5, 2, 1)])
def test_s1_mean_gap_between_tokens_is_the_time_per_output_token_whatever_the_steps_gave(counts):
    stream = Stream(0.5, [1.0 + 0.25 * place**2 for place in range(len(counts))], counts)
    assert len(stream.inter_token_s) == sum(counts) - 1
    if sum(counts) > 1:
        assert stream.mean_inter_token_s == pytest.approx(stream.tpot_s)
    else:
        assert (stream.mean_inter_token_s, stream.tpot_s) == (None, None)


def test_s1_streams_that_cannot_be_are_refused():
    for times, counts, said in (
        ((1.0,), (), "1 times for 0"),
        ((1.0,), (0,), "at least one"),
        ((1.0, 0.9), (1, 1), "fall"),
    ):
        with pytest.raises(ValueError, match=said):
            Stream(0.0, times, counts)


# S5 -------------------------------------------------------------------------------------------------------------------


def test_s5_a_request_that_ends_behind_the_stage_is_not_clipped():
    """Arrivals for a minute; the last request takes fifteen seconds more."""
    trace = Trace.build([0, 30 * NS, 60 * NS], [8, 8, 8], [5, 5, 15])
    summary = replay(trace).summary
    assert (summary["window_start_s"], summary["window_stop_s"], summary["window_kind"]) == (0.0, 60.0, "arrivals")
    assert summary["makespan_s"] == 75.0
    assert summary["makespan_output_tok_per_s"] == pytest.approx(25 / 75)
    assert summary["output_tok_per_s"] == pytest.approx(10 / 60)
    assert summary["p99_e2e_s"] == pytest.approx(14.8)  # of 5, 5 and 15 s
    assert summary["mean_e2e_s"] == pytest.approx(25 / 3)


# S6 -------------------------------------------------------------------------------------------------------------------


def test_s6_a_percentile_is_one_number_wherever_it_is_read(pagelab, strict_object, tmp_path, monkeypatch):
    """End-to-end times of 10, 20, 30, 40 and 1,000 s: p90 is 616 by linear interpolation."""
    monkeypatch.setattr(report, "FIGURES", {"batched_requests": FIGURES["batched_requests"]})
    save_trace(Trace.build([0] * 5, [8] * 5, [10, 20, 30, 40, 1000]), tmp_path / "five.csv")
    done = pagelab("run", "--trace", "five.csv", *SECOND_STEPS, "-o", "out", "--json")
    assert done.code == 0, done.err
    answer = strict_object(done.out)
    p90 = answer["runs"][0]["p90_e2e_s"]
    assert p90 == pytest.approx(616, rel=1e-14)
    assert Stored(tmp_path / "out").summary["p90_e2e_s"].tolist() == [p90]
    (cell,) = (tmp_path / "out" / "cells").iterdir()
    assert json.loads((cell / "summary.json").read_text())["p90_e2e_s"] == p90
    page = PageReader(tmp_path / "out" / "report.html")
    heads = page.words[page.words.index("end to end p50 (s)") :][:6]
    assert [word.strip() for word in heads if word.strip()][:3] == [
        "end to end p50 (s)",
        "end to end p90 (s)",
        "end to end p99 (s)",
    ]
    assert " 616 " in page.text
    view = f"from '{cell / 'requests.parquet'}'"
    ((seen,),) = duckdb.sql(f"select quantile_cont(finish_s - arrival_s, 0.9) {view}").fetchall()
    assert seen == pytest.approx(616, rel=1e-14)
    plotted = strict_object(pagelab("plot", "out", "--var-y", "p90_e2e_s", "--json").out)
    assert plotted["points"][0]["p90_e2e_s"] == p90


@pytest.mark.parametrize("count,flagged", [(15, True), (99, True), (100, False)])
def test_s6_p99_of_fewer_than_a_hundred_is_flagged(pagelab, strict_object, tmp_path, count, flagged):
    save_trace(Trace.build([0] * count, [8] * count, [4] * count), tmp_path / "few.csv")
    done = pagelab("run", "--trace", "few.csv", *SECOND_STEPS, "-o", "out", "--no-report", "--json")
    notes = [note for note in strict_object(done.out)["notes"] if "p99 100" in note]
    assert bool(notes) is flagged
    assert all(f"only {count} requests" in note for note in notes)
    drawn = pagelab("plot", "out", "--var-y", "p99_ttft_s")
    assert (f"p99_ttft_s of {count} finished requests: below 100" in drawn.err) is flagged


# S7 -------------------------------------------------------------------------------------------------------------------


def test_s7_a_peak_is_never_below_the_mean():
    """A hundred tokens, all within 0.4 s."""
    summary = replay(Trace.build([0] * 10, [8] * 10, [10] * 10), step_ps=4 * 10**10).summary
    assert summary["output_tok_per_s"] == pytest.approx(250.0)
    assert summary["peak_output_tok_per_s"] >= summary["output_tok_per_s"]


@pytest.mark.parametrize("seed", range(6))
def test_s7_a_peak_is_reached_over_a_second_and_no_mean_exceeds_it(seed):
    from workloads import synthetic_trace

    run = replay(synthetic_trace("poisson", "uniform:20-200,5-60", 60, seed, rate_per_s=3.0), step_ps=3 * 10**10)
    summary = run.summary
    assert summary["peak_output_tok_per_s"] >= summary["output_tok_per_s"] * (1 - 1e-12)
    stretches = run.emitted
    assert sum(width for width, _ in stretches) == run.window.stop - run.window.start
    assert summary["peak_output_tok_per_s"] < max(tokens * 1e12 / width for width, tokens in stretches)


def test_s7_stretches_are_joined_to_a_second_and_the_rest_to_the_last():
    second = 10**12
    assert peak_rate([(second // 2, 1), (second // 2, 5), (second, 2), (second // 4, 4)]) == 6.0
    assert peak_rate([(second, 2), (second // 4, 4)]) == 6 / 1.25
    assert peak_rate([]) is None


# S9 -------------------------------------------------------------------------------------------------------------------


def test_s9_two_metrics_are_enough_for_report_plot_and_comparison(tmp_path, pagelab):
    folder = write_sweep(tmp_path / "a", {"kv.allocator": ["orca-max", "paged"], "kv.block_size": [8, 16]})
    summary = pd.read_csv(folder / "summary.csv")
    kept = [
        "cell",
        "repeat",
        "seed",
        "kv.allocator",
        "kv.block_size",
        "allocator",
        "block_size",
        "mean_ttft_s",
        "mean_tpot_s",
    ]
    summary[kept].to_csv(folder / "summary.csv", index=False)
    done = pagelab("report", folder)
    assert (done.code, done.err) == (0, "")
    page = PageReader(folder / "report.html")
    assert page.faults == []
    assert "The shortest wait for a first token" in page.text
    assert pagelab("plot", folder, "--var-y", "mean_tpot_s").code == 0
    write_sweep(tmp_path / "b", {"kv.allocator": ["orca-max", "paged"], "kv.block_size": [8, 16]})
    assert pagelab("compare", folder, tmp_path / "b").code == 0
    assert pagelab("compare", folder, tmp_path / "b", "--metric", "mean_ttft_s,mean_tpot_s").code == 0


# S10, S11, S12 --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limits(tmp_path_factory):
    """An axis of null and 32, another of three block sizes."""
    axes = {"scheduler.long_prefill_token_threshold": [None, 32], "kv.block_size": [8, 16, 32]}
    return write_sweep(tmp_path_factory.mktemp("limits") / "sweep", axes)


def test_s10_a_null_on_an_axis_is_a_curve_of_its_own(limits, pagelab, strict_object, tmp_path):
    words = ("plot", limits, "--curve-by", "long_prefill_token_threshold", "-o", tmp_path / "a.png")
    plan = strict_object(pagelab(*words, "--dry-run", "--json").out)
    assert plan["figures"][0]["curves"] == ["unset", "32"]
    points = strict_object(pagelab(*words, "--json").out)["points"]
    assert len(points) == 6
    assert [point["scheduler.long_prefill_token_threshold"] for point in points].count(None) == 3
    assert pagelab(*words, "--filter-by", "long_prefill_token_threshold=unset").code == 0
    assert len(pd.read_csv(tmp_path / "a.csv")) == 3
    assert means(Stored(limits))["scheduler.long_prefill_token_threshold"].isna().tolist() == [True] * 3 + [False] * 3


def test_s11_ties_on_a_frontier_all_stay():
    points = [(10, 100), (5, 100), (10, 100), (12, 80), (11, 80)]
    assert [point for point, on in zip(points, on_frontier(points), strict=True) if on] == [
        (10, 100),
        (10, 100),
        (12, 80),
    ]


def test_s12_one_bad_figure_costs_itself_only(limits, pagelab, strict_object, tmp_path):
    """Three groups of figures, the second all null."""
    summary = pd.read_csv(limits / "summary.csv")
    summary.loc[summary["kv.block_size"] == 16, "mean_ttft_s"] = None
    broken = tmp_path / "broken"
    broken.mkdir()
    summary.to_csv(broken / "summary.csv", index=False)
    (broken / "manifest.json").write_text((limits / "manifest.json").read_text())
    words = ("--var-x", "long_prefill_token_threshold", "--var-y", "mean_ttft_s", "--fig-by", "kv.block_size", "--json")
    done = pagelab("plot", broken, *words)
    assert done.code == 3
    answer = strict_object(done.out)
    assert [figure["figure"].rpartition("-")[2] for figure in answer["figures"]] == ["8.png", "32.png"]
    (failed,) = answer["failed_figures"]
    assert failed.startswith("mean_ttft_s-by-scheduler.long_prefill_token_threshold-16.png: NothingToDraw: ")
    assert failed.endswith("mean_ttft_s has no value in any of these 2 rows")
    assert "-16.png: NothingToDraw" in done.err
    assert len(list((broken / "figures").glob("*.png"))) == 2


# S16 ------------------------------------------------------------------------------------------------------------------


def mooncake(*rows):
    return "".join(
        json.dumps({"timestamp": stamp, "input_length": tokens, "output_length": 1, "hash_ids": ids}) + "\n"
        for stamp, tokens, ids in rows
    )


def test_s16_milliseconds_of_a_trace_are_milliseconds_and_its_own_files_say_their_unit(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(mooncake((1, 512, [1]), (2, 512, [2]), (9, 512, [3]), (11, 512, [4])))
    trace = load_trace(path).trace
    assert trace.arrival_ns.tolist() == [0, 1_000_000, 8_000_000, 10_000_000]
    save_trace(trace, tmp_path / "own.csv")
    assert "arrival_ns" in (tmp_path / "own.csv").read_text()
    assert load_trace(tmp_path / "own.csv").trace.arrival_ns.tolist() == trace.arrival_ns.tolist()


def test_s16_seven_digits_unsorted_and_equal_stamps_keep_their_order(tmp_path):
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    stamps = ("00.0000003", "00.0000001", "00.0000001", "00.0000002")
    rows = "".join(f"2023-11-16 18:15:{stamp},{10 + place},5\n" for place, stamp in enumerate(stamps))
    (tmp_path / "azure.csv").write_text(head + rows)
    trace = load_trace(tmp_path / "azure.csv").trace
    assert trace.arrival_ns.tolist() == [0, 0, 100, 200]
    assert trace.num_prompt_tokens.tolist() == [11, 12, 13, 10]


def test_s16_a_row_with_more_block_ids_than_tokens_is_refused_with_its_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(mooncake((1, 512, [1]), (2, 20, [1, 2])))
    with pytest.raises(ValueError, match=r"trace\.jsonl:2"):
        load_trace(path)


# S18 ------------------------------------------------------------------------------------------------------------------


def test_s18_what_cannot_be_served_is_refused_and_what_cannot_run_together_ends(pagelab, strict_object, tmp_path):
    """Five blocks of 16. A request of 48 + 64 never fits; two of 16 + 48 fit one at a time."""
    save_trace(Trace.build([0, 0, 0], [48, 16, 16], [64, 48, 48]), tmp_path / "three.csv")
    words = ("--trace", "three.csv", "--num-blocks", "5", "--max-model-len", "2048", "--step-model", "linear:1,0,0,0")
    done = pagelab("run", *words, "-o", "out", "--no-report", "--json")
    assert done.code == 0, done.err
    (row,) = strict_object(done.out)["runs"]
    assert (row["num_finished"], row["num_rejected"], row["num_unfinished"]) == (2, 1, 0)
    assert row["num_output_tokens"] == 96
    assert 0 < row["num_preemptions"] <= 4
    assert len(done.err.splitlines()) <= 10


# all of them ----------------------------------------------------------------------------------------------------------


def test_every_scenario_is_here_or_where_the_head_of_this_file_says():
    text = __doc__ or ""
    here = {int(found[1]) for name in globals() if (found := re.match(r"test_s(\d+)_", name))}
    told = {int(number) for number in re.findall(r"^ +S(\d+) ", text, re.MULTILINE)}
    assert here | told == set(range(1, 22))
    sources = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    files = {path.name for path in Path(__file__).parents[1].rglob("test_*.py")}
    for name in re.findall(r"test_\w+(?:\.py)?", text):
        assert name in files if name.endswith(".py") else f"\ndef {name}(" in sources, name
