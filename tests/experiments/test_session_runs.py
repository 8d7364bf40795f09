"""Session workloads behind the verbs: keys and flags, what the results say of the loop, and the real engine."""

import json

import pandas as pd
import pytest

from experiments.arriving import arrive
from experiments.settings import Config
from workloads import Shape, load_trace, save_trace, session_trace

SMALL = ("--kv-tokens", "4000", "--step-model", "linear:0.02,0.0001,0.000001,0.0001", "--no-report")


def first_cell(folder):
    (cell,) = (folder / "cells").iterdir()
    return cell


def test_a_chat_runs_by_flags_and_by_keys_alike(pagelab, tmp_path):
    flags = ("--turns", "fixed:3", "--think-time", "constant:1", "--turn-lengths", "uniform:5-50,5-30")
    more = ("--prefix-tokens", "40", "--num-prefixes", "2", "--max-session-tokens", "300", "--request-rate", "2")
    done = pagelab("run", "--workload", "chat", "-n", "30", *flags, *more, *SMALL, "-o", "out")
    assert done.code == 2  # run has no short form
    done = pagelab("run", "--workload", "chat", "--num-requests", "30", *flags, *more, *SMALL, "-o", "out")
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["trace"]["arrivals"] == "partly open"
    assert any(note.startswith("arrivals: partly open") for note in manifest["notes"])
    assert manifest["trace"]["source"]["turns"] == "fixed:3"
    keys = {"turns": "fixed:3", "think_time": "constant:1", "turn_lengths": "uniform:5-50,5-30", "prefix_tokens": 40}
    keys |= {"num_prefixes": 2, "max_session_tokens": 300, "request_rate": 2, "num_requests": 30, "name": "chat"}
    again = arrive(Config.of(workload=keys).workload, 0, 1)
    assert again.provenance == manifest["trace"]


def test_a_capped_run_says_closed_and_nothing_of_saturation(pagelab, tmp_path):
    words = ("--num-requests", "60", "--request-rate", "1000", "--max-concurrency", "3", *SMALL)
    assert pagelab("run", "--workload", "few-shot", *words, "-o", "out").code == 0
    summary = json.loads((first_cell(tmp_path / "out") / "summary.json").read_text())
    assert summary["saturated"] is None
    assert summary["num_finished"] == 60
    assert summary["prefix_hit_frac"] > 0.8
    requests = pd.read_parquet(first_cell(tmp_path / "out") / "requests.parquet")
    assert (requests["first_scheduled_s"] - requests["arrival_s"]).max() < 0.1  # three ahead of it, at most
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["trace"]["arrivals"] == "closed"


@pytest.mark.parametrize(
    "words, says",
    [
        (("--workload", "chat", "--turns", "0"), "turns: need one of fixed:N"),
        (("--workload", "chat", "--max-concurrency", "0"), "--max-concurrency"),
        (("--workload", "chat", "--prefix-tokens", "-1"), "--prefix-tokens"),
        (("--workload", "few-shot", "--think-time", "constant:1"), "few-shot has none"),
        (("--turns", "fixed:2"), "paper-fig2 has none; chat, few-shot"),
        (("--workload", "paper-fig17"), "say --request-rate"),
        (("--workload", "chat", "--lengths", "alpaca=x.csv"), "x.csv"),
    ],
)
def test_what_means_nothing_is_a_mistake_of_the_command_line(pagelab, words, says):
    done = pagelab("run", *words, *SMALL)
    assert done.code == 2
    assert says in done.err


def test_a_trace_file_has_its_own_turns(pagelab, trace_file):
    done = pagelab("run", "--trace", trace_file, "--turns", "fixed:2", *SMALL)
    assert done.code == 2
    assert "turns is for a session workload" in done.err


def test_synth_writes_what_run_draws(pagelab, tmp_path):
    words = ("--workload", "chat", "--turns", "fixed:2", "-n", "20", "--seed", "3")
    assert pagelab("trace", "synth", "a.jsonl", *words).code == 0
    trace = session_trace("chat", 3, Shape(turns="fixed:2"), num_requests=20)
    assert load_trace(tmp_path / "a.jsonl").trace.sha256() == trace.sha256()
    shown = json.loads(pagelab("trace", "inspect", "a.jsonl", "--json").out)
    assert shown["num_requests"] == 20
    assert shown["best_prefix_hit_frac"] > 0.3
    lost = pagelab("trace", "convert", "a.jsonl", "b.jsonl", "--to", "mooncake")
    assert (lost.code, "do not tell of shared texts" in lost.err) == (2, True)
    assert pagelab("trace", "convert", "a.jsonl", "b.jsonl", "--to", "mooncake", "--lossy").code == 0
    assert load_trace(tmp_path / "b.jsonl").trace.delay_ns.tolist() == trace.delay_ns.tolist()


@pytest.mark.parametrize(
    "words, says",
    [
        (("--turns", "fixed:2"), "say --workload chat or few-shot"),
        (("--workload", "chat", "--cv", "2"), "leave cv out"),
        (("--workload", "paper-fig16-1shot"), "say --request-rate"),
    ],
)
def test_synth_refuses_what_it_would_not_read(pagelab, words, says):
    done = pagelab("trace", "synth", "a.jsonl", *words)
    assert done.code == 2
    assert says in done.err


@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_a_hit_in_the_simulator_is_a_hit_on_the_engine(pagelab, tiny_model, tmp_path, block_size):
    pytest.importorskip("torch")
    shape = Shape(turns="fixed:3", think_time="constant:0", turn_lengths="uniform:3-9,3-9", prefix_tokens=11)
    trace = session_trace("chat", 5, shape, rate_per_s=1000.0, num_requests=18)
    save_trace(trace.scale_time(1e-3), tmp_path / "chat.jsonl")
    pool = ("--kv-tokens", "512", "--max-model-len", "128", "--max-num-seqs", "8", "--block-size", block_size)
    words = ("--trace", "chat.jsonl", "--model", tiny_model, *pool, "--no-report")
    backend = ("--backend", "cpu", "--weights-seed", "1")
    assert pagelab("run", *words, "--step-model", "linear:0.01,0,0,0", "-o", "sim").code == 0
    done = pagelab("run", *words, *backend, "-o", "cpu")
    assert done.code == 0, done.err
    simulated, real = (pd.read_parquet(first_cell(tmp_path / name) / "requests.parquet") for name in ("sim", "cpu"))
    later = trace.parent >= 0
    pd.testing.assert_series_equal(simulated["num_hit_tokens"][later], real["num_hit_tokens"][later])
    assert (real["num_hit_tokens"][later] > 0).all()
    for table in (simulated, real):
        ends = table["finish_s"].to_numpy()[trace.parent[later]]
        assert table["arrival_s"].to_numpy()[later] == pytest.approx(ends, abs=1e-12)
