"""Hugging Face folders: whole ones are read exactly, damaged ones refused with what is wrong and where."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model import architecture_of, load_model
from engine.model.names import hugging_face_names
from engine.model.stored import load_weights
from tests.engine.model.damage import CONFIG, named, same, save_folder, weights_of
from tests.engine.model.test_architecture import DEEPSEEK, OPT, QWEN3

NAMES = sorted(named(CONFIG, weights_of(CONFIG)))
MANY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a whole file."""
    return (save_folder(tmp_path_factory.mktemp("whole")) / "model.safetensors").read_bytes()


@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, "attention_bias": True, "mlp_bias": True}, QWEN3, DEEPSEEK, OPT])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_saved_is_loaded_bit_by_bit(config, shards, tmp_path):
    save_folder(tmp_path, config, shards=shards)
    loaded = load_model(tmp_path, dtype=torch.float32)
    assert same(loaded.weights, weights_of(config))
    assert loaded.architecture == architecture_of(config, "here")
    assert loaded.provenance.kind == "safetensors"
    assert [size for _, size in loaded.provenance.files] == [
        path.stat().st_size for path in sorted(tmp_path.glob("*.safetensors"))
    ]


def test_weights_come_in_the_type_asked_for_or_the_models_own(tmp_path):
    save_folder(tmp_path, {**CONFIG, "torch_dtype": "bfloat16"})
    own, wide = load_model(tmp_path).weights, load_model(tmp_path, dtype=torch.float32).weights
    assert {tensor.dtype for tensor in own.tensors()} == {torch.bfloat16}
    assert all(torch.equal(a, b.bfloat16()) for a, b in zip(own.tensors(), wide.tensors(), strict=True))


def test_names_without_the_first_part_as_a_bare_model_saves_them_are_understood(tmp_path):
    tensors = {name.removeprefix("model."): tensor for name, tensor in named(CONFIG, weights_of(CONFIG)).items()}
    save_folder(tmp_path, CONFIG, tensors)
    assert same(load_model(tmp_path).weights, weights_of(CONFIG))


def test_with_a_seed_the_weights_are_drawn_whatever_the_folder_has(tmp_path):
    save_folder(tmp_path)
    drawn = load_model(tmp_path, seed=3)
    assert same(drawn.weights, weights_of(CONFIG, seed=3))
    (tmp_path / "model.safetensors").unlink()
    assert same(load_model(tmp_path, seed=3).weights, drawn.weights)


def test_the_ends_of_a_text_come_from_the_generation_config_first(tmp_path):
    save_folder(tmp_path, {**CONFIG, "eos_token_id": 1})
    assert load_model(tmp_path).architecture.eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert load_model(tmp_path).architecture.eos_token_ids == (2, 3)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ValueError, match=r"generation_config.json: expected token ids as eos_token_id, got 'x'"):
        load_model(tmp_path)


# damage ---------------------------------------------------------------------------------------------------------------


@MANY
@given(name=st.sampled_from(NAMES))
def test_a_missing_weight_is_named(name, tmp_path):
    tensors = named(CONFIG, weights_of(CONFIG))
    del tensors[name]
    save_folder(tmp_path, CONFIG, tensors)
    with pytest.raises(ValueError, match=f"{tmp_path}: missing weight {name}, which a llama model of 2 layers needs"):
        load_model(tmp_path)


@MANY
@given(name=st.sampled_from(NAMES), axis=st.integers(0, 1), by=st.sampled_from([-1, 1]))
def test_a_weight_of_another_shape_is_named_with_both_shapes(name, axis, by, tmp_path):
    tensors = named(CONFIG, weights_of(CONFIG))
    shape = list(tensors[name].shape)
    expected = str(shape)
    shape[axis % len(shape)] += by
    tensors[name] = torch.zeros(shape)
    save_folder(tmp_path, CONFIG, tensors)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load_model(tmp_path)
    assert f"weight {name}: expected shape {expected}, got {shape}" in str(caught.value)


def test_many_missing_weights_are_counted(tmp_path):
    save_folder(tmp_path, CONFIG, {NAMES[0]: torch.zeros(1)})
    with pytest.raises(ValueError, match=f"missing weight .* and {len(NAMES) - 4} more, which"):
        load_model(tmp_path)


def test_a_weight_that_the_architecture_has_no_use_for_is_refused(tmp_path):
    extra = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    save_folder(tmp_path, CONFIG, named(CONFIG, weights_of(CONFIG)) | extra)
    with pytest.raises(ValueError, match=r"weight model.layers.0.self_attn.q_proj.bias, which .* has no use for"):
        load_model(tmp_path)
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    save_folder(tmp_path, CONFIG, named(CONFIG, weights_of(CONFIG)) | tables)
    assert same(load_model(tmp_path).weights, weights_of(CONFIG))


def test_a_second_copy_of_a_tied_head_must_be_the_embedding(tmp_path):
    tied = {**CONFIG, "tie_word_embeddings": True}
    tensors = named(tied, weights_of(tied))
    save_folder(tmp_path, tied, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    loaded = load_model(tmp_path)
    assert loaded.weights.lm_head is loaded.weights.embedding
    save_folder(tmp_path, tied, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1})
    with pytest.raises(ValueError, match=r"lm_head.weight is not model.embed_tokens.weight"):
        load_model(tmp_path)


def test_nothing_is_read_before_all_names_and_shapes_are_right():
    class Fake:
        where = "here"

        def shapes(self):
            return {name: tuple(t.shape) for name, t in named(CONFIG, weights_of(CONFIG)).items() if name != NAMES[-1]}

        def read(self, name):
            raise AssertionError(f"read {name}")

    a = architecture_of(CONFIG, "here")
    with pytest.raises(ValueError, match=f"here: missing weight {NAMES[-1]}"):
        load_weights(a, hugging_face_names, Fake(), dtype=torch.float32, device="cpu")


@MANY
@given(data=st.data())
def test_a_file_cut_off_anywhere_is_refused(data, whole, tmp_path):
    save_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match=r"model.safetensors: not a whole safetensors file"):
        load_model(tmp_path)


@MANY
@given(data=st.data())
def test_a_changed_header_is_refused_or_changes_nothing(data, whole, tmp_path):
    save_folder(tmp_path)
    length = 8 + int.from_bytes(whole[:8], "little")
    place, value = data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, 255))
    (tmp_path / "model.safetensors").write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
    try:
        loaded = load_model(tmp_path)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = str(tmp_path) if same(loaded.weights, weights_of(CONFIG)) else "other weights were loaded"
    assert str(tmp_path) in refusal


def test_a_missing_shard_is_named(tmp_path):
    save_folder(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"missing shard model-00002-of-00003.safetensors, .*\(3 in all\)"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda _: "{", "is not JSON"),
        (lambda _: "[]", "expected a JSON object, got list"),
        (lambda _: "{}", "expected weight_map with a file for each weight, got None"),
        (lambda index: json.dumps({"weight_map": {NAMES[0]: 3}}), "expected weight_map"),
        (lambda index: json.dumps({"weight_map": {NAMES[0]: "../x.safetensors"}}), "expected names of files beside it"),
        (
            lambda index: json.dumps({"weight_map": {**index, NAMES[0]: index[NAMES[1]]}}),
            f"{NAMES[0]} is not in model-00002-of-00002.safetensors, where model.safetensors.index.json puts it",
        ),
    ],
)
def test_a_damaged_index_is_refused(change, message, tmp_path):
    path = save_folder(tmp_path, shards=2) / "model.safetensors.index.json"
    path.write_text(change(json.loads(path.read_text())["weight_map"]))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_a_weight_in_two_shards_is_refused(tmp_path):
    save_folder(tmp_path, shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match=r"is in model-00001-of-00002.safetensors as well"):
        load_model(tmp_path)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_a_pickled_checkpoint_is_refused_and_never_opened(suffix, tmp_path):
    file = save_folder(tmp_path) / f"pytorch_model{suffix}"
    (tmp_path / "model.safetensors").unlink()
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "went-off")))
    for source in (tmp_path, file):
        with pytest.raises(ValueError, match=f"pytorch_model{suffix}: a pickled checkpoint.*convert it to safetensors"):
            load_model(source)
    assert not (tmp_path / "went-off").exists()
    pickle.loads(file.read_bytes())
    assert (tmp_path / "went-off").exists(), "the bomb is none"


def test_quantised_weights_are_refused(tmp_path):
    tensors = named(CONFIG, weights_of(CONFIG))
    tensors[NAMES[0]] = tensors[NAMES[0]].to(torch.int8)
    save_folder(tmp_path, CONFIG, tensors)
    with pytest.raises(ValueError, match=f"weight {NAMES[0]} is stored as I8; expected one of BF16, F16, F32, F64"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "content,message",
    [
        (None, "no config.json; expected a folder with it"),
        ("{", "config.json is not JSON"),
        ("[]", "config.json: expected a JSON object, got list"),
        ('{"model_type": "bert"}', "config.json: unknown architecture .*'bert'"),
    ],
)
def test_a_folder_without_a_usable_config_is_refused(content, message, tmp_path):
    save_folder(tmp_path)
    path = tmp_path / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError, match=f"{tmp_path}.*{message}"):
        load_model(tmp_path)


def test_a_folder_without_weights_or_with_too_many_is_refused(tmp_path):
    file = save_folder(tmp_path) / "model.safetensors"
    other = file.rename(tmp_path / "other.safetensors")
    assert same(load_model(tmp_path).weights, weights_of(CONFIG))
    (tmp_path / "third.safetensors").write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match=r"2 safetensors files, but neither"):
        load_model(tmp_path)
    other.unlink()
    (tmp_path / "third.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no weights; expected model.safetensors"):
        load_model(tmp_path)


def test_what_is_no_model_is_refused_with_what_would_be_one(tmp_path):
    with pytest.raises(ValueError, match=r"unknown model \(neither .*\) 'llama-3-8'; did you mean llama-3-8b"):
        load_model("llama-3-8")
    with pytest.raises(ValueError, match=r"none.gguf: no such file"):
        load_model(tmp_path / "none.gguf")
