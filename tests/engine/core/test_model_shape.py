"""Reading config.json: what must be found, said and refused; and exact parameter counts."""

import json

import pytest

from engine.core.catalogue import lookup, model_names
from engine.core.model_shape import read_model_shape
from engine.core.parameters import num_parameters, weight_bytes

SMALL = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


def shape_with(**changes):
    return read_model_shape({**SMALL, **changes})


def test_an_explicit_head_dim_wins_over_hidden_by_heads():
    assert shape_with(head_dim=192).kv_spec().bytes_per_token == 6144
    assert shape_with().kv_spec().bytes_per_token == 4096
    assert shape_with(head_dim=None).kv_spec().bytes_per_token == 4096


def test_no_kv_heads_in_the_file_means_one_per_query_head():
    config = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    assert read_model_shape(config).num_kv_heads == 16


def test_multi_query_attention_has_one_kv_head():
    config = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    assert read_model_shape({**config, "multi_query": True}).num_kv_heads == 1


def test_latent_attention_is_not_doubled():
    shape = shape_with(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
    spec = shape.kv_spec()
    assert (spec.kind, spec.bytes_per_token_per_layer) == ("mla", 576 * 2)
    assert (shape.head_size, shape.head_size_v) == (192, 128)


def test_a_nested_text_config_is_found():
    inner = {key: value for key, value in SMALL.items() if key != "torch_dtype"}
    shape = read_model_shape({"model_type": "llava", "torch_dtype": "float16", "text_config": inner})
    assert (shape.model_type, shape.dtype, shape.num_kv_heads) == ("llama", "fp16", 4)
    assert "text_config" in shape.notes[0]
    twice = read_model_shape({"thinker_config": {"text_config": SMALL}})
    assert twice.kv_spec().bytes_per_token == 4096


@pytest.mark.parametrize(
    "config",
    [
        {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257},
        {"d_model": 768, "n_heads": 12, "n_layers": 12, "max_seq_len": 1024, "vocab_size": 50257},
    ],
)
def test_older_key_names_are_read(config):
    shape = read_model_shape(config)
    assert (shape.num_layers, shape.head_size, shape.max_model_len) == (12, 64, 1024)


def test_a_window_is_stated():
    shape = shape_with(sliding_window=4096)
    assert "window of 4,096 tokens" in shape.kv_spec().notes[0]
    assert shape_with(sliding_window=4096, use_sliding_window=False).notes == ()


def test_windowed_layers_are_counted_in_full_and_stated():
    shape = shape_with(layer_types=["sliding_attention", "full_attention"], sliding_window=1024)
    assert shape.num_kv_layers == 2
    assert shape.notes[0].startswith("1 layers have a window of 1,024 tokens")


@pytest.mark.parametrize(
    "changes,holding",
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, 1),
        ({"num_hidden_layers": 7, "full_attention_interval": 4}, 1),
        ({"num_hidden_layers": 32, "attn_layer_period": 8, "attn_layer_offset": 4}, 4),
        ({"num_hidden_layers": 6, "hybrid_override_pattern": "M-M*-M"}, 1),
        ({"num_hidden_layers": 4, "attn_layer_indices": [1, 3]}, 2),
        ({"attn_type_list": [0, 1]}, 1),
    ],
)
def test_layers_without_kv_are_not_counted_and_stated(changes, holding):
    shape = shape_with(**changes)
    assert shape.num_kv_layers == holding
    assert shape.notes[0].startswith(f"{holding} of {shape.num_layers} layers hold KV")
    assert shape.kv_spec().bytes_per_token == holding * 2048


@pytest.mark.parametrize(
    "changes,words",
    [({"index_head_dim": 128}, "indexer"), ({"cross_attention_layers": [1]}, "1 cross-attention layers")],
)
def test_what_else_a_layer_keeps_is_stated(changes, words):
    assert words in shape_with(**changes).kv_spec().notes[0]


def test_layers_that_reuse_kv_are_not_counted():
    assert shape_with(num_kv_shared_layers=1).num_kv_layers == 1


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"is_encoder_decoder": True}, "decoder-only"),
        ({"layer_types": ["full_attention"]}, "2 layers, but the config names the kind of 1"),
        ({"layer_types": ["full_attention", "wavelet"]}, "'wavelet'"),
        ({"layer_types": ["mamba", "mamba"]}, "none of the 2 layers"),
        ({"ssm_cfg": {}}, "ssm_cfg is set"),
        ({"global_head_dim": 512}, "global_head_dim is set"),
        ({"num_hidden_layers": None}, "none of num_hidden_layers"),
        ({"num_attention_heads": "16"}, "positive integer"),
        ({"num_key_value_heads": [4, 8]}, "the same in all layers"),
        ({"num_key_value_heads": 3}, "not a multiple of 3 KV heads"),
        ({"hidden_size": 2047}, "2047 is not a multiple of 16"),
        ({"kv_lora_rank": 512}, "without qk_rope_head_dim"),
        ({"torch_dtype": "float12"}, "unknown storage type"),
    ],
)
def test_what_is_not_understood_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        shape_with(**changes)


@pytest.mark.parametrize(
    "scaling,length",
    [
        (None, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"type": "dynamic", "factor": 2.0}, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
    ],
)
def test_the_longest_context_includes_plain_rope_scaling(scaling, length):
    assert shape_with(rope_scaling=scaling).max_model_len == length
    assert shape_with(rope_parameters={**(scaling or {}), "rope_theta": 1e4}).max_model_len == length


@pytest.mark.parametrize("factor", [None, 0, "4", True])
def test_rope_scaling_without_a_factor_is_refused(factor):
    with pytest.raises(ValueError, match="rope type 'linear' without a positive number as factor"):
        shape_with(rope_scaling={"rope_type": "linear", "factor": factor})


@pytest.mark.parametrize(
    "name,parameters",
    [
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v3", 671_026_419_200),
        ("gpt-neox-20b", 20_554_567_680),
        ("gpt2", 124_439_808),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("opt-125m", 125_239_296),
        ("opt-13b", 12_853_473_280),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-8b", 8_190_735_360),
        ("smollm2-135m", 134_515_008),
        ("yi-34b", 34_388_917_248),
    ],
)
def test_parameter_counts_equal_the_published_totals(name, parameters):
    assert num_parameters(lookup(name)) == parameters


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalogue_is_complete(name):
    shape = lookup(name)
    assert shape.name == name
    assert shape.max_model_len >= 1024
    assert weight_bytes(shape, "fp32") == 4 * num_parameters(shape) == 2 * weight_bytes(shape, "bf16")
    assert shape.kv_spec().bytes_per_token > 0


def test_biases_are_counted_where_the_config_has_them():
    plain, biased = shape_with(), shape_with(attention_bias=True, mlp_bias=True)
    attention = (16 + 4 + 4) * 128 + 2048
    assert num_parameters(biased) - num_parameters(plain) == 2 * (attention + 2 * 4096 + 2048)


def test_an_unknown_architecture_is_not_estimated():
    with pytest.raises(ValueError, match="give the bytes of the weights"):
        num_parameters(shape_with(model_type="quantum"))


@pytest.mark.parametrize("name,length", [("llama-2-7b", 4096), ("opt-13b", 2048), ("llama-3.1-8b", 131_072)])
def test_the_longest_context_is_the_models(name, length):
    assert lookup(name).max_model_len == length


def test_names_are_found_in_any_case_and_by_their_hub_id():
    assert lookup("Llama-2-7B") == lookup("llama-2-7b") == lookup("meta-llama/Llama-2-7b-hf")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean llama-2-7b"):
        lookup("lama-2-7b")


def test_a_file_or_its_folder_is_read(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SMALL, "head_dim": 192}))
    assert lookup(folder) == lookup(str(folder / "config.json"))
    assert lookup(folder).name == "my-model"
    assert lookup(folder).kv_spec().bytes_per_token == 6144


@pytest.mark.parametrize(
    "text,message", [("{", "not JSON"), ("[]", "expected a JSON object, got list"), ("{}", "num_hidden_layers")]
)
def test_a_file_that_is_no_model_is_refused_by_its_path(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        lookup(path)
    assert str(path) in str(caught.value)


def test_a_quantised_checkpoint_is_mentioned():
    assert "fp8 checkpoint" in lookup("deepseek-v3").notes[0]
