"""Shares of a model: together they are the whole of it, each computes its part, and only that part is read."""

import json
from dataclasses import fields
from importlib import import_module

import pytest
import torch

from engine.model import architecture_of, load_model, random_weights
from engine.model.safetensors_file import SafetensorsFolder
from engine.model.share import WHOLE, Share
from engine.model.weights import LayerWeights
from tests.engine.model.damage import CONFIG, same, save_folder, weights_of
from tests.engine.model.test_architecture import LLAMA, OPT, QWEN3

drawing = import_module("engine.model.random_weights")  # the package has a function of that name
BIASES = {**LLAMA, "attention_bias": True, "mlp_bias": True}


def sizes(config):
    """A model of four query heads and two KV heads, whose vocabulary no number of ranks divides."""
    kv = {} if config["model_type"] == "opt" else {"num_key_value_heads": 2}
    inner = "ffn_dim" if config["model_type"] == "opt" else "intermediate_size"
    return {**config, "num_attention_heads": 4, **kv, inner: 24, "vocab_size": 97}


def drawn(config, share=WHOLE, seed=2):
    return random_weights(architecture_of(sizes(config), "here"), seed=seed, dtype=torch.float32, share=share)


def put_together(a, whole, parts):
    """Every tensor of `parts`, a rank each, where it belongs; what several ranks have must be the same."""
    for name in ("embedding", "lm_head", "final_norm"):
        yield getattr(whole, name), gathered(a, name, getattr(whole, name).shape, [getattr(p, name) for p in parts])
    for number, layer in enumerate(whole.layers):
        for field in fields(LayerWeights):
            value = getattr(layer, field.name)
            if value is not None:
                own = [getattr(part.layers[number], field.name) for part in parts]
                yield value, gathered(a, field.name, value.shape, own)


def gathered(a, field, shape, tensors):
    found = torch.full(shape, float("nan"))
    for rank, tensor in enumerate(tensors):
        place = Share(rank, len(tensors)).placement(a, field, tuple(shape))
        assert tuple(tensor.shape) == place.shape(tuple(shape))
        at = 0
        for start, stop in place.ranges:
            target, values = found.narrow(place.axis, start, stop - start), tensor.narrow(place.axis, at, stop - start)
            assert (target.isnan() | (target == values)).all()
            target.copy_(values)
            at += stop - start
        assert not tensor.narrow(place.axis, at, tensor.shape[place.axis] - at).any()
    return found


@pytest.mark.parametrize("chunk", [1 << 22, 100], ids=["one chunk", "chunks that shares cut"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("config", [LLAMA, BIASES, QWEN3, OPT], ids=["llama", "biases", "qwen3", "opt"])
def test_the_shares_of_drawn_weights_are_the_weights_that_one_rank_draws(config, size, chunk, monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", chunk)
    a, whole = architecture_of(sizes(config), "here"), drawn(config)
    parts = [drawn(config, Share(rank, size)) for rank in range(size)]
    for expected, found in put_together(a, whole, parts):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not same(whole, drawn(config, seed=3))


@pytest.mark.parametrize("config", [BIASES, OPT], ids=["llama", "opt"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_loads_its_share_of_a_checkpoint_and_reads_no_whole_matrix(config, size, tmp_path, monkeypatch):
    config = sizes(config)
    whole = save_folder(tmp_path, config) and weights_of(config)
    a, read = architecture_of(config, "here"), SafetensorsFolder.read
    asked = []
    monkeypatch.setattr(SafetensorsFolder, "read", lambda self, name: (asked.append(name), read(self, name))[1])
    parts = [load_model(tmp_path, dtype=torch.float32, share=Share(rank, size)).weights for rank in range(size)]
    for expected, found in put_together(a, whole, parts):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    cut = ("q_proj", "o_proj", "out_proj", "gate_proj", "up_proj", "fc1", "fc2", "down_proj", "embed_tokens", "lm_head")
    wholly = {name for name in asked if name.split(".")[-2] in cut and not name.endswith("bias")}
    assert wholly == set()


def test_a_share_says_how_many_bytes_its_weights_take():
    a = architecture_of(sizes(BIASES), "here")
    for size in (1, 2, 4):
        for rank in range(size):
            made = drawn(BIASES, Share(rank, size))
            assert Share(rank, size).weights_bytes(a, torch.float32) == made.num_bytes


def test_heads_of_a_rank_read_the_keys_that_it_has():
    a = architecture_of({**sizes(LLAMA), "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4}, "here")
    shape = (a.qkv_size, a.hidden_size)
    for rank in range(8):
        local = Share(rank, 8).architecture(a)
        assert (local.num_heads, local.num_kv_heads) == (1, 1)
        q, k, v = Share(rank, 8).placement(a, "qkv", shape).ranges
        key = rank // 4  # eight query heads over two KV heads
        assert (q, k, v) == (
            (4 * rank, 4 * rank + 4),
            (32 + 4 * key, 36 + 4 * key),
            (40 + 4 * key, 44 + 4 * key),
        )


@pytest.mark.parametrize(
    "size,change,message",
    [
        (3, {}, "tensor_parallel_size=3: 4 query heads cannot be divided evenly"),
        (2, {"num_attention_heads": 6, "num_key_value_heads": 3}, "3 KV heads can be neither divided nor repeated"),
        (4, {"intermediate_size": 30}, "an MLP of 30 cannot be divided evenly"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_before_anything_is_made(size, change, message):
    a = architecture_of({**sizes(LLAMA), "head_dim": 8, **change}, "here")
    with pytest.raises(ValueError, match=message):
        Share(0, size).check(a)


def test_every_token_is_on_exactly_one_rank():
    for vocab_size in (1, 5, 97, 128):
        for size in (1, 2, 3, 8):
            ids = [token for rank in range(size) for token in Share(rank, size).vocabulary(vocab_size)]
            assert ids == list(range(vocab_size))


def test_a_checkpoint_is_checked_whole_by_every_rank(tmp_path):
    save_folder(tmp_path, {**CONFIG, "num_hidden_layers": 1})
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="missing weight"):
        load_model(tmp_path, share=Share(1, 2))
