"""The model's kernels compile ahead of time for sm_80 and sm_90: without spills, in accesses of 16 bytes."""

import pytest

from engine.attention.kernels.fp8 import NOT_FP8
from engine.model.kernels import gate, latents, norm, rotary, sample
from tests.engine.model.kernels.compiled import ARCHITECTURES, compiled


def cases():
    """(name, kernel, types of its arguments, what is compiled into it)."""
    floats = "*bf16"
    rows = {"X": floats, "RESIDUAL": floats, "WEIGHT": floats, "OUT": floats, "eps": "fp32"}
    yield "norm", norm.norm_kernel, rows, norm.norm_options(576, False)
    yield "add_norm", norm.norm_kernel, rows, norm.norm_options(4096, True)
    yield "wide add_norm", norm.norm_kernel, rows, norm.norm_options(8192, True)
    halves = {"GATE_UP": floats, "OUT": floats}
    yield "gate", gate.gate_kernel, halves, gate.gate_options(14_336, gate.MANY_ELEMENTS)
    yield "small gate", gate.gate_kernel, halves, gate.gate_options(1536, gate.FEW_ELEMENTS)
    heads = dict.fromkeys(("QKV", "K_CACHE", "V_CACHE", "Q_NORM", "K_NORM"), floats)
    heads |= {"COS_SIN": "*fp32", "POSITIONS": "*i64", "SLOTS": "*i64", "eps": "fp32"}
    heads |= dict.fromkeys(("K_SCALE", "V_SCALE"), "*fp32")
    heads |= dict.fromkeys(("kv_b", "kv_t", "kv_h"), "i32")
    for name, *sizes, rotates, normalises in (
        ("rotate", 32, 8, 128, 16, True, False),
        ("rotate few heads", 9, 3, 64, 16, True, False),
        ("rotate and norm", 32, 8, 128, 24, True, True),
        ("write", 32, 32, 80, 16, False, False),
    ):
        yield name, rotary.rotate_kernel, heads, rotary.rotate_options(*sizes, rotates, normalises) | NOT_FP8
    stored = heads | dict.fromkeys(("K_CACHE", "V_CACHE"), "*u8")
    by_bits = {"FP8": True, "NATIVE": False}
    yield (
        "rotate to fp8 by bits",
        rotary.rotate_kernel,
        stored,
        rotary.rotate_options(32, 8, 128, 16, True, False) | by_bits,
    )
    yield from latent_cases(floats)
    parts = {"LOGITS": floats, "TEMPERATURE": "*fp32", "SEEDS": "*i64", "POSITIONS": "*i64", "SCORES": "*fp32"}
    parts |= {"IDS": "*i32", "tiles": "i32"}
    options = {"V": 128_256, "TILE": sample.TILE, "APPROXIMATE": True, "num_warps": 4}
    yield "sample", sample.part_kernel, parts, options
    best = {"SCORES": "*fp32", "IDS": "*i32", "OUT": "*i32", "parts": "i32"}
    yield "best", sample.best_kernel, best, {"PARTS": sample.MAX_PARTS, "num_warps": 2}


def latent_cases(floats):
    """Of models that cache latents."""
    step = {"COS_SIN": "*fp32", "POSITIONS": "*i64"}
    writes = dict.fromkeys(("DOWN", "KV_NORM", "Q_NORM", "KV_CACHE", "Q_OUT"), floats)
    writes |= {**step, "SLOTS": "*i64", "eps": "fp32", **dict.fromkeys(("down_t", "kv_b", "kv_t"), "i32")}
    for name, *sizes in (
        ("write latents", 1536, 512, 64, 1536, 64, True),
        ("write latents, queries in one step", 3072, 512, 64, 0, 16, True),
        ("write latents, halves", 1536, 512, 64, 1536, 24, False),
    ):
        yield name, latents.write_latents_kernel, writes, latents.write_options(*sizes)
    turns = {"QUERIES": floats, **step, "q_t": "i32"}
    for name, interleaved in (("rotate queries", True), ("rotate queries, halves", False)):
        yield name, latents.rotate_queries_kernel, turns, latents.rotate_options(128, 192, 64, interleaved)


@pytest.fixture(scope="module")
def records():
    return compiled(__name__)


def test_every_kernel_compiles_for_both_architectures(records):
    found = {(record["case"], record["architecture"]) for record in records}
    assert found == {(name, number) for name, *_ in cases() for number in ARCHITECTURES}


def test_nothing_spills_and_half_of_a_multiprocessors_threads_are_there_at_once(records):
    for record in records:
        assert record["spill_bytes"] == 0, record
        assert record["threads_per_sm"] >= 1024, record


def test_activations_move_in_accesses_of_sixteen_bytes(records):
    for record in records:
        assert record["access_bytes"] == 16 or record["case"] == "best", record


def test_sampling_takes_the_devices_logarithm(records):
    assert [record["logarithms"] > 0 for record in records if record["case"] == "sample"] == [True, True]
