"""Blocks on a GPU: the three rules against the numbers they are named for, and pins."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.capacity import (
    GIB,
    capacity_from_blocks,
    capacity_from_bytes,
    capacity_from_tokens,
    chapter_capacity,
    default_capacity,
    sosp23_capacity,
)
from engine.core.catalogue import lookup
from engine.core.gpus import GPUS, lookup_gpu
from engine.core.parameters import num_parameters

A100 = lookup_gpu("a100-80g")
LLAMA = lookup("llama-3-8b")


@pytest.mark.parametrize(
    "model,gpu,tp,blocks,slots",
    [
        ("opt-13b", "a100-40g", 1, 984, 15_744),
        ("opt-66b", "a100-40g", 4, 605, 9_680),
        ("opt-175b", "a100-80g", 8, 3_758, 60_128),
    ],
)
def test_the_artifacts_rule_gives_table_1(model, gpu, tp, blocks, slots):
    capacity = sosp23_capacity(lookup(model), lookup_gpu(gpu), tp=tp)
    assert (capacity.num_blocks, capacity.capacity_tokens) == (blocks, slots)


def test_table_1_mixes_units():
    kv_gib = [
        tp * sosp23_capacity(lookup(model), lookup_gpu(gpu), tp=tp).kv_bytes / GIB
        for model, gpu, tp in (
            ("opt-13b", "a100-40g", 1),
            ("opt-66b", "a100-40g", 4),
            ("opt-175b", "a100-80g", 8),
        )
    ]
    assert [round(kv, 2) for kv in kv_gib] == [12.01, 21.27, 264.23]


def test_the_artifacts_rule_is_for_opt_only():
    with pytest.raises(ValueError, match="rule sosp23 counts OPT"):
        sosp23_capacity(LLAMA, A100)
    with pytest.raises(ValueError, match="40 heads cannot be split evenly over tp=3"):
        sosp23_capacity(lookup("opt-13b"), A100, tp=3)


def test_the_chapters_exercise_in_its_three_readings():
    readings = {c.rule: c for c in chapter_capacity(lookup("llama-3-70b"), A100, tp=2)}
    gib, gb, mixed = (readings[f"chapter-{name}"] for name in ("gib", "gb", "mixed"))
    assert (gib.budget_bytes, gib.tokens_in_budget, gib.num_blocks) == (6 * GIB, 39_321, 2_457)
    assert (gb.budget_bytes, gb.tokens_in_budget, gb.num_blocks) == (6 * 10**9, 36_621, 2_288)
    assert (mixed.tokens_in_budget, mixed.num_blocks) == (70_827, 4_426)
    assert round(mixed.budget_bytes / GIB, 1) == 10.8


def test_the_chapters_weights_come_from_the_models_name():
    assert chapter_capacity(lookup("llama-2-13b"), A100)[1].terms["weights_bytes"] == 26 * 10**9
    assert chapter_capacity(lookup("deepseek-v2-lite"), A100)[1].terms["weights_bytes"] == 32 * 10**9


def test_the_default_rule_term_by_term():
    capacity = default_capacity(LLAMA, A100)
    budget = Fraction(92, 100) * A100.total_bytes - 2 * num_parameters(LLAMA) - 2 * GIB
    assert capacity.num_blocks == budget // (16 * 131_072) == 28_620
    assert capacity.kv_bytes == capacity.num_blocks * capacity.block_bytes <= budget
    assert capacity.budget_bytes - capacity.kv_bytes < capacity.block_bytes
    assert capacity.terms["weights_bytes"] == 16_060_522_496


def test_the_default_rule_splits_weights_and_kv_over_the_ranks():
    capacity = default_capacity(lookup("llama-3-70b"), A100, tp=2, pp=2)
    assert capacity.terms["weights_bytes"] == 70_553_706_496 * 2 // 4
    assert capacity.bytes_per_token == 327_680 // 4


@pytest.mark.parametrize(
    "name,tp,layers,parameters,num_blocks",
    [
        ("deepseek-v2-lite", 1, 27, 15_706_484_224, 52_515),
        ("deepseek-v2", 8, 60, 235_741_434_880, 17_410),
        ("deepseek-v3", 16, 61, 671_026_419_200, 11_578),
    ],
)
def test_models_that_cache_latents_hold_one_of_576_elements_a_token_on_every_rank(
    name, tp, layers, parameters, num_blocks
):
    gpu = lookup_gpu("h200")
    capacity = default_capacity(lookup(name), gpu, tp=tp, block_size=64)
    token = layers * (512 + 64) * 2  # neither times 2 nor divided by tp
    budget = Fraction(92, 100) * gpu.total_bytes - 2 * parameters // tp - 2 * GIB
    assert capacity.bytes_per_token == token
    assert capacity.num_blocks == budget // (64 * token) == num_blocks
    assert capacity.terms["weights_bytes"] == 2 * parameters // tp
    assert default_capacity(lookup(name), gpu, tp=tp, block_size=64, kv_dtype="fp8").bytes_per_token == token // 2


def test_the_weights_may_be_given():
    given_bytes = default_capacity(LLAMA, A100, weights_bytes=16_060_522_496)
    assert given_bytes == default_capacity(LLAMA, A100)
    assert default_capacity(LLAMA, A100, weight_dtype="int4").num_blocks > given_bytes.num_blocks


@given(st.sampled_from(sorted(GPUS)), st.sampled_from([1, 8, 16, 32, 64, 128, 256]))
def test_a_smaller_block_never_holds_fewer_tokens(gpu, block_size):
    tokens = [
        default_capacity(lookup("smollm2-135m"), lookup_gpu(gpu), block_size=size).capacity_tokens
        for size in (block_size, 2 * block_size)
    ]
    assert tokens[0] >= tokens[1]


@given(st.integers(1, 32), st.integers(0, 8))
def test_fewer_bits_hold_proportionally_more(gib, tp_log):
    tp = 2 ** min(tp_log, 3)
    spec, half = LLAMA.kv_spec("fp16", tp), LLAMA.kv_spec("fp8", tp)
    assert capacity_from_bytes(half, gib * GIB).num_blocks == 2 * capacity_from_bytes(spec, gib * GIB).num_blocks


def test_when_nothing_fits_the_message_says_asked_free_and_needed():
    with pytest.raises(ValueError, match="asked for a block of 16 tokens, 0 B are free") as caught:
        default_capacity(lookup("llama-3-70b"), A100)
    assert "5,242,880 B are needed" in str(caught.value)
    assert "weights_bytes 141,107,412,992" in str(caught.value)


@pytest.mark.parametrize("utilization", [0, -0.1, 1.01, float("nan")])
def test_the_utilization_is_a_fraction(utilization):
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        default_capacity(LLAMA, A100, gpu_memory_utilization=utilization)


def test_pins_round_down_to_whole_blocks():
    spec = LLAMA.kv_spec()
    assert capacity_from_tokens(spec, 1000).num_blocks == 62
    assert capacity_from_tokens(spec, 1000).tokens_in_budget == 1000
    assert capacity_from_bytes(spec, 2**31 - 1).num_blocks == 1023
    assert capacity_from_blocks(spec, 984).num_blocks == 984
    assert capacity_from_blocks(spec, 984, block_size=1).capacity_tokens == 984


@pytest.mark.parametrize("pin", [capacity_from_tokens, capacity_from_bytes, capacity_from_blocks])
@pytest.mark.parametrize("amount", [0, -5])
def test_an_empty_pin_is_refused(pin, amount):
    with pytest.raises(ValueError, match="not one KV block fits"):
        pin(LLAMA.kv_spec(), amount)


def test_a_capacity_is_ready_for_json():
    capacity = default_capacity(lookup("mistral-7b"), A100)
    read = json.loads(json.dumps(capacity.to_dict()))
    assert read["num_blocks"] == capacity.num_blocks
    assert read["terms"]["total_bytes"] == A100.total_bytes
    assert "window" in read["notes"][0]


@pytest.mark.parametrize("name", ["A100", "a100-80gb", "NVIDIA A100 80GB", "a100_80g"])
def test_gpus_are_found_under_their_usual_names(name):
    assert lookup_gpu(name).total_bytes == 85_031_714_816


def test_an_unknown_gpu_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean h100-80g"):
        lookup_gpu("h100-80")


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_gpu_is_plausible(name):
    gpu = GPUS[name]
    assert 0.9 < gpu.total_bytes / (gpu.nominal_gb * 10**9) < 1.08
    assert gpu.bf16_flops_per_s > gpu.bandwidth_bytes_per_s > 0
    assert gpu.source
