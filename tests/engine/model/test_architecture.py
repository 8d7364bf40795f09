"""What a configuration asks for is done or refused by name."""

import math

import pytest
import torch

from engine.core import catalogue
from engine.model import architecture_of
from engine.model.rope import Rope

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
MISTRAL = {**LLAMA, "model_type": "mistral"}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 32}
OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "vocab_size": 100,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "max_position_embeddings": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
LITE = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096, "type": "yarn"}  # fmt: skip
"""Rope of DeepSeek-V2-Lite."""


def test_llama_as_it_is_published():
    a = architecture_of({**LLAMA, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "eos_token_id": [7, 9]}, "here")
    assert (a.family, a.norm, a.activation, a.gated, a.dtype) == ("llama", "rms", "silu", True, "bf16")
    assert (a.head_size, a.qkv_size, a.gate_up_size, a.torch_dtype) == (16, 128, 192, torch.bfloat16)
    assert (a.attention_bias, a.output_bias, a.mlp_bias, a.qk_norm, a.tie_embeddings) == (False,) * 5
    assert (a.rope, a.position_offset, a.norm_eps) == (Rope(500_000.0), 0, 1e-5)
    assert (a.windows, a.eos_token_ids) == ((0, 0, 0), (7, 9))


def test_what_the_other_families_add():
    assert architecture_of({**LLAMA, "attention_bias": True, "mlp_bias": True}, "").output_bias
    qwen2 = architecture_of(QWEN2, "")
    assert (qwen2.attention_bias, qwen2.output_bias) == (True, False)
    qwen3 = architecture_of(QWEN3, "")
    assert (qwen3.qk_norm, qwen3.head_size, qwen3.attention_bias) == (True, 32, False)
    opt = architecture_of(OPT, "")
    assert (opt.norm, opt.activation, opt.gated, opt.rope, opt.position_offset) == ("layer", "relu", False, None, 2)
    assert (opt.attention_bias, opt.output_bias, opt.mlp_bias, opt.tie_embeddings) == (True,) * 4
    assert opt.num_kv_heads == opt.num_heads


def test_latent_attention_keeps_one_latent_for_all_heads():
    a = architecture_of(DEEPSEEK, "here")
    assert (a.latent.size, a.latent.head_size, a.latent.interleaved, a.rotary_size) == (40, 24, True, 8)
    assert (a.qkv_size, a.attention_size, a.windows) == (48 + 40, 48, (0, 0, 0))
    assert (a.kv_spec(torch.float16).bytes_per_token, a.kv_spec(torch.float16, tp=4).num_replicas) == (3 * 40 * 2, 4)
    config = a.layer_config(0)
    assert (config.num_heads, config.num_kv_heads, config.head_size, config.kv_lora_rank) == (4, 1, 40, 32)
    assert config.scale == pytest.approx(24**-0.5)
    one_step = architecture_of({**DEEPSEEK, "q_lora_rank": None, "rope_interleave": False}, "here")
    assert (one_step.qkv_size, one_step.latent.interleaved) == (4 * 24 + 40, False)
    second = architecture_of({**DEEPSEEK, "model_type": "deepseek_v2", "rope_interleave": False}, "here")
    assert second.latent.interleaved, "transformers' DeepSeek-V2 does not look at the key"
    llama = architecture_of(LLAMA, "here")
    assert (llama.latent, llama.attention_size) == (None, 64)
    assert llama.kv_spec(torch.float32).bytes_per_token_per_layer == 2 * 2 * 16 * 4


def test_the_scale_of_deepseek_grows_with_the_stretch_of_its_context():
    """V2-Lite: 192 elements a query, mscale_all_dim 0.707, factor 40; cos and sin keep their size."""
    a = architecture_of({**DEEPSEEK, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": LITE}, "here")
    assert a.latent.scale == pytest.approx(192**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2)
    assert (a.rope.scaling, a.rope.magnitude) == ("yarn", 1.0)
    no_dims = architecture_of({**DEEPSEEK, "rope_scaling": {**LITE, "mscale_all_dim": 0}}, "here")
    assert no_dims.latent.scale == pytest.approx(24**-0.5)
    assert no_dims.rope.magnitude == pytest.approx(0.1 * math.log(40) + 1)


@pytest.mark.parametrize("change", [{"first_k_dense_replace": 3}, {"n_routed_experts": None}, {"topk_group": 4}])
def test_keys_of_experts_say_nothing_where_there_are_none(change):
    without = {key: value for key, value in DEEPSEEK.items() if key != "first_k_dense_replace"}
    a = architecture_of({**DEEPSEEK, "n_routed_experts": 256, **change}, "here")
    assert a == architecture_of({**without, "n_routed_experts": None, "n_group": 8, "moe_layer_freq": 1}, "here")


@pytest.mark.parametrize(
    "config,windows",
    [
        ({**MISTRAL, "sliding_window": 50}, (50, 50, 50)),
        ({**MISTRAL, "sliding_window": None}, (0, 0, 0)),
        (MISTRAL, (4096, 4096, 4096)),
        ({**QWEN2, "sliding_window": 50, "use_sliding_window": False}, (0, 0, 0)),
        ({**QWEN2, "sliding_window": 50, "use_sliding_window": True, "max_window_layers": 2}, (0, 0, 50)),
        ({**QWEN2, "sliding_window": 50, "use_sliding_window": True}, (0, 0, 0)),
        (
            {
                **QWEN3,
                "sliding_window": 50,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (50, 0, 50),
        ),
    ],
)
def test_windows_by_layer(config, windows):
    a = architecture_of(config, "here")
    assert a.windows == windows
    assert [a.layer_config(layer).window for layer in range(3)] == list(windows)


def test_what_a_layer_asks_of_attention():
    config = architecture_of(QWEN3, "here").layer_config(0)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 32)
    assert config.scale == pytest.approx(1 / math.sqrt(32))


@pytest.mark.parametrize(
    "config,message",
    [
        ({**LLAMA, "model_type": "llamma"}, r"unknown architecture \(model_type\) 'llamma'; did you mean llama\?"),
        ({"hidden_size": 64}, "unknown architecture .*'None'; known: deepseek_v2, .*, llama, mistral, opt, qwen2"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act='gelu' is not done here; expected 'silu'"),
        ({**LLAMA, "num_local_experts": 8}, "num_local_experts=8"),
        ({**LLAMA, "quantization_config": {"quant_method": "awq"}}, "quantization_config="),
        ({**LLAMA, "residual_multiplier": 0.2, "logits_scaling": 8.0}, "logits_scaling=8.0, residual_multiplier=0.2"),
        ({**LLAMA, "sliding_window": 4}, "sliding_window=4"),
        ({**MISTRAL, "attention_bias": True}, "attention_bias=True"),
        ({**MISTRAL, "sliding_window": 0}, "as sliding_window, got 0"),
        ({**QWEN2, "layer_types": ["full_attention"] * 2}, "3 layers, but the config names the kind of 2"),
        ({**QWEN2, "layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "'chunked_attention'"),
        ({**QWEN2, "layer_types": ["sliding_attention"] * 3}, "layer_types has sliding_attention, but"),
        ({**QWEN3, "head_dim": None}, "model_type 'qwen3' needs head_dim"),
        ({**MISTRAL, "num_key_value_heads": None}, "model_type 'mistral' needs num_key_value_heads"),
        ({**LLAMA, "num_key_value_heads": 3}, "4 query heads are not a multiple of 3 KV heads"),
        ({**LLAMA, "head_dim": 15}, "head_size=15 must be even"),
        ({**LLAMA, "hidden_size": "64"}, "hidden_size must be a positive integer.*'64'"),
        ({**LLAMA, "num_hidden_layers": 2**40}, "at most 10000 as num_hidden_layers, got 1099511627776"),
        ({**LLAMA, "rms_norm_eps": math.nan}, "as rms_norm_eps, got nan"),
        ({**LLAMA, "vocab_size": None}, "none of vocab_size"),
        ({**LLAMA, "torch_dtype": "float8_e4m3fn"}, "weights of type 'fp8_e4m3' are not loaded here"),
        ({**LLAMA, "rms_norm_eps": -1.0}, "as rms_norm_eps, got -1.0"),
        ({**LLAMA, "eos_token_id": "</s>"}, "as eos_token_id, got '</s>'"),
        ({**LLAMA, "rope_scaling": {"type": "longrope", "factor": 4.0}}, "rope type 'longrope' is not done here"),
        ({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn' without original_max_position_"),
        ({**LLAMA, "rope_scaling": {**LITE, "beta_fast": 1}}, "rope type 'yarn': expected beta_fast above 1.0, got"),
        ({**LLAMA, "rope_theta": 1.0, "rope_scaling": LITE}, "rope type 'yarn': expected rope_theta above 1.0, got"),
        ({**LLAMA, "rope_scaling": {**LITE, "mscale": -1.0}}, "expected a positive number as mscale, got -1.0"),
        ({**LLAMA, "rope_scaling": {**LITE, "truncate": 1}}, "expected true or false as truncate, got 1"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}}, "linear' with mscale=1.0"),
        ({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "rope type 'linear' without .*factor"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor, got 0"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}}, "beta_fast=32"),
        ({**LLAMA, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "without low_freq_factor, high_freq"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention="),
        (
            {**DEEPSEEK, "first_k_dense_replace": 1, "n_routed_experts": 64},
            "first_k_dense_replace=1 with n_routed_experts=64: layers 1 to 2 are mixtures of experts.*at least num_",
        ),
        ({**DEEPSEEK, "num_hidden_layers": 9, "first_k_dense_replace": None}, "first_k_dense_replace=3 with .*default"),
        ({**DEEPSEEK, "first_k_dense_replace": True}, "whole number of layers as first_k_dense_replace, got True"),
        ({**DEEPSEEK, "kv_lora_rank": None}, "model_type 'deepseek_v3' needs kv_lora_rank"),
        ({key: value for key, value in DEEPSEEK.items() if key != "q_lora_rank"}, "q_lora_rank is absent"),
        ({**DEEPSEEK, "num_key_value_heads": 2}, "num_key_value_heads=2 .* num_attention_heads=4"),
        ({**DEEPSEEK, "q_lora_rank": None, "attention_bias": True}, "attention_bias=True without q_lora_rank"),
        ({**DEEPSEEK, "qk_rope_head_dim": 7}, "qk_rope_head_dim=7 must be even"),
        ({**DEEPSEEK, "rope_interleave": "yes"}, "expected true or false as rope_interleave, got 'yes'"),
        ({**DEEPSEEK, "mlp_bias": True}, "mlp_bias=True"),
        ({**OPT, "do_layer_norm_before": False}, "do_layer_norm_before=False is not done here; expected True"),
        ({**OPT, "word_embed_proj_dim": 32}, "word_embed_proj_dim=32 .*expected hidden_size=64"),
        ({**OPT, "activation_function": "gelu"}, "activation_function='gelu'"),
        ({**OPT, "enable_bias": False}, "enable_bias=False"),
        ({**OPT, "layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine=False"),
        ({**OPT, "_remove_final_layer_norm": True}, "_remove_final_layer_norm=True"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(config, message):
    with pytest.raises(ValueError, match=f"^here: .*{message}"):
        architecture_of(config, "here")


def test_keys_that_say_nothing_about_the_computation_are_let_through():
    extra = {"use_cache": True, "attention_dropout": 0.1, "pretraining_tp": 2, "quantization_config": None}
    assert architecture_of({**LLAMA, **extra}, "here") == architecture_of(LLAMA, "here")


@pytest.mark.parametrize("name", catalogue.model_names())
def test_every_dense_model_of_the_catalogue_is_known_and_others_are_refused(name):
    _, config = catalogue.entry(name)
    shape = catalogue.lookup(name)
    if config["model_type"] in ("deepseek_v2", "deepseek_v3"):
        with pytest.raises(ValueError, match=f"{name}: first_k_dense_replace=.* are mixtures of experts"):
            architecture_of(config, name)
        return
    if config["model_type"] not in ("llama", "mistral", "opt", "qwen2", "qwen3"):
        with pytest.raises(ValueError, match=f"{name}: unknown architecture"):
            architecture_of(config, name)
        return
    a = architecture_of(config, name)
    assert (a.num_layers, a.num_heads, a.num_kv_heads) == (shape.num_layers, shape.num_heads, shape.num_kv_heads)
    assert (a.head_size, a.max_model_len, a.dtype) == (shape.head_size, shape.max_model_len, shape.dtype)


def test_frequencies_of_llama3_are_kept_where_waves_are_short_and_divided_where_they_are_long():
    rope = Rope(500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    plain, stretched = Rope(500_000.0).frequencies(128), rope.frequencies(128)
    waves = 2 * math.pi / plain
    torch.testing.assert_close(stretched[waves < 8192 / 4], plain[waves < 8192 / 4])
    torch.testing.assert_close(stretched[waves > 8192], plain[waves > 8192] / 8)
    between = (waves >= 8192 / 4) & (waves <= 8192)
    assert 0 < between.sum() < len(waves)
    assert ((plain[between] / 8 <= stretched[between]) & (stretched[between] <= plain[between])).all()


def test_frequencies_of_yarn_are_kept_for_pairs_that_turn_often_and_divided_for_those_that_do_not():
    rope = Rope(10_000.0, "yarn", 40.0, original_length=4096)
    plain, stretched = Rope().frequencies(64), rope.frequencies(64)
    turns = 4096 * plain / (2 * math.pi)
    torch.testing.assert_close(stretched[turns > 2 * 32], plain[turns > 2 * 32])
    torch.testing.assert_close(stretched[turns < 0.5], plain[turns < 0.5] / 40)
    ratio = stretched / plain
    assert (ratio.diff() <= 1e-6).all()
    between = (ratio < 0.999) & (ratio > 1 / 39)
    assert between.sum() > 5
    ramp = (1 - ratio[between]) / (1 - 1 / 40)
    torch.testing.assert_close(ramp.diff(), ramp.diff()[:1].expand(len(ramp) - 1), rtol=1e-4, atol=0)


def test_the_table_of_angles_is_cos_then_sin_of_position_times_frequency():
    table = Rope(100.0, "linear", 2.0).cos_sin(5, 6)
    for position in range(5):
        for pair in range(3):
            angle = position * 100.0 ** (-2 * pair / 6) / 2.0
            assert table[position, pair] == pytest.approx(math.cos(angle), abs=1e-6)
            assert table[position, 3 + pair] == pytest.approx(math.sin(angle), abs=1e-6)
