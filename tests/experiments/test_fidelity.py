"""The simulator held against stored runs of an engine: what passes, what misses, and that a miss is seen."""

from __future__ import annotations

import json

import pytest

from experiments.csv_text import to_csv
from experiments.exits import UsageError
from experiments.fidelity.judge import NAME, SHARES, error_percent, judge, spread_percent, tables
from experiments.fidelity.stored import ABOUT_FILE, RUNS_FILE, read
from experiments.paper.runs import Lab

TIMES = [f"{which}_{latency}_s" for latency in ("ttft", "tpot", "e2e") for which in ("mean", "p50", "p95", "p99")]
ABOUT = {
    "wanted": {"num_requests": 1000, "lengths": "sharegpt", "model": "llama-3-8b", "kv_tokens": 110_592},
    "calibration_sha256": "abcdef0123456789",
    "machine": {"device": "NVIDIA H200"},
}


def row(load, system, repeat=0, **changed):
    fixed = {"allocator": "paged", "load": load, "system": system, "repeat": repeat, "output_tok_per_s": 8000.0}
    return {**fixed, "num_preemptions": 20, **dict.fromkeys(TIMES, 1.0), **dict.fromkeys(SHARES, 0.25), **changed}


def lab_of(tmp_path, rows):
    (tmp_path / ABOUT_FILE).write_text(json.dumps(ABOUT))
    (tmp_path / RUNS_FILE).write_text(to_csv(rows))
    return Lab(fidelity=tmp_path)


def verdicts(lab):
    return {result.claim.id.removeprefix(f"{NAME}/sharegpt/paged/"): result.verdict for result in judge(lab)}


def test_equal_runs_pass_everywhere(tmp_path):
    rows = [row(load, system) for load in (0.4, 0.7, 1.5) for system in ("engine", "sim")]
    found = verdicts(lab_of(tmp_path, [row("all", "engine"), *rows]))
    assert set(found.values()) == {"pass"}
    assert len(found) == 2 * (9 + 5) + (7 + 5)
    assert "0.7/output_tok_per_s" not in found, "below saturation throughput is the rate of arrival"


@pytest.mark.parametrize(
    "load,name,factor,verdict",
    [
        (0.4, "mean_tpot_s", 1.029, "pass"),
        (0.4, "mean_tpot_s", 1.031, "miss"),
        (0.7, "p95_e2e_s", 0.951, "pass"),
        (0.7, "p95_e2e_s", 0.949, "miss"),
        (0.7, "p99_ttft_s", 1.051, "miss"),
        (1.5, "mean_ttft_s", 1.049, "pass"),
        (1.5, "mean_ttft_s", 1.051, "miss"),
        (1.5, "output_tok_per_s", 0.979, "miss"),
        (1.5, "num_preemptions", 1.06, "miss"),
        (0.4, "kv_live_frac", 1.05, "miss"),
        (0.4, "kv_live_frac", 1.03, "pass"),
    ],
)
def test_a_miss_is_seen_where_it_is(tmp_path, load, name, factor, verdict):
    simulated = row(load, "sim")
    simulated[name] *= factor
    found = verdicts(lab_of(tmp_path, [row(load, "engine"), simulated]))
    assert found.pop(f"{load}/{name}") == verdict
    assert set(found.values()) == {"pass"}


def test_the_tail_may_be_off_by_twice_what_the_engine_is_off_from_itself(tmp_path):
    engine = [row(0.7, "engine"), row(0.7, "engine", 1, p99_ttft_s=1.06)]
    assert spread_percent(engine, "p99_ttft_s") == pytest.approx(100 * 0.06 / 1.03)
    found = verdicts(lab_of(tmp_path, [*engine, row(0.7, "sim", p99_ttft_s=1.03 * 1.11)]))
    assert found["0.7/p99_ttft_s"] == "pass"


def test_near_saturation_nothing_is_judged(tmp_path):
    found = verdicts(lab_of(tmp_path, [row(0.9, "engine"), row(0.9, "sim", mean_ttft_s=3.0)]))
    assert set(found.values()) == {"reported"}


def test_errors_are_against_the_mean_of_the_engines_runs(tmp_path):
    engine = [row(0.4, "engine", mean_e2e_s=1.0), row(0.4, "engine", 1, mean_e2e_s=3.0)]
    assert error_percent(row(0.4, "sim", mean_e2e_s=2.5), engine, "mean_e2e_s") == pytest.approx(25)
    lab = lab_of(tmp_path, [*engine, row(0.4, "sim", mean_e2e_s=2.5)])
    shown = {row[2]: row for row in tables(lab)[0].rows}
    assert shown["mean_e2e, ms"][3:6] == pytest.approx((2000.0, 2500.0, 25.0))
    assert shown["output_tok_per_s"][3:5] == (8000.0, 8000.0)


def test_without_stored_runs_it_says_what_is_missing():
    results = judge(Lab())
    assert [result.verdict for result in results] == ["not here"]
    assert "--fidelity FOLDER" in results[0].lacking
    assert tables(Lab()) == []


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no runs of engine and simulator"):
        read(tmp_path)
    (tmp_path / ABOUT_FILE).write_text("{}")
    (tmp_path / RUNS_FILE).write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="columns allocator, load, system, repeat are missing"):
        read(tmp_path)


def test_folders_in_a_folder_are_judged_apart(tmp_path):
    for lengths, allocator, factor in (("sharegpt", "paged", 1.0), ("alpaca", "orca-max", 1.2)):
        folder = tmp_path / lengths
        folder.mkdir()
        (folder / ABOUT_FILE).write_text(json.dumps({**ABOUT, "wanted": {**ABOUT["wanted"], "lengths": lengths}}))
        rows = [row(0.4, system, allocator=allocator) for system in ("engine", "sim")]
        rows[1]["mean_ttft_s"] *= factor
        (folder / RUNS_FILE).write_text(to_csv(rows))
    lab = Lab(fidelity=tmp_path)
    missed = {result.claim.id for result in judge(lab) if result.verdict == "miss"}
    assert missed == {f"{NAME}/alpaca/orca-max/0.4/mean_ttft_s"}
    assert [table.name for table in tables(lab)] == [f"{NAME}/alpaca", f"{NAME}/sharegpt"]
