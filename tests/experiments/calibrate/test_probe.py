"""The grid on a real engine, a tiny one on the CPU: each point costs its own steps, over blocks in disorder."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from experiments import exits  # noqa: E402
from experiments.bench.engine_run import EngineWanted, engine_of  # noqa: E402
from experiments.calibrate import main as calibrate  # noqa: E402
from experiments.calibrate.grid import ChunkStep, DecodePoint, Limits, MixedPoint  # noqa: E402
from experiments.calibrate.probe import LOAD_STEPS, SKIPPED, Probe  # noqa: E402
from experiments.calibrate.rows import CHURN, HELD, read_rows  # noqa: E402
from sim.calibrated import read_calibration  # noqa: E402

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}
LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=96, max_model_len=128, kv_tokens=1024, block_size=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(SHAPE))
    return str(path)


@pytest.fixture
def probe(folder):
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 96, "max_model_len": 128, "input_len": 1, "output_len": 1}
    wanted = EngineWanted(folder, device="cpu", attention="reference", **sizes)
    return Probe.of(engine_of(wanted), LIMITS, "paged", "paged", 0)


def test_a_point_of_decodes_costs_its_own_steps_and_no_prompt(probe):
    before = len(probe.executor.steps)
    rows = probe.decode(DecodePoint("decode-3", (40, 7, 90)), 6)
    assert len(probe.executor.steps) - before == 1 + 6, "one step that brings the first tokens, then decodes"
    assert [row.num_seqs for row in rows] == [3] * (1 + 6 - SKIPPED)
    first = 40 + 7 + 90 + 3 * (1 + SKIPPED)
    assert [row.num_kv_tokens for row in rows] == [first + 3 * step for step in range(1 + 6 - SKIPPED)]
    assert all(row.num_attended_pairs == row.num_kv_tokens for row in rows)
    assert all(row.device_s > 0 for row in rows)


def test_a_point_with_chunks_costs_steps_of_those_chunks(probe):
    steps = (ChunkStep(((20, 10), (0, 30))), ChunkStep(((0, 5),)))
    rows = probe.mixed(MixedPoint("mixed-2", (12, 30), steps, between=3))
    assert [(row.num_seqs, row.num_new_tokens) for row in rows] == [(4, 42), (3, 7)]
    decoding = rows[0].num_kv_tokens - 30 - 30
    assert rows[0].num_attended_pairs == decoding + 10 * 20 + 55 + 465
    assert [row.longest_chunk_tokens for row in rows] == [30, 5]
    assert probe.allocator.stats().num_free == probe.allocator.capacity_blocks


@pytest.mark.parametrize("kv_tokens, block_size", [(256, 16), (4096, 70), (4095, 1000), (300, 128)])
def test_load_fits_any_pool(folder, kv_tokens, block_size):
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 96, "max_model_len": 128}
    wanted = EngineWanted(folder, device="cpu", attention="reference", **sizes, input_len=1, output_len=1)
    limits = Limits(**sizes, kv_tokens=kv_tokens, block_size=block_size)
    begun = iter([0.0, 0.0, 1.0])
    assert Probe.of(engine_of(wanted), limits, "paged", "paged", 0).load(1.0, lambda: next(begun)) >= LOAD_STEPS - 1


def test_blocks_lie_in_disorder_as_on_a_server_that_has_run(probe):
    rows = probe.decode(DecodePoint("decode-1", (100,)), 6)
    assert rows
    free = [probe.allocator.pool.take(1)[0] for _ in range(40)]
    assert free != sorted(free)
    assert free != sorted(free, reverse=True)


def test_measured_fitted_written_and_read_again(folder, tmp_path, capsys):
    words = {"model": folder, "device": "cpu", "attention": "reference", "num-steps": 4, "steps-a-point": 2}
    words |= {"max-num-seqs": 4, "max-num-batched-tokens": 96, "max-model-len": 128, "kv-tokens": 1024, "load-s": 0.01}
    argv = [part for name, value in words.items() for part in (f"--{name}", str(value))]
    assert calibrate.main([*argv, "--output-dir", str(tmp_path)]) == exits.OK
    assert "held out" in capsys.readouterr().err
    rows = read_rows(tmp_path / calibrate.ROWS_FILE)
    loops = {row.run for row in rows if row.rows_changed}
    assert loops == {f"{CHURN}-{places}{held}" for places in (1, 2, 4) for held in ("", HELD)}
    model = read_calibration(tmp_path / calibrate.CALIBRATION_FILE)
    again = calibrate.read(tmp_path)
    assert again.rows == rows
    assert again.fitted().to_dict()["decode"] == [
        {"num_seqs": one.num_seqs, "kv_tokens": one.kv_tokens, "duration_ps": one.duration_ps} for one in model.curves
    ]
    assert "/" not in json.dumps(model.about["wanted"]), "a folder of this machine is in the file"


@pytest.mark.parametrize(
    "words,told",
    [
        (["--block-size", "0"], "block_size"),
        (["--kv-tokens", "100"], "less than two sequences"),
        (["--num-steps", "2"], "num_steps"),
    ],
)
def test_bad_usage_is_said_before_anything_is_made(tmp_path, capsys, words, told):
    assert calibrate.main([*words, "--output-dir", str(tmp_path)]) == exits.USAGE
    assert told in capsys.readouterr().err


def test_several_block_sizes_share_an_engine_and_have_a_folder_each(folder, tmp_path):
    words = {"model": folder, "device": "cpu", "attention": "reference", "num-steps": 4, "steps-a-point": 1}
    words |= {"max-num-seqs": 2, "max-num-batched-tokens": 64, "max-model-len": 64, "kv-tokens": 512, "load-s": 0.01}
    words |= {"kv-places": 2, "rounds": 1}
    argv = [part for name, value in words.items() for part in (f"--{name}", str(value))]
    assert calibrate.main([*argv, "--block-size", "4", "32", "--output-dir", str(tmp_path)]) == exits.OK
    for size in (4, 32):
        model = read_calibration(tmp_path / f"block-size-{size}" / calibrate.CALIBRATION_FILE)
        assert model.about["wanted"]["block_size"] == size
