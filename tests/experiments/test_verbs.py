"""The smaller verbs, and what the command line itself answers."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.console import in_colour
from experiments.defaults import OF_TRACE_FILES, OF_WORKLOAD
from experiments.figures import FIGURES
from experiments.paper.verb import EXPERIMENTS
from experiments.presets import PRESETS
from workloads import FORMATS


@pytest.mark.parametrize(
    "words",
    [
        ("compar",),
        ("compare", "--blok-size", "3"),
        ("compare", "stray"),
        ("compare", "--allocator", "orca-maxx"),
        ("compare", "--allocator", "nowhere:Nothing"),
        ("compare", "--model", "lama-2-13b"),
        ("compare", "--gpu", "a100-80"),
        ("compare", "--workload", "paper-fig3"),
        ("compare", "--trace", "missing.csv"),
        ("compare", "-c", "missing.toml"),
        ("compare", "--step-model", "linear:1,2"),
        ("compare", "--max-num-batched-tokens", "100"),
        ("compare", "--record", "everything"),
        ("compare", "--block-size", "0"),
        ("compare", "--jobs", "0"),
        ("report", "missing"),
        ("map", "missing"),
        ("map", ".", "--at", "nan"),
        ("map", ".", "--at", "-1"),
        ("plot", "missing"),
        ("validate", "missing"),
        ("capacity", "--rule", "best"),
        ("check-allocator", "nowhere:Nothing"),
    ],
)
def test_what_cannot_be_done_is_exit_2_with_one_reason(pagelab, words):
    done = pagelab(*words)
    assert done.code == 2, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.strip().splitlines()[-1]


def test_suggestions(pagelab):
    assert "--block-size" in pagelab("compare", "--blok-size", "3").err
    assert "orca-max" in pagelab("compare", "--allocator", "orca-maxx").err
    assert "llama-2-13b" in pagelab("compare", "--model", "lama-2-13b").err


def test_an_error_under_json_is_one_object_too(pagelab, strict_object):
    done = pagelab("compare", "--allocator", "orca-maxx", "--json")
    assert strict_object(done.out)["exit_code"] == done.code == 2


def test_a_bug_of_ours_is_exit_1(pagelab, monkeypatch):
    monkeypatch.setattr("experiments.resolve.filled", lambda *args, **kwargs: 1 / 0)
    done = pagelab("compare")
    assert done.code == 1
    assert "ZeroDivisionError" in done.err


def test_help_and_version_import_nothing_heavy(tmp_path):
    code = (
        "import sys; from experiments.cli import main; code = main(['compare', '--help']); "
        "heavy = {'pandas', 'pyarrow', 'seaborn', 'matplotlib', 'torch', 'simpy', 'pydantic'} & set(sys.modules); "
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--allow-unequal-pools" in done.stdout


def test_help_names_what_there_is(pagelab):
    reproduced = " ".join(pagelab("reproduce", "--help").out.split())
    assert all(name in reproduced for name in EXPERIMENTS)
    inspected = pagelab("trace", "inspect", "--help").out
    assert all(name in inspected for name in FORMATS)
    compared = " ".join(pagelab("compare", "--help").out.replace("│", " ").split())
    for flag, field in (("running requests", "max_num_seqs"), ("tokens in a step", "max_num_batched_tokens")):
        vllm, paper = (getattr(PRESETS[name], field) for name in ("vllm", "sosp23"))
        assert f"{flag} [vllm: {vllm}; sosp23: {paper}]" in compared
    assert f"GPU by name [{OF_TRACE_FILES.gpu}; paper-*: {OF_WORKLOAD['paper-fig2'].gpu}]" in compared


def test_capacity_prints_the_terms(pagelab, strict_object):
    answer = strict_object(pagelab("capacity", "--rule", "sosp23", "--json").out)
    assert (answer["num_blocks"], answer["block_size"], answer["rule"]) == (984, 16, "sosp23")
    assert answer["terms"]["total_bytes"] == 42_314_694_656
    default = strict_object(pagelab("capacity", "-m", "llama-2-13b", "--gpu", "a100-80g", "--json").out)
    assert default["num_blocks"] == 3818
    chapter = strict_object(pagelab("capacity", "-m", "llama-2-13b", "--rule", "chapter", "--json").out)
    assert [c["rule"] for c in chapter["capacities"]] == ["chapter-gib", "chapter-gb", "chapter-mixed"]
    assert "weights_bytes" in pagelab("capacity").out


def test_a_capacity_that_leaves_no_block_says_why(pagelab):
    done = pagelab("capacity", "-m", "llama-2-13b", "--gpu", "l4-24g")
    assert done.code == 2
    assert "not one KV block fits" in done.err


def test_traces_are_made_inspected_converted_and_validated(pagelab, strict_object):
    assert pagelab("trace", "synth", "a.csv", "-n", "50", "--seed", "4", "--request-rate", "2").code == 0
    assert pagelab("trace", "synth", "a.csv").code == 2
    assert pagelab("trace", "synth", "b.txt").code == 2
    assert pagelab("trace", "convert", "a.csv", "b.parquet").code == 0
    first = strict_object(pagelab("trace", "inspect", "a.csv", "--json").out)
    second = strict_object(pagelab("trace", "inspect", "b.parquet", "--json").out)
    assert first["sha256"] == second["sha256"]
    assert first["num_requests"] == 50
    assert "rate_per_s" in pagelab("trace", "inspect", "a.csv").out
    valid = strict_object(pagelab("trace", "validate", "b.parquet", "--json").out)
    assert (valid["valid"], valid["num_requests"]) == (True, 50)


def test_a_file_that_is_no_trace_is_exit_2_with_its_line(pagelab, tmp_path):
    (tmp_path / "bad.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,12,x\n")
    done = pagelab("trace", "validate", "bad.csv")
    assert done.code == 2
    assert "bad.csv:2" in done.err


def test_stored_results_are_validated_by_their_bytes(small, pagelab, strict_object, tmp_path):
    small("compare", "-o", "out", "--allocator", "paged", "--no-report")
    assert pagelab("validate", "out").code == 0
    assert pagelab("validate", "out/config.resolved.toml").code == 0
    (table,) = (tmp_path / "out/cells").glob("*/timeline.parquet")
    table.write_bytes(table.read_bytes()[:-9])
    done = pagelab("validate", "out", "--json")
    assert done.code == 4
    assert any("timeline.parquet" in problem for problem in strict_object(done.out)["problems"])
    (tmp_path / "out/manifest.json").unlink()
    assert pagelab("validate", "out").code == 2


def test_maps_and_plots_of_stored_results(small, pagelab, tmp_path):
    small("compare", "-o", "out", "--allocator", "paged,orca-max", "--block-size", "8,16", "--no-report")
    shown = pagelab("map", "out", "--at", "2.5", "--cell", "orca-max-bs16")
    assert shown.code == 0, shown.err
    assert shown.out.count("orca-max-bs16") == 1
    assert pagelab("map", "out", "--cell", "nothing").code == 2
    drawn = pagelab("plot", "out", "--var-y", "mean_batch_size")
    assert drawn.code == 0, drawn.err
    assert (tmp_path / "out/figures/mean_batch_size-by-block_size.png").stat().st_size > 1000
    assert pagelab("validate", "out").code == 0
    assert pagelab("plot", "out", "--var-y", "mean_batch_sise").code == 2
    assert pagelab("plot", "out", "-o", "new/plot.pdf").code == 0
    assert (tmp_path / "new/plot.csv").exists()
    assert pagelab("plot", "out", "-o", "plot.nonsense").code == 2


LEAKY = """
from engine.core.registry import ALLOCATORS

def Leaky(pool):
    made = ALLOCATORS["paged"](pool)
    made.free = lambda request: None
    return made
"""


def test_check_allocator_passes_ours_and_names_what_a_leak_breaks(pagelab, strict_object, tmp_path):
    assert pagelab("check-allocator", "paged", "--seeds", "2", "--actions", "30").code == 0
    (tmp_path / "my_leaky_pool.py").write_text(LEAKY)
    done = pagelab("check-allocator", "my_leaky_pool:Leaky", "--seeds", "2", "--json")
    assert done.code == 4
    answer = strict_object(done.out)
    assert answer["holds"] is False
    assert "seed=" in answer["violation"]


def test_a_report_that_breaks_loses_no_data(small, monkeypatch, tmp_path):
    import experiments.report

    def broken(folder):
        raise RuntimeError("no ink")

    monkeypatch.setattr(experiments.report, "build_report", broken)
    done = small("compare", "-o", "out", "--allocator", "paged")
    assert done.code == 3
    assert "no ink" in done.err
    assert json.loads((tmp_path / "out/manifest.json").read_text())["status"] == "failed"
    assert (tmp_path / "out/summary.csv").exists()


def test_a_figure_that_breaks_is_named_and_everything_else_is_kept(
    small, pagelab, monkeypatch, strict_object, tmp_path
):
    def broken(stored, canvas):
        raise RuntimeError("no ink")

    monkeypatch.setitem(FIGURES, "batched_requests", replace(FIGURES["batched_requests"], draw=broken))
    done = small("compare", "-o", "out", "--allocator", "paged")
    assert done.code == 3
    assert "figure batched_requests: RuntimeError: no ink" in done.err
    assert done.out.rstrip().splitlines()[-1] == "report: out/report.html"
    assert (tmp_path / "out/figures/waste_breakdown.png").exists()
    again = pagelab("report", "out", "--json")
    assert again.code == 3
    assert strict_object(again.out)["failed_figures"] == ["batched_requests: RuntimeError: no ink"]
    monkeypatch.undo()


def test_a_summary_of_few_columns_costs_the_figures_that_need_others(small, pagelab, tmp_path):
    small("compare", "-o", "out", "--allocator", "paged,orca-max", "--no-report")
    kept = ["cell", "seed", "allocator", "block_size", "mean_ttft_s", "mean_tpot_s"]
    summary = pd.read_csv(tmp_path / "out/summary.csv")
    summary[kept].to_csv(tmp_path / "out/summary.csv", index=False)
    done = pagelab("report", "out")
    assert done.code == 3
    assert "figure waste_breakdown: ValueError: unknown column 'kv_live_frac'" in done.err
    assert (tmp_path / "out/figures/ttft_ecdf.png").exists()
    assert (tmp_path / "out/report.html").exists()
    assert pagelab("plot", "out", "--var-x", "mean_ttft_s", "--var-y", "mean_tpot_s").code == 0


def test_a_map_has_colours_on_a_terminal_only(small, pagelab, monkeypatch):
    small("compare", "-o", "out", "--allocator", "paged", "--no-report")
    assert "\x1b[" not in pagelab("map", "out").out
    monkeypatch.setattr("experiments.views.in_colour", lambda: True)
    assert "\x1b[" in pagelab("map", "out").out


@pytest.mark.parametrize("value,coloured", [(None, True), ("", True), ("1", False)])
def test_no_color_is_honoured(monkeypatch, value, coloured):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    assert in_colour() is coloured


def test_a_wrong_name_to_reproduce_is_one_object_too(pagelab, strict_object):
    done = pagelab("reproduce", "fig13", "--json")
    assert done.code == 2
    assert strict_object(done.out)["exit_code"] == 2
    assert "did you mean fig13" in strict_object(done.out)["error"]


def test_the_report_is_the_last_word_and_in_the_manifest(small, pagelab, tmp_path):
    done = small("compare", "-o", "out", "--allocator", "paged,orca-max")
    assert done.code == 0, done.err
    assert done.out.rstrip().splitlines()[-1] == "report: out/report.html"
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert "report.html" in manifest["derived_files"]
    assert pagelab("report", "out").code == 0
    assert pagelab("validate", "out").code == 0


@pytest.mark.parametrize("given", ["sizes", "./sizes", "sizes/config.json", "absolute"])
def test_a_resolved_configuration_runs_from_anywhere(small, pagelab, tmp_path, monkeypatch, strict_object, given):
    """However the model's folder was named, the copy in the results names it from there."""
    (tmp_path / "sizes").mkdir()
    shape = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 2048}
    (tmp_path / "sizes" / "config.json").write_text(json.dumps({**shape, **more}), encoding="utf-8")
    name = str(tmp_path / "sizes") if given == "absolute" else given
    first = small("run", "-m", name, "-o", "out", "--no-report")
    assert first.code == 0, first.err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = pagelab("run", "-c", "../out/config.resolved.toml", "--json")

    assert again.code == 0, again.err
    assert strict_object(again.out)["runs"][0]["num_finished"] == 40


def test_results_at_several_rates_are_one_picture(small, pagelab, strict_object, tmp_path):
    """Latency and throughput against rate on a trace of one's own: a folder a rate, the point of each its own."""
    for rate in ("2", "8"):
        small("compare", "-o", f"at-{rate}", "--allocator", "paged,orca-max", "--request-rate", rate, "--no-report")
    for column in ("mean_normalized_latency_s", "output_tok_per_s"):
        words = ("--var-x", "rate_per_s", "--var-y", column, "-o", f"{column}.png", "--json")
        points = strict_object(pagelab("plot", "at-2", "at-8", *words).out)["points"]
        stored = [
            (row["allocator"], float(row[column]))
            for rate in ("2", "8")
            for row in csv.DictReader((tmp_path / f"at-{rate}" / "summary.csv").read_text("utf-8").splitlines())
        ]

        drawn = sorted((point["allocator"], point[column]) for point in points)
        assert [name for name, _ in drawn] == [name for name, _ in sorted(stored)]
        assert [value for _, value in drawn] == pytest.approx([value for _, value in sorted(stored)])
        assert {round(point["rate_per_s"]) for point in points} == {2, 8}
        assert (tmp_path / f"{column}.png").exists()
    assert pagelab("validate", "at-2").code == 0


@pytest.mark.parametrize(
    "words,said",
    [
        (("at", "at", "-o", "x.png"), "a folder is named twice"),
        (("at", "at/../at"), "say where the picture goes"),
        ((), "name a folder"),
        (("at", "missing", "-o", "x.png"), "no summary.csv here"),
    ],
)
def test_folders_that_cannot_share_a_picture_are_refused(small, pagelab, words, said):
    small("run", "-o", "at", "--no-report")
    done = pagelab("plot", *words)

    assert (done.code, done.out) == (2, "")
    assert said in done.err
