"""Metrics in Prometheus' text, rows of vLLM's sweeps, and what export refuses."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments.exits import UsageError
from experiments.export.prometheus import histogram, one_two_five, text_of
from experiments.export.runs import KEPT_BY, runs_of
from experiments.export.vllm_sweep import csv_of, json_of, most_at_once, rows_of

VLLM_NAMES = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions", "prefix_cache_queries",
    "prefix_cache_hits", "prompt_tokens", "generation_tokens", "request_success", "time_to_first_token_seconds",
    "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
    "request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens",
}  # fmt: skip
"""Of vLLM 0.33's `v1/metrics/loggers.py`, without the prefix."""


@pytest.fixture(scope="module")
def runs(results):
    return runs_of(results / "compared")


@pytest.fixture(scope="module")
def families(runs):
    parser = pytest.importorskip("prometheus_client.parser")
    return {family.name: family for family in parser.text_string_to_metric_families(text_of(runs))}


def test_the_reference_parser_finds_vllms_names(families):
    assert {name.removeprefix("vllm:") for name in families if name.startswith("vllm:")} == VLLM_NAMES
    assert {family.type for family in families.values()} == {"gauge", "counter", "histogram"}
    assert all(family.documentation for family in families.values())
    for family in (family for name, family in families.items() if name.startswith("vllm:")):
        assert {sample.labels["engine"] for sample in family.samples} == {"0", "1"}


def test_histograms_are_cumulative_and_agree_with_the_requests(families, runs):
    for engine, run in enumerate(runs):
        done = run.requests[run.requests["status"] == "finished"]
        mine = [s for s in families["vllm:time_to_first_token_seconds"].samples if s.labels["engine"] == str(engine)]
        buckets = [sample.value for sample in mine if sample.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        total, count = (next(s.value for s in mine if s.name.endswith(end)) for end in ("_sum", "_count"))
        assert buckets[-1] == count == len(done)
        assert total == pytest.approx((done["first_token_s"] - done["arrival_s"]).sum())


def test_gauges_and_counters_are_the_summarys(families, runs):
    def values(name):
        return [sample.value for sample in families[name].samples]

    assert values("vllm:kv_cache_usage_perc") == [run.row["kv_blocks_used_frac"] for run in runs]
    assert values("vllm:num_preemptions") == [run.row["num_preemptions"] for run in runs]
    assert values("vllm:generation_tokens") == [run.row["num_output_tokens"] for run in runs]
    states = ("live", "reserved", "internal", "external", "free")
    sums = np.sum([values(f"pagelab:kv_{state}_frac") for state in states], axis=0)
    assert sums == pytest.approx([1.0, 1.0])


def test_names_with_quotes_and_backslashes_survive():
    parser = pytest.importorskip("prometheus_client.parser")
    from experiments.export.prometheus import _lines

    odd = 'a "b" \\ c\nd'
    text = "".join(f"{line}\n" for line in _lines(histogram("x", "help", {"k": odd}, np.array([1.0, 3.0]), (2.0,))))
    (family,) = parser.text_string_to_metric_families(text)
    assert {sample.labels["k"] for sample in family.samples} == {odd}


def test_bounds_of_token_counts():
    assert one_two_five(60) == (1, 2, 5, 10, 20, 50)


# vLLM's sweeps --------------------------------------------------------------------------------------------------------


def test_a_row_has_the_columns_that_vllms_plots_read(runs, tmp_path):
    (tmp_path / "summary.csv").write_text(csv_of(runs))
    frame = pd.read_csv(tmp_path / "summary.csv", index_col=0)
    assert list(frame.index) == [0, 1]
    assert frame.index.name is None
    needed = {
        "run_number",
        "request_rate",
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "output_throughput",
    }
    needed |= {"total_output_tokens", "request_throughput", "total_token_throughput", "max_concurrent_requests"}
    needed |= {f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "e2el")}
    assert needed <= set(frame.columns)
    assert list(frame["allocator"]) == ["paged", "orca-oracle"]


def test_times_are_the_summarys_in_milliseconds(runs):
    for run, row in zip(runs, rows_of(runs), strict=True):
        for ours, theirs in (
            ("mean_ttft_s", "mean_ttft_ms"),
            ("mean_tpot_s", "mean_tpot_ms"),
            ("mean_e2e_s", "mean_e2el_ms"),
        ):
            assert row[theirs] == pytest.approx(1000 * run.row[ours])
        assert row["completed"] + row["failed"] == row["num_prompts"] == run.row["num_requests"]
        assert row["output_throughput"] * row["duration"] == pytest.approx(row["total_output_tokens"])


def test_json_is_the_list_that_sweep_plot_finds(pagelab, results, runs, tmp_path):
    assert pagelab("export", results / "compared", "--to", "vllm-sweep", "-o", "summary.json").code == 0
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json_of(runs)) == rows_of(runs)


def test_most_at_once_by_hand():
    frame = pd.DataFrame({"arrival_s": [10.0, 10.4, 12.5], "finish_s": [10.9, 12.2, 12.9]})
    assert most_at_once(frame) == 2
    assert most_at_once(frame.iloc[:0]) == 0
    assert most_at_once(frame.iloc[2:]) == 1


def test_a_sweeps_folder_is_read_with_its_repeats_and_axes(results, tmp_path):
    """Cells `<hash>-r<repeat>`, a column an axis, `axes` in the manifest."""
    folder = tmp_path / "sweep"
    shutil.copytree(results / "compared", folder)
    frame = pd.read_csv(folder / "summary.csv")
    hashes = ["0012e45678", "0000000001"]  # hexadecimal, although they look like a float and an integer
    for cell, name in zip(frame["cell"], hashes, strict=True):
        (folder / "cells" / cell).rename(folder / "cells" / f"{name}-r3")
    frame["cell"] = hashes
    frame.insert(1, "repeat", 3)
    frame.insert(3, "kv.allocator", frame["allocator"])
    frame.insert(4, "scheduler.watermark", [0.1, None])
    frame.to_csv(folder / "summary.csv", index=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {
        "kind": "sweep",
        "axes": {"kv.allocator": ["paged", "orca-oracle"], "scheduler.watermark": [0.1, None]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    rows = rows_of(runs_of(folder))
    assert [row["kv.allocator"] for row in rows] == ["paged", "orca-oracle"]
    assert [row["scheduler.watermark"] for row in rows] == [0.1, None]
    assert {row["run_number"] for row in rows} == {3}
    assert len(runs_of(folder, ["0000000001"])) == 1
    shutil.rmtree(folder / "cells" / "0012e45678-r3")
    with pytest.raises(UsageError, match="not there, although"):
        runs_of(folder)


def test_the_folder_of_the_file_is_made(pagelab, results, tmp_path):
    done = pagelab("export", results / "compared", "--to", "csv", "-o", "new/folder/all.csv")
    assert done.code == 0, done.err
    assert len(pd.read_csv(tmp_path / "new/folder/all.csv")) == 120


@pytest.mark.parametrize("name,said", [*KEPT_BY.items(), ("preemptions", "stored without preemptions")])
def test_a_table_that_is_not_there_says_what_keeps_it(results, tmp_path, name, said):
    run = runs_of(results / "swapped")[0]
    with pytest.raises(UsageError, match=re.escape(said)):
        type(run)(tmp_path, run.row, run.manifest).table(name)


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words,message",
    [
        (("compared", "--to", "perfeto", "-o", "x"), "perfetto"),
        (("compared", "--to", "csv", "-o", "x", "--at", "3"), "--at is for torch-snapshot"),
        (("compared", "--to", "torch-snapshot", "-o", "x", "--at", "-3"), "at least 0"),
        (("compared", "--to", "torch-snapshot", "-o", "x.gz", "--cell", "paged"), "not compressed"),
        (("compared", "--to", "csv", "-o", "/dev/null/x.csv"), "cannot be written"),
        (("compared", "--to", "csv", "-o", "x.csv", "--cell", "none"), "no run begins with 'none'"),
        ((".", "--to", "csv", "-o", "x.csv"), "no summary.csv here"),
    ],
)
def test_what_cannot_be_exported_is_refused(pagelab, results, words, message):
    folder, *rest = words
    done = pagelab("export", results / folder, *rest)
    assert done.code == 2
    assert message in done.err
