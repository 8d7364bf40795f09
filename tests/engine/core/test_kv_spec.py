"""Bytes of KV: laws first, then the numbers that the paper and its readers quote."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.catalogue import lookup
from engine.core.kv_spec import DTYPE_BITS, KVSpec, canonical_dtype

KIB, MIB, GIB = 2**10, 2**20, 2**30

sizes = st.integers(1, 128)
specs = st.builds(
    KVSpec,
    num_layers=sizes,
    num_kv_heads=sizes,
    head_size=sizes.map(lambda n: 2 * n),
    dtype=st.sampled_from(sorted(DTYPE_BITS.keys() - {"int6"})),
)


@given(specs, st.integers(1, 9))
def test_bytes_are_linear_in_layers_and_heads(spec, factor):
    assert replace(spec, num_layers=factor * spec.num_layers).bytes_per_token == factor * spec.bytes_per_token
    assert replace(spec, num_kv_heads=factor * spec.num_kv_heads).bytes_per_token == factor * spec.bytes_per_token


@given(specs)
def test_bytes_are_linear_in_the_width_of_the_type(spec):
    half, whole = replace(spec, dtype="bf16"), replace(spec, dtype="fp32")
    assert whole.bytes_per_token == 2 * half.bytes_per_token == 4 * replace(spec, dtype="int8").bytes_per_token
    assert half.bytes_per_token == 4 * replace(spec, dtype="int4").bytes_per_token


@given(specs, st.integers(1, 256))
def test_a_block_is_its_tokens(spec, block_size):
    assert spec.block_bytes(block_size) == block_size * spec.bytes_per_token
    assert spec.block_bytes(block_size) == spec.num_layers * spec.block_bytes_per_layer(block_size)


@given(sizes, sizes, st.integers(1, 16), st.integers(1, 16))
def test_the_ranks_together_hold_the_model_once_where_the_split_is_even(layers, heads, tp, pp):
    spec = KVSpec(num_layers=layers * pp, num_kv_heads=heads * tp, head_size=128)
    rank = replace(spec, tp=tp, pp=pp)
    assert tp * pp * rank.bytes_per_token == spec.bytes_per_token
    assert rank.num_replicas == 1
    assert rank.notes == ()


@pytest.mark.parametrize("tp,replicas", [(8, 1), (16, 2), (64, 8)])
def test_heads_are_replicated_when_there_are_more_ranks(tp, replicas):
    spec = KVSpec(num_layers=80, num_kv_heads=8, head_size=128, tp=tp)
    assert spec.kv_heads_per_rank == 1
    assert spec.num_replicas == replicas
    assert spec.bytes_per_token == 80 * 2 * 128 * 2
    assert any("stored on" in note for note in spec.notes) == (replicas > 1)


@pytest.mark.parametrize("heads,tp", [(8, 3), (8, 12), (40, 16), (4, 6)])
def test_an_uneven_split_of_heads_is_refused(heads, tp):
    with pytest.raises(ValueError, match=f"{heads} KV heads cannot be split evenly over tp={tp}"):
        KVSpec(num_layers=2, num_kv_heads=heads, head_size=128, tp=tp)


def test_the_fullest_stage_counts_when_the_stages_are_uneven():
    spec = KVSpec(num_layers=61, num_kv_heads=8, head_size=128, pp=4)
    assert spec.layers_per_rank == 16
    assert "stage of 16" in spec.notes[0]
    with pytest.raises(ValueError, match="pp=62"):
        replace(spec, pp=62)


def test_a_latent_is_stored_once_and_on_every_rank():
    spec = KVSpec(num_layers=61, num_kv_heads=1, head_size=512 + 64, kind="mla")
    assert spec.bytes_per_token == 61 * 576 * 2 == 70_272
    assert replace(spec, tp=8).bytes_per_token == spec.bytes_per_token
    assert "the latent is stored on 8 ranks" in replace(spec, tp=8).notes[0]
    with pytest.raises(ValueError, match="one latent"):
        replace(spec, num_kv_heads=128)


def test_values_may_be_narrower_than_keys():
    assert KVSpec(num_layers=1, num_kv_heads=4, head_size=192, head_size_v=128).bytes_per_token == 4 * 320 * 2


def test_elements_that_do_not_fill_bytes_are_refused():
    with pytest.raises(ValueError, match="whole bytes"):
        KVSpec(num_layers=1, num_kv_heads=1, head_size=3, dtype="int6")


@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_size", "tp", "pp"])
def test_sizes_below_one_are_refused(field):
    good = {"num_layers": 2, "num_kv_heads": 2, "head_size": 2}
    with pytest.raises(ValueError, match=f"{field} of at least 1, got 0"):
        KVSpec(**{**good, field: 0})


def test_a_block_holds_at_least_one_token():
    with pytest.raises(ValueError, match="block_size of at least 1, got 0"):
        KVSpec(num_layers=1, num_kv_heads=1, head_size=2).block_bytes(0)


@pytest.mark.parametrize(
    "name,short",
    [("bfloat16", "bf16"), ("torch.float16", "fp16"), ("FP8", "fp8_e4m3"), ("float8_e4m3fn", "fp8_e4m3")],
)
def test_storage_types_have_their_usual_spellings(name, short):
    assert canonical_dtype(name) == short


def test_an_unknown_storage_type_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean fp8_e4m3"):
        canonical_dtype("fp8_e4m4")


def test_quantised_types_say_that_scales_are_left_out():
    spec = KVSpec(num_layers=1, num_kv_heads=8, head_size=128, dtype="fp8")
    assert "without their scales" in spec.notes[0]
    assert replace(spec, dtype="bf16").notes == ()


# The arithmetic of the textbook chapter on PagedAttention, with the units that it leaves open.


def test_llama_2_13b_keeps_800_kib_a_token():
    spec = lookup("llama-2-13b").kv_spec("fp16")
    assert spec.bytes_per_token == 2 * 40 * 40 * 128 * 2 == 819_200 == 800 * KIB
    assert 2048 * spec.bytes_per_token == 1_677_721_600 == 1.5625 * GIB


def test_how_many_full_sequences_fit_depends_on_the_unit():
    sequence = 2048 * lookup("llama-2-13b").kv_spec("fp16").bytes_per_token
    budgets = {"as written": 54 * 10**9, "gib": 54 * GIB, "card in GiB": 80 * GIB - 26 * 10**9}
    assert {name: budget // sequence for name, budget in budgets.items()} == {
        "as written": 32,
        "gib": 34,
        "card in GiB": 35,
    }
    assert int(54 / 1.6) == 33


def test_a_short_request_wastes_the_rest_of_its_reservation():
    assert (128 - 100, (128 - 100) / 128) == (28, 0.21875)


def test_a_block_of_llama_2_13b():
    spec = lookup("llama-2-13b").kv_spec("fp16")
    assert spec.block_bytes_per_layer(16) == 327_680 == 320 * KIB
    assert spec.block_bytes(16) == 13_107_200 == 12.5 * MIB
    assert (50 * GIB // spec.block_bytes(16), 50 * 10**9 // spec.block_bytes(16)) == (4096, 3814)


def test_llama_3_70b_on_two_ranks():
    spec = lookup("llama-3-70b").kv_spec("fp16", tp=2)
    assert spec.bytes_per_token_per_layer == 2048
    assert spec.bytes_per_token == 163_840 == 160 * KIB


@pytest.mark.parametrize("pp,layers", [(1, (80,)), (2, (40, 40)), (3, (27, 27, 26)), (80, (1,) * 80)])
def test_layers_are_spread_over_stages_and_the_fullest_counts(pp, layers):
    spec = lookup("llama-3-70b").kv_spec("fp16", tp=2, pp=pp)
    assert spec.layers_by_stage == layers
    assert sum(layers) == 80
    assert spec.bytes_per_token == layers[0] * 2048


@pytest.mark.parametrize(
    "name,kib",
    [
        ("opt-13b", 800),
        ("llama-13b", 800),
        ("opt-66b", 2304),
        ("opt-175b", 4608),
        ("llama-2-7b", 512),
        ("llama-2-70b", 320),
        ("llama-3-70b", 320),
        ("llama-3-8b", 128),
        ("yi-6b", 64),
        ("yi-34b", 240),
        ("codellama-34b", 192),
        ("deepseek-67b", 380),
        ("deepseek-v2", 67.5),
        ("deepseek-v3", 68.625),
    ],
)
def test_kv_bytes_of_known_models(name, kib):
    assert lookup(name).kv_spec("fp16").bytes_per_token == kib * KIB


def test_deepseek_v2_saves_what_its_authors_say():
    dense = lookup("deepseek-67b").kv_spec("fp16").bytes_per_token
    same_type = lookup("deepseek-v2").kv_spec("fp16").bytes_per_token
    six_bits = lookup("deepseek-v2").kv_spec("int6").bytes_per_token
    assert round(100 * (1 - same_type / dense), 1) == 82.2
    assert round(100 * (1 - six_bits / dense), 2) == 93.34


def test_the_formula_is_written_out():
    assert lookup("llama-3-70b").kv_spec("fp16", tp=2).formula == (
        "80 layers x 2 x 4 KV heads x 128 x 16 bit = 163,840 B"
    )
    assert lookup("deepseek-v3").kv_spec().formula == "61 layers x latent of 576 x 16 bit = 70,272 B"
