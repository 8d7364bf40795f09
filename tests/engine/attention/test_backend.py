"""Backends by name, the interface that each keeps, their capabilities, and what a layer refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.attention import (
    BACKENDS,
    AttentionBackend,
    AttentionImpl,
    AttentionInputError,
    AttentionLayer,
    KVLayout,
    LayerConfig,
    SizeRule,
    allocate_kv_caches,
    capability_table,
    get_backend,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_keeps_the_interface(name):
    backend = get_backend(name)
    assert issubclass(backend, AttentionBackend)
    assert backend.get_name() == name
    assert issubclass(backend.get_impl_cls(), AttentionImpl)
    size = backend.capabilities().default_block_size
    made = backend.get_builder_cls()(size).build([1], [size], [[0]])
    assert isinstance(made, backend.get_metadata_cls())
    assert backend.get_supported_block_sizes().allows(size)


@pytest.mark.parametrize(
    "name,arguments,shape",
    [
        ("reference", (7, 16, 8, 128), (2, 7, 16, 8, 128)),
        ("triton", (7, 16, 8, 128), (2, 7, 16, 8, 128)),
        ("reference-flash-attn", (7, 16, 8, 128), (2, 7, 16, 8, 128)),
        ("reference-flashinfer", (7, 16, 8, 128), (7, 2, 16, 8, 128)),
        ("reference-pallas", (7, 16, 8, 128), (7, 16, 16, 128)),
        ("reference-mla", (7, 16, 1, 576), (7, 16, 576)),
        ("reference-flash-mla", (7, 64, 1, 576), (7, 64, 576)),
        ("triton-mla", (7, 16, 1, 576), (7, 16, 576)),
        ("flashinfer", (7, 16, 8, 128), (7, 2, 16, 8, 128)),
        ("flash-attn-3", (7, 16, 8, 128), (2, 7, 16, 8, 128)),
        ("flash-attn-2", (7, 256, 8, 128), (2, 7, 256, 8, 128)),
        ("flash-mla", (7, 64, 1, 576), (7, 64, 576)),
        ("pallas", (7, 16, 8, 128), (7, 16, 16, 128)),
    ],
)
def test_shapes_are_those_of_the_chapter(name, arguments, shape):
    assert get_backend(name).get_kv_cache_shape(*arguments) == shape


def test_a_layout_can_be_asked_for_where_a_backend_takes_it():
    assert get_backend("triton").get_kv_cache_shape(7, 5, 2, 8, KVLayout.INTERLEAVED) == (7, 5, 4, 8)
    with pytest.raises(AttentionInputError, match=r"reference-pallas: expected layout .*2\*KH.*, got \(2, NB"):
        get_backend("reference-pallas").get_kv_cache_shape(7, 5, 2, 8, KVLayout.KV_FIRST)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown attention backend 'trition'; did you mean triton or triton-mla\?"):
        get_backend("trition")


def test_the_capability_table_says_what_each_can_do():
    rows = {row["backend"]: row for row in capability_table()}
    assert rows.keys() == BACKENDS.keys()
    assert rows["reference-flash-attn"]["block_sizes"] == "a multiple of 16"
    assert rows["reference-flash-attn"]["head_sizes"] == "a multiple of 8 up to 256"
    assert rows["reference-flashinfer"]["head_sizes"] == "64 or 128 or 256"
    assert rows["triton"]["block_sizes"] == "any size"
    assert rows["triton"]["layouts"] == "(2, NB, BS, KH, D) (NB, 2, BS, KH, D) (NB, BS, 2*KH, D)"
    assert rows["triton"]["dtypes"] == "float16 bfloat16 float32"
    latents = {"reference-mla", "reference-flash-mla", "triton-mla", "flash-mla"}
    assert {name for name, row in rows.items() if row["mla"] == "yes"} == latents
    assert rows["reference-flash-mla"]["default_block_size"] == "64"
    assert {name for name, row in rows.items() if row["sliding_window"] == "no"} == latents - {"reference-mla"}
    assert rows["triton-mla"]["block_sizes"] == "any size"
    assert rows["flash-attn-3"]["archs"] == "9.0 to below 10.0"
    assert rows["flash-attn-2"]["block_sizes"] == "a multiple of 256"
    assert rows["flashinfer"]["layouts"].startswith("(NB, 2, BS, KH, D) ")
    assert rows["flashinfer"]["dtypes"] == "float16 bfloat16"
    assert rows["pallas"]["layouts"] == "(NB, BS, 2*KH, D)"
    assert rows["pallas"]["dtypes"] == "float32 float16 bfloat16"
    assert {name for name, row in rows.items() if row["graphs"] == "own stream"} == {"pallas"}
    assert {name for name, row in rows.items() if row["graphs"] == "any lengths"} == {"triton", "triton-mla"}


@pytest.mark.parametrize(
    "rule,taken,refused,text",
    [
        (SizeRule(), (1, 7, 4096), (0, -1), "any size"),
        (SizeRule(maximum=256), (1, 256), (257,), "any size up to 256"),
        (SizeRule(multiple_of=16), (16, 48), (0, 8, 24), "a multiple of 16"),
        (SizeRule(only=(64, 128)), (64, 128), (32, 192), "64 or 128"),
    ],
)
def test_size_rules(rule, taken, refused, text):
    assert all(map(rule.allows, taken))
    assert not any(map(rule.allows, refused))
    assert str(rule) == text


@pytest.mark.parametrize(
    "name,config,block_size,dtype,message",
    [
        ("triton", LayerConfig(4, 2, 512, 1.0), 16, torch.float16, "head_size a multiple of 8 up to 256, got 512"),
        (
            "triton",
            LayerConfig(4, 2, 64, 1.0),
            16,
            torch.float64,
            "dtype float16 or bfloat16 or float32 or float8_e4m3fn, got float64",
        ),
        ("triton", LayerConfig(4, 1, 64, 1.0, kv_lora_rank=32), 16, torch.float16, "kv_lora_rank=0 .* got 32"),
        ("reference-mla", LayerConfig(4, 1, 64, 1.0), 16, torch.float16, "kv_lora_rank above 0 .* got 0"),
        ("reference-flash-attn", LayerConfig(4, 2, 64, 1.0), 8, torch.float16, "a multiple of 16, got 8"),
        ("reference-flashinfer", LayerConfig(4, 2, 80, 1.0), 16, torch.float16, "64 or 128 or 256, got 80"),
        ("reference", LayerConfig(4, 2, 64, 1.0), 0, torch.float16, "block_size any size, got 0"),
    ],
)
def test_a_layer_that_asks_for_more_is_refused(name, config, block_size, dtype, message):
    with pytest.raises(AttentionInputError, match=f"{name}: expected .*{message}"):
        allocate_kv_caches(get_backend(name), config, num_layers=1, num_blocks=2, block_size=block_size, dtype=dtype)


@pytest.mark.parametrize(
    "asks,message", [({"window": 9}, "window=0 .*got 9"), ({"soft_cap": 2.0}, "soft_cap=0 .*got 2")]
)
def test_flash_mla_has_neither_window_nor_cap(asks, message):
    config = LayerConfig(4, 1, 576, 1.0, kv_lora_rank=512, **asks)
    with pytest.raises(AttentionInputError, match=message):
        get_backend("reference-flash-mla").check_layer(config, 64, torch.bfloat16)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"num_heads": 3}, "multiple of the 2 KV heads, got 3"),
        ({"head_size": 0}, "head_size: expected a whole number of at least 1"),
        ({"kv_lora_rank": 65}, "head_size: expected at least kv_lora_rank=65, got 64"),
        ({"window": -1}, "window: expected"),
        ({"scale": 0.0}, "scale: expected"),
    ],
)
def test_layers_that_cannot_be(change, message):
    given = {"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "scale": 0.125}
    with pytest.raises(AttentionInputError, match=message):
        LayerConfig(**{**given, **change})


def test_each_layer_has_its_own_zeros_in_the_backends_shape():
    config = LayerConfig(4, 2, 64, 0.125)
    caches = allocate_kv_caches(
        get_backend("reference-flashinfer"), config, num_layers=3, num_blocks=5, block_size=16, dtype=torch.bfloat16
    )
    assert [(cache.shape, cache.dtype) for cache in caches] == [((5, 2, 16, 2, 64), torch.bfloat16)] * 3
    assert len({cache.data_ptr() for cache in caches}) == 3
    assert not any(cache.any() for cache in caches)


@pytest.mark.parametrize(
    "cache,message",
    [
        (torch.zeros(2, 5, 16, 2, 32), r"kv_cache: expected shape \[2, 5, 16, 2, 64\], got \[2, 5, 16, 2, 32\]"),
        (torch.zeros(5, 2, 16, 2, 64), r"expected shape \[2, 2, 16, 2, 64\], got \[5, 2, 16, 2, 64\]"),
        (torch.zeros(5, 16, 4, 64), r"kv_cache: expected 5 axes \(2, NB, BS, KH, D\), got 4"),
        (torch.zeros(2, 5, 16, 2, 64, dtype=torch.int8), "kv_cache: expected .*float16.*, got int8"),
        (torch.zeros(2, 5, 16, 64, 2).mT, "kv_cache: expected stride 1"),
    ],
)
def test_a_layer_takes_only_a_cache_of_its_shape(cache, message):
    with pytest.raises(AttentionInputError, match=message):
        AttentionLayer(get_backend("reference"), LayerConfig(4, 2, 64, 0.125), cache)


def test_the_package_imports_where_triton_is_not_installed():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from engine.attention import capability_table\n"
        "print({row['backend']: row['unavailable_because'] for row in capability_table()}['triton'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "triton is not installed"


def test_triton_says_why_it_cannot_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert get_backend("triton").unavailable_because() == "no CUDA device, and TRITON_INTERPRET=1 is not set"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert get_backend("triton").unavailable_because() == ""
