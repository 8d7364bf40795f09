"""The real engine behind `run` and `compare`, on a CPU: its decisions are the simulator's, and its steps play back."""

import json

import pandas as pd
import pytest

from tests.engine.model import smollm2
from workloads import save_trace, synthetic_trace

pytest.importorskip("torch")
POOL = ("--kv-tokens", "192", "--max-model-len", "128", "--max-num-batched-tokens", "48", "--max-num-seqs", "8")
SIMULATED = ("--step-model", "linear:0.01,0,0,0", "--record", "steps")
ALLOCATORS = "paged,orca-max,orca-oracle,contiguous-chunk(16)-first-fit"
CLOCK = ("time_s", "duration_s")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Files with the same lengths: all at once, and arriving by and by."""
    folder = tmp_path_factory.mktemp("traces")
    for name, arrivals in (("closed", "all-at-once"), ("open", "poisson")):
        trace = synthetic_trace(arrivals, "uniform:8-40,4-24", 14, 5, rate_per_s=100.0)
        save_trace(trace, folder / f"{name}.csv")
    return folder


@pytest.fixture
def played(pagelab, traces, tiny_model, tmp_path):
    """Runs a verb and returns the folders of its cells, in the order of summary.csv."""

    def call(name, verb, trace, *words):
        given = ("--trace", traces / f"{trace}.csv", "--model", tiny_model, *POOL, "--no-report", "-o", name)
        done = pagelab(verb, *given, *words)
        assert done.code == 0, done.err
        return [tmp_path / name / "cells" / cell for cell in pd.read_csv(tmp_path / name / "summary.csv")["cell"]]

    return call


def steps_of(cell):
    return pd.read_parquet(cell / "steps.parquet")


@pytest.mark.parametrize("block_size", [1, 16])
def test_with_all_requests_at_0_the_engine_decides_as_the_simulator(played, block_size):
    grid = ("--allocator", ALLOCATORS, "--block-size", block_size)
    simulated = played("sim", "compare", "closed", *grid, *SIMULATED)
    real = played("cpu", "compare", "closed", *grid, "--backend", "cpu", "--weights-seed", "1", "--kernel", "paged")
    assert len(simulated) == len(real) == 4
    for ours, theirs in zip(simulated, real, strict=True):
        first, second = steps_of(ours), steps_of(theirs)
        columns = [name for name in first if name not in CLOCK]
        pd.testing.assert_frame_equal(first[columns], second[columns])
        requests = [pd.read_parquet(cell / "requests.parquet").filter(regex="num_|status") for cell in (ours, theirs)]
        pd.testing.assert_frame_equal(*requests)
    storms = [json.loads((cell / "summary.json").read_text())["num_preemptions"] for cell in simulated]
    assert storms[0] > 0


def test_both_kernels_of_a_contiguous_allocator_run(played):
    cells = played(
        *("cpu", "compare", "closed", "--allocator", "paged,orca-oracle"), "--backend", "cpu", "--weights-seed", "1"
    )
    summaries = [json.loads((cell / "summary.json").read_text()) for cell in cells]
    kernels = [(row["allocator"], row["kernel"]) for row in summaries]
    assert kernels == [("paged", "paged"), ("orca-oracle", "paged"), ("orca-oracle", "contiguous")]
    paged, twin = (steps_of(cell)["num_batched_tokens"] for cell in cells[1:])
    assert paged.equals(twin)
    assert all(row["wall_output_tok_per_s"] > 0 and row["num_finished"] == 14 for row in summaries)
    for row in summaries:
        assert row["makespan_s"] == pytest.approx(row["replay_wall_s"], rel=0.2)


def test_the_simulator_reproduces_a_run_of_the_engine_with_real_arrivals(played):
    (real,) = played("cpu", "run", "open", "--backend", "cpu", "--weights-seed", "1", "--map-frames", "4")
    recorded = f"recorded:{real / 'steps.parquet'}"
    (simulated,) = played("sim", "run", "open", "--step-model", recorded, "--record", "steps", "--map-frames", "4")
    for name in ("requests", "timeline", "map"):
        assert (real / f"{name}.parquet").read_bytes() == (simulated / f"{name}.parquet").read_bytes()
    first, second = (json.loads((cell / "summary.json").read_text()) for cell in (real, simulated))
    assert {name: first[name] for name in second} == second
    assert json.loads((real / "validation.json").read_text())["passed"]


def test_a_model_without_the_weights_that_it_needs_is_exit_2(pagelab, traces, tiny_model, tmp_path):
    words = ("run", "--trace", traces / "open.csv", *POOL, "--backend", "cpu", "-o", "out")
    done = pagelab(*words, "--model", tiny_model)
    assert done.code == 2
    assert "safetensors" in done.err
    done = pagelab(*words, "--model", tiny_model, "--weights-seed", "0", "--attention", "reference-mla")
    assert done.code == 2
    assert "reference-mla" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name,said",
    [
        ("nowhere/at/all", "no such file or folder"),
        ("./nowhere", "no such file or folder"),
        ("nowhere.gguf", "no such file"),
        ("nowhere/config.json", "no such file or folder"),
        ("empty", "the folder has no config.json"),
        ("lama-3-8b", "did you mean llama-3-8b"),
    ],
)
@pytest.mark.parametrize("backend", ["sim", "cpu"])
def test_a_model_that_is_not_there_is_told_from_an_unknown_name(pagelab, traces, tmp_path, name, said, backend):
    (tmp_path / "empty").mkdir()
    done = pagelab("run", "--trace", traces / "open.csv", *POOL, "-m", name, "--backend", backend, "-o", "out")

    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "known:" not in done.err


def test_weights_without_room_are_refused_before_one_is_made(pagelab, traces, tiny_model, monkeypatch):
    """Also a model of 140 GB, which a machine that tried would not survive."""
    from engine.worker import budget

    words = ("run", "--trace", traces / "open.csv", *POOL, "--backend", "cpu", "--weights-seed", "0", "--json")
    monkeypatch.setattr(budget, "memory_of", lambda device: (10**9, 10**10))
    large = pagelab(*words, "-m", "llama-3-70b")
    monkeypatch.setattr(budget, "memory_of", lambda device: (1, 10**10))
    tiny = pagelab(*words, "-m", tiny_model)

    assert (large.code, tiny.code) == (2, 2)
    assert "its weights alone are 282,214,825,984 bytes, but cpu has 1,000,000,000 of 10,000,000,000 free" in large.err
    assert "but cpu has 1 of" in tiny.err


def test_a_comparison_on_a_cpu_says_that_its_times_rank_nothing(pagelab, traces, tiny_model, strict_object):
    words = (
        "--trace",
        traces / "closed.csv",
        *POOL,
        "--weights-seed",
        "0",
        "--backend",
        "cpu",
        "-m",
        tiny_model,
        "--json",
    )
    several = strict_object(pagelab("compare", *words, "--allocator", "paged,orca-max", "--kernel", "paged").out)
    single = strict_object(pagelab("run", *words).out)

    assert any("rank nothing" in note for note in several["notes"])
    assert not any("rank nothing" in note for note in single["notes"])


def test_what_only_a_simulation_has_is_refused_by_its_flag(pagelab, traces, tiny_model):
    words = ("run", "--trace", traces / "open.csv", *POOL, "--backend", "cpu", "-m", tiny_model)
    for flag, value in (("--tp", "2"), ("--pp", "2"), ("--step-model", "roofline")):
        done = pagelab(*words, flag, value)
        assert done.code == 2
        assert f"{flag}: " in done.err


@pytest.mark.slow
def test_smollm2_serves_a_trace_from_its_gguf_file(pagelab, traces, strict_object):
    if smollm2.find() is None:
        pytest.skip(smollm2.WHY_NOT)
    words = ("--trace", traces / "open.csv", *POOL, "--num-requests", "4", "--backend", "cpu", "--json")
    answer = strict_object(pagelab("run", *words, "--model", smollm2.find()).out)
    assert answer["engine"]["weights"]["kind"] == "gguf"
    assert answer["runs"][0]["num_finished"] == 4
