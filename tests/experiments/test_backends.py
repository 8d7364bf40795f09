"""Real runs of `run` and `compare`, with an engine that only pretends: what is recorded, refused, and played back."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.backends import NOT_BIT_BY_BIT
from experiments.resolve import plan_of
from experiments.series import allocator_of, series_of
from experiments.settings import Config
from experiments.style import in_order, look_of
from sim.metrics import ENGINE_METRICS
from tests.experiments import fake_engine

DEMO = Path(__file__).resolve().parents[2] / "results/reference/demo"
SMALL = ("--kv-tokens", "4000", "--max-model-len", "2048", "--model", "opt-125m")


def test_runs_with_the_contiguous_kernel_are_a_series_of_their_own_beside_their_allocators():
    twin = series_of("orca-max", "contiguous")
    assert (twin, series_of(twin, "contiguous"), allocator_of(twin)) == (twin, twin, "orca-max")
    assert series_of("orca-max") == series_of("orca-max", "paged") == allocator_of("orca-max") == "orca-max"
    assert in_order(["paged", twin, "orca-oracle", "orca-max"]) == ["orca-max", twin, "orca-oracle", "paged"]
    looks = [look_of(name) for name in ("orca-max", twin)]
    assert looks[0].colour != looks[1].colour
    assert looks[0].line == looks[1].line


@pytest.fixture
def engines(monkeypatch):
    """The engines that were made; torch counts as installed."""
    monkeypatch.setattr("experiments.backends.find_spec", lambda name: object())
    return fake_engine.install(monkeypatch).made


@pytest.fixture
def real(pagelab, trace_file, engines):
    """`pagelab VERB --backend cpu` on the small trace in a small pool."""

    def call(verb, *words):
        return pagelab(verb, "--trace", trace_file, *SMALL, "--backend", "cpu", *words)

    return call


def test_a_simulation_has_the_hash_that_it_had_before_there_was_an_engine():
    recorded = json.loads((DEMO / "manifest.json").read_text())
    plan = plan_of(Config())
    assert plan.sha256 == recorded["config_sha256"]
    assert [cell.name for cell in plan.cells] == [cell["cell"] for cell in recorded["cells"]]
    assert plan_of(Config.of(backend="sim", kernel="paged")).sha256 == plan.sha256


def test_a_real_run_says_what_it_ran_on_and_keeps_every_step(real, tmp_path, engines):
    done = real("run", "-o", "out", "--weights-seed", "3", "--no-report")
    assert done.code == 0, done.err
    (engine,) = engines
    assert (engine.config.device, engine.config.model, engine.config.weights_seed) == ("cpu", "opt-125m", 3)
    assert (engine.config.max_num_seqs, engine.config.max_model_len) == (128, 2048)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["device"] == "Test card"
    assert manifest["engine"]["torch"] == "9.9"
    assert manifest["step_model"]["kind"] == "measured"
    assert manifest["capacity"]["tokens"] == 4000
    assert NOT_BIT_BY_BIT in manifest["notes"]
    (row,) = pd.read_csv(tmp_path / "out/summary.csv").to_dict("records")
    assert (row["backend"], row["kernel"], row["num_finished"]) == ("cpu", "paged", 40)
    assert {metric.name for metric in ENGINE_METRICS} <= row.keys()
    steps = pd.read_parquet(tmp_path / "out/cells" / row["cell"] / "steps.parquet")
    assert len(steps) == row["num_steps"]
    assert row["num_graph_steps"] == steps["graph"].sum() > 0
    assert row["device_s"] == pytest.approx(steps["device_s"].sum())
    assert row["mean_host_gap_s"] == pytest.approx(7e-12)
    assert row["wall_output_tok_per_s"] == pytest.approx(row["num_output_tokens"] / row["replay_wall_s"])
    assert (steps["num_decodes"] + steps["num_chunk_tokens"] == steps["num_batched_tokens"]).all()
    assert steps["time_s"].iloc[-1] + steps["duration_s"].iloc[-1] == pytest.approx(row["makespan_s"], abs=1e-9)


def test_contiguous_allocators_run_with_both_kernels_and_paged_ones_with_theirs(real, tmp_path, engines, strict_object):
    words = ("--allocator", "paged,orca-oracle,contiguous-chunk(64)-first-fit", "--block-size", "8")
    done = real("compare", "-o", "out", *words, "--map-frames", "3")
    assert done.code == 0, done.err
    summary = pd.read_csv(tmp_path / "out/summary.csv")
    cells = list(zip(summary["allocator"], summary["kernel"], strict=True))
    chunks = "contiguous-chunk(64)-first-fit"
    assert cells == [
        ("paged", "paged"),
        *(("orca-oracle", kernel) for kernel in ("paged", "contiguous")),
        *((chunks, kernel) for kernel in ("paged", "contiguous")),
    ]
    assert summary["cell"].is_unique
    (engine,) = engines
    assert [kernel for kernel, warm in engine.kernels if warm] == list(summary["kernel"])
    assert "kernel" in done.out
    waste = pd.read_csv(tmp_path / "out/figures/waste_breakdown.csv")
    assert list(waste["allocator"])[:2] == ["orca-oracle", "orca-oracle (contiguous kernel)"]
    page = (tmp_path / "out/report.html").read_text()
    assert "device: Test card" in page
    assert "run on Test card and timed there" in page
    assert "simulated" not in page.replace("simulated time", "")
    again = strict_object(real("compare", *words, "--kernel", "contiguous", "--json").out)
    assert [run["kernel"] for run in again["runs"]] == ["paged", "contiguous", "contiguous"]
    assert again["engine"]["device"] == "Test card"


def test_the_simulator_reproduces_a_real_run_from_its_recorded_steps(pagelab, engines, trace_file, tmp_path):
    pool = ("--model", "opt-125m", "--max-model-len", "1024", "--kv-tokens", "600")  # short of memory: preemptions
    words = ("run", "--trace", trace_file, *pool, "--time-scale", "0.02", "--map-frames", "4", "--no-report")
    assert pagelab(*words, "--backend", "cpu", "-o", "real").code == 0
    (cell,) = (tmp_path / "real/cells").iterdir()
    model = f"recorded:{cell / 'steps.parquet'}"
    done = pagelab(*words, "--step-model", model, "--record", "steps", "-o", "sim")
    assert done.code == 0, done.err
    (played,) = (tmp_path / "sim/cells").iterdir()
    for name in ("requests", "timeline", "map"):
        assert (cell / f"{name}.parquet").read_bytes() == (played / f"{name}.parquet").read_bytes()
    first, second = (json.loads((place / "summary.json").read_text()) for place in (cell, played))
    assert second["num_preemptions"] > 0
    assert {name: first[name] for name in second} == second
    states = pd.read_parquet(played / "steps.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(cell / "steps.parquet")[list(states)], states)
    manifest = json.loads((tmp_path / "sim/manifest.json").read_text())
    assert manifest["step_model"]["kind"] == "recorded"
    assert manifest["step_model"]["num_steps"] == first["num_steps"]
    assert str(tmp_path) not in json.dumps(manifest)


def test_steps_of_another_run_are_refused_where_they_part(real, pagelab, trace_file, tmp_path):
    assert real("run", "-o", "real", "--no-report").code == 0
    (cell,) = (tmp_path / "real/cells").iterdir()
    replay = ("run", "--trace", trace_file, *SMALL, "--step-model", f"recorded:{cell / 'steps.parquet'}", "--json")
    other = json.loads(pagelab(*replay, "--max-num-seqs", "2").out)
    assert "tokens of prompts, here it has" in other["failed"][0]["error"]
    steps = pd.read_parquet(cell / "steps.parquet")
    steps.iloc[:-1].to_parquet(cell / "steps.parquet")
    short = pagelab(*replay)
    assert short.code == 3
    assert "and the run goes on" in json.loads(short.out)["failed"][0]["error"]
    pd.concat([steps, steps.iloc[-1:]]).to_parquet(cell / "steps.parquet")
    long = pagelab(*replay)
    assert long.code == 4
    assert list(json.loads(long.out)["failed_checks"].values()) == [["recording: every step was played"]]


@pytest.mark.parametrize(
    "words,said",
    [
        (("--backend", "sim", "--kernel", "contiguous"), "kv.kernel=contiguous: only the real engine"),
        (("--backend", "sim", "--dtype", "float32"), "engine.dtype=float32: only the real engine"),
        (("--backend", "cpu", "--step-model", "roofline"), "measure.step_model=roofline"),
        (("--backend", "cpu", "--executor", "shadow"), "measure.executor=shadow"),
        (
            ("--backend", "cpu", "--tp", "2"),
            "--tp: model.tp=2: ranks are simulated here, and --backend cpu runs the real",
        ),
        (("--backend", "cpu", "--pp", "2"), "--pp: model.pp=2: ranks are simulated here"),
        (("--backend", "cpu", "--gpu", "h200"), "model.gpu=h200"),
        (("--backend", "cpu", "--kv-cache-dtype", "fp7"), "fp7"),
        (("--backend", "cpu", "--kernel", "contiguous"), "blocks of paged are not adjacent"),
        (("--backend", "cpu", "--allocator", "orca-max", "--kernel", "both"), "run takes one kernel"),
        (("--backend", "npu"), "measure.backend"),
        (("--backend", "cpu", "--dtype", "float16"), "float16: not here, take float32"),
        (("--step-model", "recorded:missing.parquet"), "missing.parquet"),
        (("--step-model", "recorded:x.parquet", "--executor", "shadow"), "recorded steps go with --executor cost"),
    ],
)
def test_what_a_backend_does_not_do_is_exit_2_before_anything_is_written(pagelab, trace_file, engines, words, said):
    done = pagelab("run", "--trace", trace_file, *SMALL, "-o", "out", *words)
    assert done.code == 2
    assert said in done.err
    assert not Path("out").exists()


def test_the_help_says_that_ranks_are_simulated(pagelab):
    said = " ".join(word for word in pagelab("run", "--help").out.split() if word != "│")
    assert "Tensor-parallel ranks, simulated: of bytes and STR step times; not with --backend cpu or gpu" in said


def test_a_real_run_needs_a_pinned_capacity(pagelab, trace_file, engines):
    done = pagelab("compare", "--trace", trace_file, "--backend", "cpu", "-o", "out")
    assert done.code == 2
    assert "pinned capacity: say --kv-tokens" in done.err


def test_a_pool_that_does_not_fit_is_said_before_the_first_request(real, engines, monkeypatch):
    monkeypatch.setattr(fake_engine.FakeEngine, "largest", 251)
    assert real("compare", "--allocator", "paged", "--block-size", "16", "-o", "fits", "--no-report").code == 0
    done = real("compare", "--allocator", "paged", "--block-size", "16,8", "-o", "out")
    assert done.code == 2
    assert "asked 501 blocks, 251 fit" in done.err
    assert not Path("out").exists()


def test_without_a_device_the_gpu_is_exit_6_with_what_to_do(pagelab, trace_file, monkeypatch):
    monkeypatch.setattr("experiments.bench.machine.why_no_device", lambda: "torch 9.9 sees none here")
    words = ("compare", "--trace", trace_file, *SMALL, "--backend", "gpu", "-o", "out")
    done = pagelab(*words)
    assert done.code == 6
    assert "torch 9.9 sees none here; --backend cpu runs" in done.err
    assert not Path("out").exists()
    assert pagelab(*words, "--block-size", "0").code == 2
    jobs = pagelab(*words, "-j", "2")
    assert jobs.code == 2
    assert "one by one" in jobs.err


def test_without_torch_a_real_run_is_exit_6(pagelab, trace_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for backend in ("cpu", "gpu"):
        done = pagelab("run", "--trace", trace_file, *SMALL, "--backend", backend, "-o", "out")
        assert done.code == 6
        assert "pip install" in done.err


def test_the_resolved_configuration_of_a_real_run_runs_again(real, pagelab, tmp_path, engines):
    assert real("compare", "--allocator", "orca-max", "-o", "a", "--no-report", "--record", "steps").code == 0
    again = pagelab("compare", "-c", "a/config.resolved.toml", "-o", "b", "--no-report")
    assert again.code == 0, again.err
    first, second = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in "ab")
    assert first["config_sha256"] == second["config_sha256"]
    assert len(engines) == 1  # the same engine served both
