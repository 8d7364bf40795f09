"""The main job: one trace, several allocators and block sizes, in JSON and in a results folder."""

import json
import multiprocessing
from pathlib import Path

import pandas as pd
import pytest

from experiments import trace_lengths
from experiments.arriving import arrive
from experiments.settings import Workload
from workloads import Trace

RUN_KEYS = """
allocator block_size num_blocks num_finished num_rejected num_preemptions kv_live_frac kv_reserved_frac
kv_internal_frac kv_external_frac kv_free_frac kv_blocks_used_frac mean_batch_size request_throughput_per_s
output_tok_per_s mean_ttft_s p99_ttft_s mean_tpot_s p99_tpot_s mean_normalized_latency_s makespan_s
"""


def test_json_is_one_strict_object_with_a_row_a_run_and_writes_nothing(small, strict_object, tmp_path):
    done = small("compare", "--block-size", "8,16", "--json")
    assert done.code == 0, done.err
    answer = strict_object(done.out)
    assert answer["trace"]["num_requests"] == 40
    assert len(answer["trace"]["sha256"]) == 64
    assert answer["capacity"]["tokens"] == 4000
    assert answer["capacity"]["bytes"] == 4000 * answer["capacity"]["bytes_per_token"]
    pairs = [(run["allocator"], run["block_size"]) for run in answer["runs"]]
    assert pairs == [(a, b) for a in ("paged", "orca-max", "orca-pow2", "orca-oracle") for b in (8, 16)]
    for run in answer["runs"]:
        assert set(RUN_KEYS.split()) <= run.keys()
        assert run["num_blocks"] == 4000 // run["block_size"]
        assert run["num_finished"] == 40
    assert list(tmp_path.iterdir()) == []


def test_results_are_complete_and_the_manifest_comes_last(small, tmp_path):
    done = small("compare", "-o", "out", "--allocator", "paged,orca-max", "--map-frames", "5", "--no-report")
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith("results: out")
    folder = tmp_path / "out"
    manifest = json.loads((folder / "manifest.json").read_text())
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert max(times, key=times.__getitem__) == folder / "manifest.json"
    assert manifest["status"] == "ok"
    assert manifest["trace"]["file"] == "small.csv"
    assert manifest["config"]["workload"]["trace"] == "small.csv"
    assert len(manifest["cells"]) == 2
    summary = pd.read_csv(folder / "summary.csv")
    assert list(summary["allocator"]) == ["paged", "orca-max"]
    for cell in summary["cell"]:
        place = folder / "cells" / cell
        assert len(pd.read_parquet(place / "requests.parquet")) == 40
        assert pd.read_parquet(place / "map.parquet")["time_s"].nunique() == 5
        assert json.loads((place / "validation.json").read_text())["passed"]
        assert json.loads((place / "summary.json").read_text())["num_finished"] == 40


def test_the_manifest_holds_no_absolute_path(small, tmp_path, trace_file):
    small("compare", "-o", tmp_path / "out", "--allocator", "paged", "--no-report")
    text = (tmp_path / "out/manifest.json").read_text()
    assert str(tmp_path) not in text
    assert str(trace_file.parent) not in text


def test_the_same_seed_gives_the_same_bytes_in_one_process_or_two(small, tmp_path, tree):
    words = ("--allocator", "paged,orca-pow2", "--no-report", "--record", "steps", "--map-frames", "4")
    assert small("compare", "-o", "a", *words).code == 0
    assert small("compare", "-o", "b", *words, "--jobs", "2").code == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert multiprocessing.active_children() == []


def test_the_resolved_configuration_runs_again_as_it_is(small, pagelab, tmp_path, tree):
    small("compare", "-o", "a", "--allocator", "paged", "--no-report")
    again = pagelab("compare", "-c", "a/config.resolved.toml", "-o", "deeper/b", "--no-report")
    assert again.code == 0, again.err
    first, second = tree(tmp_path / "a"), tree(tmp_path / "deeper/b")
    assert {n: b for n, b in first.items() if n.startswith("cells")} == {
        n: b for n, b in second.items() if n.startswith("cells")
    }
    assert (tmp_path / "deeper/b/config.input.toml").exists()


def test_results_are_not_overwritten_unasked(small, tmp_path):
    assert small("compare", "-o", "out", "--allocator", "paged", "--no-report").code == 0
    before = (tmp_path / "out/manifest.json").read_bytes()
    refused = small("compare", "-o", "out", "--allocator", "paged", "--no-report")
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert (tmp_path / "out/manifest.json").read_bytes() == before
    assert small("compare", "-o", "out", "--allocator", "orca-max", "--no-report", "--overwrite").code == 0
    assert [p.name.startswith("orca-max") for p in (tmp_path / "out/cells").iterdir()] == [True]


def test_overwrite_does_not_touch_a_folder_that_is_not_results(small, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("dear reader")
    refused = small("compare", "-o", "thesis", "--overwrite")
    assert refused.code == 2
    assert (tmp_path / "thesis/chapter1.tex").read_text() == "dear reader"


@pytest.mark.parametrize("name", ["../x", "a/b", "/tmp/x", "..", "", ".hidden", "a\\b", "x\n"])
def test_a_name_cannot_lead_out_of_the_results_folder(small, tmp_path, name):
    refused = small("compare", "-o", "out", f"--experiment-name={name}")
    assert refused.code == 2
    assert not (tmp_path / "out").exists()


def test_an_interrupt_keeps_what_is_finished(small, tmp_path, monkeypatch):
    from experiments import compare

    real, calls = compare.run_task, []

    def interrupted(task, on_turn=None):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(task, on_turn)

    monkeypatch.setattr(compare, "run_task", interrupted)
    done = small("compare", "-o", "out", "--no-report")
    assert done.code == 130
    assert "1 of 4 cells" in done.err
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert [cell["allocator"] for cell in manifest["cells"]] == ["paged"]
    assert len(list((tmp_path / "out/cells").iterdir())) == 1


def test_unequal_pools_are_refused_unless_asked_for(pagelab, trace_file, strict_object):
    words = ("compare", "--trace", trace_file, "--num-blocks", "300", "--block-size", "8,16", "--allocator", "paged")
    refused = pagelab(*words)
    assert refused.code == 2
    assert "--allow-unequal-pools" in refused.err
    done = pagelab(*words, "--allow-unequal-pools", "--json")
    answer = strict_object(done.out)
    assert [run["num_blocks"] for run in answer["runs"]] == [300, 300]
    assert answer["capacity"]["tokens"] is None


def test_nothing_completes_is_said_with_nulls_and_exit_3(pagelab, trace_file, strict_object, tmp_path):
    done = pagelab("compare", "--trace", trace_file, "--kv-tokens", "16", "--json")
    assert done.code == 3
    answer = strict_object(done.out)
    for run in answer["runs"]:
        assert run["num_rejected"] == 40
        assert run["mean_ttft_s"] is None
        assert run["p99_tpot_s"] is None
    text = pagelab("compare", "--trace", trace_file, "--kv-tokens", "16", "--no-report", "-o", "out")
    assert text.code == 3
    assert "No request completed" in text.out
    assert pagelab("report", "out").code == 0
    assert "No request was completed by" in (tmp_path / "out/report.html").read_text()


BROKEN = """
from engine.core.registry import ALLOCATORS

def Same(pool):
    return ALLOCATORS["paged"](pool)

class Broken:
    def __init__(self, pool):
        raise RuntimeError("no memory today")
"""


def test_an_allocator_of_ones_own_runs_by_its_path(small, strict_object, tmp_path):
    (tmp_path / "my_pools_one.py").write_text(BROKEN)
    answer = strict_object(small("compare", "--allocator", "paged,my_pools_one:Same", "--json").out)
    mine, ours = ({**run, "allocator": "", "cell": ""} for run in answer["runs"])
    assert mine == ours


def test_one_broken_allocator_fails_alone(small, strict_object, tmp_path):
    (tmp_path / "my_pools_two.py").write_text(BROKEN)
    words = ("--allocator", "paged,my_pools_two:Broken")
    done = small("compare", *words, "--json")
    assert done.code == 3
    answer = strict_object(done.out)
    assert [run["allocator"] for run in answer["runs"]] == ["paged"]
    assert "no memory today" in answer["failed"][0]["error"]
    assert small("compare", *words, "-o", "out", "--no-report").code == 3
    (place,) = Path(tmp_path / "out/cells").glob("my_pools_two*")
    assert "no memory today" in (place / "error.txt").read_text()


def test_a_check_that_does_not_hold_gives_exit_4(small, strict_object, monkeypatch):
    from sim import simulate
    from sim.reconcile import Check

    monkeypatch.setattr(simulate, "reconcile", lambda run, rows: [Check("one is two", False, 1, 2)])
    done = small("compare", "--allocator", "paged", "--json")
    assert done.code == 4
    assert list(strict_object(done.out)["failed_checks"].values()) == [["one is two"]]


def test_duplicate_cells_are_run_once(small, strict_object):
    answer = strict_object(small("compare", "--allocator", "paged,paged", "--block-size", "16,16,16", "--json").out)
    assert len(answer["runs"]) == 1
    assert [note for note in answer["notes"] if not note.startswith("percentiles")] == ["5 duplicate cells are merged"]


def test_the_order_of_the_cells_changes_no_number(small, strict_object):
    one = strict_object(small("compare", "--allocator", "paged,orca-oracle", "--json").out)
    other = strict_object(small("compare", "--allocator", "orca-oracle,paged", "--json").out)
    assert [{**run, "cell": ""} for run in one["runs"]] == [{**run, "cell": ""} for run in reversed(other["runs"])]


def test_an_allocator_that_rejects_everything_is_explained(pagelab, trace_file, tmp_path, strict_object):
    words = ("compare", "--trace", trace_file, "--kv-tokens", "3000", "--max-model-len", "2048", "--no-report")
    said = "orca-max at block size 16 rejected every request: "
    said += "its reservation of 2,048 tokens exceeds the largest extent, "
    done = pagelab(*words, "--allocator", "paged,orca-max", "-o", "out")
    assert done.code == 0
    assert "rejected every request" not in done.err
    done = pagelab(*words[:4], "2000", *words[5:], "--allocator", "paged,orca-max", "-o", "small")
    assert done.code == 0, done.err
    said += "1,024 tokens; lower --max-model-len or enlarge the pool"
    assert f"warning: {said}" in done.err
    manifest = json.loads((tmp_path / "small/manifest.json").read_text())
    assert [note for note in manifest["notes"] if not note.startswith("percentiles")] == [said]
    grows = pagelab(*words[:4], "2000", *words[5:-1], "--allocator", "orca-oracle", "--json")
    (note,) = strict_object(grows.out)["notes"]
    assert "the 2,048 tokens that its smallest request may grow to (prompt + max_tokens, rounded up) exceed" in note
    short = pagelab(*words[:4], "16", *words[5:-1], "--allocator", "paged", "--json")
    assert short.code == 3
    assert strict_object(short.out)["notes"] == [
        "paged at block size 16 rejected every request: each is longer than max_model_len or the pool"
    ]


def test_percentiles_are_the_same_in_every_output(small, strict_object, tmp_path):
    done = small("compare", "-o", "out", "--allocator", "paged", "--no-report", "--json")
    (row,) = strict_object(done.out)["runs"]
    table = pd.read_csv(tmp_path / "out/summary.csv").iloc[0]
    (cell,) = (tmp_path / "out/cells").iterdir()
    stored = json.loads((cell / "summary.json").read_text())
    requests = pd.read_parquet(cell / "requests.parquet")
    waited = (requests["first_token_s"] - requests["arrival_s"])[requests["status"] == "finished"]
    for q in (50, 90, 99):
        assert row[f"p{q}_ttft_s"] == table[f"p{q}_ttft_s"] == stored[f"p{q}_ttft_s"]
        assert row[f"p{q}_ttft_s"] == pytest.approx(waited.quantile(q / 100), abs=1e-12)


def test_the_lengths_of_the_trace_are_kept(small, tmp_path):
    small("compare", "-o", "out", "--allocator", "paged", "--no-report")
    lines = (tmp_path / "out/trace_lengths.csv").read_text().splitlines()
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert lines[0] == "num_prompt_tokens,num_output_tokens"
    assert len(lines) == 41
    assert manifest["trace_lengths"] == {"seed": 0, "num_requests": 40, "num_rows": 40, "rows": "all"}
    assert "trace_lengths.csv" in manifest["files"]


def test_of_a_very_long_trace_a_fixed_sample_of_lengths_is_kept(monkeypatch):
    trace = Trace.build(range(50), range(1, 51), range(1, 51))
    monkeypatch.setattr(trace_lengths, "MOST_ROWS", 10)
    kept = trace_lengths.lengths_csv(arrive(Workload(), 3, 1, trace))
    assert kept == trace_lengths.lengths_csv(arrive(Workload(), 3, 1, trace))
    assert len(set(kept.splitlines())) == 11
    assert trace_lengths.entry_of(arrive(Workload(), 3, 1, trace))["rows"].startswith("a random sample")


def test_repeats_take_consecutive_seeds_and_a_file_has_none(small, pagelab, strict_object):
    words = ("compare", "--num-requests", "30", "--num-runs", "2", "--seed", "5", "--allocator", "paged", "--json")
    answer = strict_object(pagelab(*words).out)
    assert [run["seed"] for run in answer["runs"]] == [5, 6]
    assert answer["runs"][0]["num_prompt_tokens"] != answer["runs"][1]["num_prompt_tokens"]
    refused = small("compare", "--num-runs", "3")
    assert refused.code == 2
    assert "seed" in refused.err


def test_run_takes_one_allocator(small, strict_object):
    answer = strict_object(small("run", "--json").out)
    assert [(run["allocator"], run["block_size"]) for run in answer["runs"]] == [("paged", 16)]
    assert small("run", "--allocator", "paged,orca-max").code == 2


def test_the_executor_that_checks_every_token_agrees_with_the_cost_model(small, strict_object):
    cost = strict_object(small("run", "--json").out)["runs"][0]
    shadow = strict_object(small("run", "--json", "--executor", "shadow").out)["runs"][0]
    assert {**cost, "cell": ""} == {**shadow, "cell": ""}


def test_without_torch_its_executor_gives_exit_6(small, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    done = small("run", "--executor", "torch-cpu")
    assert done.code == 6
    assert "pip install" in done.err


def test_the_terminal_gets_a_table_and_a_sentence(small):
    done = small("compare", "--no-report", "-o", "out", "-q")
    assert done.err == ""
    assert "orca-oracle" in done.out
    assert "live shares do not rank allocators." in done.out
    assert "\x1b" not in done.out
