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
        ({"hidden_size": 64}, "unknown architecture .*'None'; known: llama, mistral, opt, qwen2, qwen3"),
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
        ({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not done here"),
        ({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "rope type 'linear' without .*factor"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor, got 0"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}}, "beta_fast=32"),
        ({**LLAMA, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "without low_freq_factor, high_freq"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention="),
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


def test_the_table_of_angles_is_cos_then_sin_of_position_times_frequency():
    table = Rope(100.0, "linear", 2.0).cos_sin(5, 6)
    for position in range(5):
        for pair in range(3):
            angle = position * 100.0 ** (-2 * pair / 6) / 2.0
            assert table[position, pair] == pytest.approx(math.cos(angle), abs=1e-6)
            assert table[position, 3 + pair] == pytest.approx(math.sin(angle), abs=1e-6)
