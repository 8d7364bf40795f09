"""Cells of the real engine in a sweep, on this machine's CPU: measured, kept and resumed like the others."""

import json

import pandas as pd
import pytest

pytest.importorskip("torch")


@pytest.mark.usefixtures("one_thread")
def test_measured_cells_have_the_simulators_decisions_and_stay_when_resumed(pagelab, tiny_file, tiny_model, tmp_path):
    limits = ("--kv-tokens", "512", "--max-model-len", "300", "--max-num-batched-tokens", "256", "--max-num-seqs", "8")
    axes = ("--axis", "kv.allocator=paged,orca-max", "--time-scale", "1e-9")
    words = ("sweep", "--trace", tiny_file, "--model", tiny_model, *limits, *axes)
    real = (*words, "--backend", "cpu", "--weights-seed", "1", "-o", "real")
    done = pagelab(*real)
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "real/manifest.json").read_text())
    assert manifest["engine"]["device"] == manifest["device"]
    assert pagelab(*words, "-o", "sim", "--jobs", "1", "--record", "steps").code == 0
    measured, simulated = (pd.read_csv(tmp_path / name / "summary.csv") for name in ("real", "sim"))
    assert list(measured["backend"]) == ["cpu", "cpu"]
    assert (measured["device_s"] > 0).all()
    for column in ("num_finished", "num_preemptions", "num_computed_tokens", "kv.allocator"):
        assert list(measured[column]) == list(simulated[column])
    before = (tmp_path / "real/summary.csv").read_bytes()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "real").glob("cells/*/*")}
    assert {path.name for path in times} == {"summary.json", "validation.json", "steps.parquet"}
    assert pagelab(*real, "--resume").code == 0
    assert (tmp_path / "real/summary.csv").read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_dry_run_of_measured_cells_guesses_no_time(pagelab, tiny_file, tiny_model):
    words = ("--kv-tokens", "512", "--backend", "cpu", "--axis", "kv.block_size=8,16", "--dry-run")
    done = pagelab("sweep", "--trace", tiny_file, "--model", tiny_model, *words)
    assert done.code == 0, done.err
    assert "2 cells: steps are measured, how long they take is not estimated" in done.out
