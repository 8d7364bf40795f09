"""`bench engine`: a closed batch on a CPU, its numbers, and what a profile is made of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench import engine_main
from experiments.bench.engine_profile import Kernel, Window, part_of, rows_of, windows
from experiments.bench.engine_rows import (
    CONFIG_COLUMNS,
    BatchRun,
    Step,
    from_csv,
    full_decodes,
    histogram,
    report,
    row_of,
)
from experiments.bench.engine_run import EngineWanted
from experiments.csv_text import to_csv

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("--num-requests", "6", "--input-len", "20", "--output-len", "5", "--max-num-batched-tokens", "64")


def step(duration=1.0, decodes=0, chunks=0, *, device=0.75, launch=0.125, decide=0.125, graph=False):
    return Step(duration, device, duration - device, launch, decide, decodes, chunks, graph)


@pytest.fixture
def bench(pagelab, tiny_model):
    """`pagelab bench engine` on the tiny model."""
    return lambda *words: pagelab("bench", "engine", "--model", tiny_model, "--device", "cpu", *SMALL, *words)


def test_a_closed_batch_is_run_several_times_and_the_best_is_kept(bench, strict_object, tmp_path):
    done = bench("--num-runs", "2", "--prefix-caching", "-o", "out", "--json")
    assert done.code == 0, done.err
    answer = strict_object(done.out)
    rows = answer["rows"]
    assert [row["run"] for row in rows] == [0, 1]
    best = min(rows, key=lambda row: row["wall_s"])
    assert [row["best"] for row in rows] == [row is best for row in rows]
    for row in rows:
        assert row["output_tok_per_s"] == pytest.approx(30 / row["wall_s"])
        assert row["full_batch"] == 6
        assert row["decode_p20_s"] <= row["decode_p50_s"] <= row["decode_p80_s"]
        assert row["clock_s"] == pytest.approx(row["wall_s"], rel=0.3)
        assert row["num_hit_tokens"] == 0  # all prompts differ, also from those of the run before
    steps = from_csv((tmp_path / "out/steps.csv").read_text())
    assert sum(row["num_chunk_tokens"] for row in steps) == 120
    assert sum(row["num_decodes"] for row in steps) == 6 * 4
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["engine"]["weights"]["seed"] == 0
    assert manifest["config"]["num_requests"] == 6
    assert str(tmp_path.parent) not in json.dumps(manifest)


def test_stored_measurements_become_a_results_folder_anywhere(pagelab, tiny_model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--model", str(tiny_model), "--device", "cpu", *SMALL, "--num-runs", "1", "--output-dir", "raw"]
    assert engine_main.main(words) == 0
    printed = capsys.readouterr().out
    done = pagelab("bench", "engine", "--from", "raw", "-o", "kept")
    assert done.code == 0, done.err
    assert done.out == printed + "results: kept\n"
    assert pagelab("bench", "engine", "--from", "kept").out == printed
    assert pagelab("validate", "kept").code == 0
    assert pagelab("bench", "engine", "--from", "raw", "-o", "kept", "--overwrite").code == 0
    (tmp_path / "raw/steps.csv").write_text("duration_s\n1\n")
    broken = pagelab("bench", "engine", "--from", "raw")
    assert broken.code == 2
    assert "no measurements of the engine" in broken.err


def test_the_measuring_core_imports_with_torch_and_numpy_alone():
    blocked = (
        "simpy",
        "pydantic",
        "cyclopts",
        "pandas",
        "pyarrow",
        "matplotlib",
        "seaborn",
        "rich",
        "tomlkit",
        "jinja2",
    )
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); from experiments.bench import engine_main; "
        "import experiments.bench.engine_profile, experiments.bench.caching_allocator, experiments.bench.alloc_run; "
        "from engine.worker.engine import Engine; sys.exit(engine_main.main(['--num-runs', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "need num_runs of at least 1" in done.stderr


@pytest.mark.parametrize(
    "words,said",
    [
        (("--num-requests", "0"), "need num_requests of at least 1"),
        (("--max-model-len", "10"), "max_model_len=10 is less than input_len + output_len = 640"),
        (("--profile",), "kernel times of a CUDA device"),
        (("--allocator", "pagedd"), "unknown allocator"),
        (("--kv-tokens", "64"), "can never hold 512 + 128 tokens"),
        (("--kernel", "contiguous"), "not adjacent"),
        (("--model", "llama-9"), "llama-9"),
    ],
)
def test_what_cannot_be_run_is_exit_2(pagelab, tiny_model, words, said):
    model = () if "--model" in words else ("--model", tiny_model)
    done = pagelab("bench", "engine", "--device", "cpu", *model, *words)
    assert done.code == 2, done.err
    assert said in done.err


def test_without_a_device_it_is_exit_6_with_what_to_do(pagelab, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = pagelab("bench", "engine")
    assert done.code == 6
    assert "no CUDA device" in done.err
    assert engine_main.main([]) == 6


@pytest.mark.parametrize("allocator,blocks", [("paged", 4 * 40), ("orca-max", 4 * 64)])
def test_the_pool_holds_all_requests_at_their_longest(allocator, blocks):
    pool = EngineWanted(allocator=allocator, num_requests=4, input_len=512, output_len=128).pool()
    assert pool.capacity_blocks == blocks


def test_percentiles_are_over_the_steps_at_full_batch_alone():
    full = [step(seconds, 4, graph=True) for seconds in (1.0, 2.0, 3.0)]
    steps = [step(9.0, 0, 64), step(8.0, 2, 32), *full, step(0.25, 3)]
    assert full_decodes(steps) == full
    config = dict.fromkeys(CONFIG_COLUMNS, "given")
    row = row_of(config, BatchRun(10.0, steps, 50, 2, 0), 7)
    assert (row["full_batch"], row["decode_p50_s"], row["decode_p20_s"]) == (4, 2.0, 1.4)
    assert row["prefill_tok_per_s"] == pytest.approx(96 / 17)
    assert (row["output_tok_per_s"], row["num_graph_steps"], row["num_cuda_mallocs"]) == (5.0, 3, 2)
    assert row["host_work_p50_s"] == 0.25


def test_a_histogram_has_every_step_once():
    values = [0.05e-3, 0.3e-3, 0.3e-3, 7e-3]
    found = histogram(values)
    assert sum(count for _, count in found) == 4
    assert found[0] == ("0 to 0.1 ms", 1)
    assert found[-1] == ("5 ms and more", 1)
    assert histogram([]) == []


def test_tables_come_back_as_they_were():
    rows = [{"a": 1, "b": 0.1, "c": None, "d": True, "e": "x, y"}, {"a": -2, "b": 1e-9, "c": 3, "d": False, "e": "z"}]
    assert from_csv(to_csv(rows)) == rows
    with pytest.raises(ValueError, match="different lengths"):
        from_csv("a,b\n1\n")


@pytest.mark.parametrize(
    "name,part",
    [
        ("nvjet_tst_128x64_64x6_2x1_v_bz_TNT", "GEMMs"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "GEMMs"),
        ("void cutlass::Kernel2<cutlass_80_wmma>", "GEMMs"),
        ("decode_kernel", "attention"),
        ("hopper_kernel", "attention"),
        ("void at::native::reduce_kernel<512, 1>", "small kernels"),
        ("rotate_kernel", "small kernels"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collectives"),
    ],
)
def test_kernels_belong_to_parts(name, part):
    assert part_of(name) == part


def test_windows_are_runs_of_equal_steps():
    steps = [
        step(chunks=10),
        *[step(chunks=64)] * 2,
        step(decodes=2, chunks=64),
        *[step(decodes=4)] * 9,
        step(decodes=3),
    ]
    assert windows(steps) == [Window("prefill", 1, 3), Window("decode", 6, 5)]
    assert windows([]) == []


def test_the_host_has_what_no_kernel_took():
    steps = [step(2.0, 4)] * 4
    kernels = [Kernel("rotate_kernel", 8, 0.5), Kernel("nvjet_x", 4, 2.0), Kernel("decode_kernel", 2, 0.5)]
    rows = rows_of(Window("decode", 1, 2), kernels, steps)
    assert [row["part"] for row in rows] == ["GEMMs", "attention", "small kernels", "host"]
    assert [row["time_s"] for row in rows] == [1.0, 0.25, 0.25, 0.5]
    assert [row["num_calls"] for row in rows] == [2.0, 1.0, 4.0, 1.0]
    assert sum(row["time_s"] for row in rows) == steps[0].duration_s
    lines = report(
        [{"best": True, "model": "m", "allocator": "paged", "kernel": "paged", "block_size": 16, "num_requests": 4,
          "input_len": 1, "output_len": 1, "prefix_caching": False, "wall_s": 1.0, "output_tok_per_s": 1.0,
          "prefill_tok_per_s": None, "decode_p50_s": None, "num_cuda_mallocs": 0}],
        [], rows,
    )  # fmt: skip
    assert any(line.split()[:1] == ["GEMMs"] and "50.0%" in line for line in lines)
