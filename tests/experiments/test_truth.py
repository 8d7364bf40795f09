"""Somebody's engine as the truth: its results and its log are read, and the simulator is held against them."""

from __future__ import annotations

import csv
import json
import math

import pytest

from experiments.cli import main
from experiments.truth.judge import errors_of
from experiments.truth.vllm_bench import read_vllm_bench
from experiments.truth.vllm_log import read_vllm_log
from sim.metrics import latencies
from sim.step_rows import COLUMNS, LoggedStep, read_step_rows, step_rows_csv
from workloads import Trace, TraceError, load_trace, save_trace

POOL = ("--kv-tokens", "4096", "--max-model-len", "512", "--step-model", "linear:9e-3,4e-5,3e-7,9e-5")
SIZE = "INFO GPU KV cache size: 110,592 tokens, Maximum concurrency for 8,192 tokens per request: 13.50x\n"
LINE = (
    "(EngineCore pid=7) INFO 11-30 12:00:00 [loggers.py:200] Iteration({index}): {prefills} context requests, {chunk} "
    "context tokens, {decodes} generation requests, {generated} generation tokens, iteration elapsed time: {ms:.2f} "
    "ms{dummy}, GPU KV cache usage: {used:.1f}%\n"
)


def log_line(index=0, prefills=0, chunk=0, decodes=1, generated=None, ms=10.0, used=5.0, dummy=""):
    return LINE.format(
        index=index, prefills=prefills, chunk=chunk, decodes=decodes, ms=ms, used=used, dummy=dummy,
        generated=decodes if generated is None else generated,
    )  # fmt: skip


def bench_result(rows, origin_s=5_000.25, slower=1.0, **extra):
    """As vLLM writes it, from (arrival, ttft, e2e, prompt, output) of each request; its clock starts anywhere."""
    result = {
        "date": "20261130-120000", "backend": "vllm", "model_id": "some/model", "num_prompts": len(rows),
        "request_rate": 4.0, "duration": 60.0, "completed": len(rows), "failed": 0, "total_input_tokens": 1,
        "total_output_tokens": 1, "request_throughput": 1.0,
        "input_lens": [row[3] for row in rows],
        "output_lens": [row[4] for row in rows],
        "ttfts": [row[1] * slower for row in rows],
        "itls": [[(row[2] - row[1]) * slower / (row[4] - 1)] * (row[4] - 1) if row[4] else [] for row in rows],
        "start_times": [origin_s + row[0] for row in rows],
        "errors": [""] * len(rows),
    }  # fmt: skip
    return {**result, **extra}


@pytest.fixture
def simulated(tmp_path):
    """A simulated run, and what a client would have measured of it."""
    import pandas as pd

    arrivals = [i * 70_000_000 for i in range(40)]
    prompts, outputs = [20 + 7 * (i % 11) for i in range(40)], [2 + i % 23 for i in range(40)]
    trace = tmp_path / "trace.csv"
    save_trace(Trace.build(arrivals, prompts, outputs), trace)
    folder = tmp_path / "first"
    assert main(["run", "--trace", str(trace), *POOL, "-o", str(folder), "-q", "--no-report"]) == 0
    table = pd.read_parquet(next(folder.glob("cells/*/requests.parquet")))
    return [
        (r.arrival_s, r.first_token_s - r.arrival_s, r.finish_s - r.arrival_s, r.num_prompt_tokens, r.num_output_tokens)
        for r in table.itertuples()
    ]


def validated(tmp_path, capsys, rows, *words, **bench):
    """The exit code and the JSON of `validate --against`, of a run of the very trace that was measured."""
    result = tmp_path / "result.json"
    result.write_text(json.dumps(bench_result(rows, **bench)))
    folder = tmp_path / "again"
    assert main(["run", "--trace", str(result), *POOL, "-o", str(folder), "-q", "--no-report", "--overwrite"]) == 0
    capsys.readouterr()
    code = main(["validate", str(folder), "--against", str(result), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_the_simulator_has_no_error_against_itself(simulated, tmp_path, capsys):
    code, told = validated(tmp_path, capsys, simulated, "--tolerance", "0.001")
    assert code == 0
    assert [round(each["error_frac"], 6) for each in told["errors"]] == [0] * 9
    assert {each["metric"] for each in told["errors"]} >= {"mean_ttft_s", "p99_e2e_s", "p50_tpot_s"}


def test_an_engine_that_is_slower_is_beyond_the_tolerance(simulated, tmp_path, capsys):
    code, told = validated(tmp_path, capsys, simulated, "--tolerance", "0.05", slower=1.1)
    assert code == 4
    assert all(each["error_frac"] == pytest.approx(1 / 1.1 - 1, abs=1e-6) for each in told["errors"])
    assert not any(each["within"] for each in told["errors"])
    assert validated(tmp_path, capsys, simulated, "--tolerance", "0.12", slower=1.1)[0] == 0
    assert validated(tmp_path, capsys, simulated, slower=1.1)[0] == 0  # told, not judged


def test_a_folder_of_another_trace_is_refused(simulated, tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(bench_result(simulated[1:])))
    assert main(["validate", str(tmp_path / "first"), "--against", str(other)]) == 2
    assert "run it with --trace" in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "first"), "--tolerance", "0.1"]) == 2


def test_requests_that_failed_are_left_out_of_both_sides(simulated, tmp_path):
    rows = [(*row[:4], 0) if index % 5 == 0 else row for index, row in enumerate(simulated)]
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(bench_result(rows)))
    measured = read_vllm_bench(path)
    assert [row.status for row in measured.rows].count("failed") == 8
    again = [row._replace(finish=row.finish + (row.finish > 0) * 7) for row in measured.rows]
    errors = {error.metric: error for error in errors_of(measured.rows, again)}
    assert errors["mean_ttft_s"].frac == 0 < errors["mean_e2e_s"].frac


def test_rows_are_put_in_order_of_arrival_with_their_own_times(simulated, tmp_path):
    backwards, path = list(reversed(simulated)), tmp_path / "backwards.json"
    path.write_text(json.dumps(bench_result(backwards)))
    measured = read_vllm_bench(path)
    told = latencies(measured.rows)
    assert measured.trace.num_prompt_tokens.tolist() == [row[3] for row in simulated]
    assert told["mean_ttft_s"] == pytest.approx(math.fsum(r[1] for r in simulated) / 40, abs=1e-9)
    assert told["mean_e2e_s"] == pytest.approx(math.fsum(r[2] for r in simulated) / 40, abs=1e-9)


@pytest.mark.parametrize(
    "change,said",
    [
        ({"start_times": None}, "--save-detailed"),
        ({"input_lens": [1]}, "1 input_lens"),
        ({"ttfts": [0.1]}, "1 ttfts of 40"),
        ({"ttfts": [-1.0] * 40}, "0 < ttft <= latency"),
        ({"itls": [["x"]] * 40}, "itls of request 0"),
        ({"itls": [0.1] * 40}, "need a list a request"),
        ({"start_times": ["soon"] * 40}, "start_times"),
        ({"output_lens": [-4] * 40}, "negative token count"),
    ],
)
def test_results_that_are_not_whole_are_refused_with_what_to_do(simulated, tmp_path, change, said):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(bench_result(simulated, **change)))
    with pytest.raises(TraceError, match=said) as refused:
        read_vllm_bench(path)
    assert "bad.json" in str(refused.value)


def test_two_results_in_one_file_are_refused(simulated, tmp_path):
    text = json.dumps(bench_result(simulated))
    path = tmp_path / "two.json"
    path.write_text(f"{text}\n{text}")
    with pytest.raises(TraceError, match=r"two.json:2: a second result \(--append-result\)"):
        load_trace(path)
    path.write_text(text[:-10])
    with pytest.raises(TraceError, match="not JSON"):
        load_trace(path)


def test_steps_of_a_log_are_rows(tmp_path, capsys):
    log, table = tmp_path / "server.log", tmp_path / "steps.csv"
    lines = [
        "INFO Using FLASH_ATTN attention backend out of potential backends\n",
        SIZE,
        log_line(0, prefills=2, chunk=300, decodes=0, ms=31.25, used=0.3),
        log_line(1, decodes=2, ms=9.5, used=0.3),
        "INFO Engine 000: Avg prompt throughput: 30.0 tokens/s\n",
        log_line(2, decodes=0, ms=0.4, dummy=" (dummy)"),
        log_line(3, decodes=2, generated=40),
        log_line(4, prefills=1, chunk=64, decodes=2, ms=12.0, used=0.4),
    ]
    log.write_text("".join(lines))
    found = read_vllm_log(log)
    assert (found.kv_tokens, sum(found.left_out.values())) == (110_592, 2)
    held = round(0.003 * 110_592 - 2 * 7.5)
    assert found.rows[0] == LoggedStep(0, 2, 300, held - 300, 0, 16, "FLASH_ATTN", 0.03125)
    assert found.rows[1] == LoggedStep(2, 0, 0, held - 2, 0, 16, "FLASH_ATTN", 0.0095)
    assert main(["trace", "steps", str(log), str(table)]) == 0
    assert "3 steps, 2 of them with prefills" in capsys.readouterr().out
    assert list(read_step_rows(table)) == found.rows
    first = next(csv.DictReader(table.open()))
    assert (first["num_kv_tokens"], first["num_new_tokens"]) == (str(held), "300")
    assert main(["trace", "steps", str(log), str(table)]) == 2


@pytest.mark.parametrize(
    "text,said",
    [
        ("nothing\n", "no step in it"),
        (log_line(), r"server.log:1: .*--kv-tokens"),
        (SIZE + log_line().replace("elapsed time", "took"), r"server.log:2: an iteration in other words"),
        (SIZE + log_line(decodes=0, dummy=" (dummy)"), "1 dummy iterations"),
    ],
)
def test_logs_without_steps_are_refused_with_what_to_do(tmp_path, text, said):
    log = tmp_path / "server.log"
    log.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_vllm_log(log)


def test_pairs_are_exact_for_decodes_and_for_one_prompt():
    assert LoggedStep(3, 0, 0, 30, 0, 16, "", 0.01).num_attended_pairs == 33
    assert LoggedStep(0, 1, 4, 10, 0, 16, "", 0.01).num_attended_pairs == 11 + 12 + 13 + 14


@pytest.mark.parametrize(
    "line,said",
    [
        ("1,0,0,10,0", "duration_s is 0"),
        ("1,0,0,-1,0.1", "num_context_tokens is -1"),
        ("0,0,0,10,0.1", "no sequence"),
        ("0,2,1,10,0.1", "each of them has at least one"),
        ("1.5,0,0,10,0.1", "whole numbers"),
        ("1,0,0,10,", "duration_s is in seconds"),
        ("1,0,0,10,nan", "more than 0"),
    ],
)
def test_a_step_that_cannot_be_is_refused_with_its_line(tmp_path, line, said):
    path = tmp_path / "steps.csv"
    path.write_text(f"num_decodes,num_prefills,num_chunk_tokens,num_context_tokens,duration_s\n1,0,0,5,0.1\n{line}\n")
    with pytest.raises(ValueError, match=said) as refused:
        list(read_step_rows(path))
    assert "steps.csv:3" in str(refused.value)


def test_a_table_without_its_columns_is_refused(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("num_decodes,duration_s\n1,0.1\n")
    with pytest.raises(ValueError, match=r"steps.csv:1: .*num_context_tokens"):
        list(read_step_rows(path))
    path.write_text(step_rows_csv([LoggedStep(1, 0, 0, 5, 8, 16, "x", 0.1)] * 300, "a"))
    assert len(list(read_step_rows(path))) == 300
    assert {row["run"] for row in csv.DictReader(path.open())} == {"a#0", "a#1"}
    assert set(COLUMNS) <= set(next(csv.DictReader(path.open())))
