"""GGUF files, written by the gguf package: whole ones are read exactly, damaged ones refused with what and where."""

import struct
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model import architecture_of, load_model
from engine.model.gguf_header import read_header
from engine.model.names import gguf_names
from tests.engine.model.damage import CONFIG, named, same, weights_of

gguf = pytest.importorskip("gguf", reason="the gguf extra is not installed")
MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
QWEN2 = {**CONFIG, "model_type": "qwen2"}
QWEN3 = {**CONFIG, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}
BIASED = {**CONFIG, "attention_bias": True}
NAMES = sorted(named(CONFIG, weights_of(CONFIG), gguf_names))
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ġ"]
TOKENS = [*LETTERS, "th", "the", "Ġthe", *(f"<{n}>" for n in range(10))]


def interleaved(rows, num_heads):
    """llama.cpp's order: of each head rows 0, D/2, 1, D/2 + 1, ..."""
    size = len(rows) // num_heads
    order = [h * size + i + half * size // 2 for h in range(num_heads) for i in range(size // 2) for half in (0, 1)]
    return rows[order]


def tensors_of(config):
    """By GGUF's names, in llama.cpp's order."""
    found = named(config, weights_of(config), gguf_names)
    heads = {".attn_q.": config["num_attention_heads"], ".attn_k.": config["num_key_value_heads"]}
    for name, tensor in found.items() if config["model_type"] == "llama" else ():
        for part, count in heads.items():
            if part in name:
                found[name] = interleaved(tensor, count)
    return found


def write(path, config=CONFIG, tensors=None, kind="F32", extra=(), tokens=True):
    """A file as llama.cpp's converters write it; matrices in storage type `kind`."""
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10_000.0)
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(TOKENS)
        writer.add_token_types([1] * 30 + [3] * 10)
        writer.add_token_merges(["t h", "th e", "Ġ the"])
        writer.add_eos_token_id(30)
    for key, value in extra:
        getattr(writer, f"add_{type(value).__name__.replace('str', 'string').replace('int', 'uint32')}")(key, value)
    for name, tensor in (tensors_of(config) if tensors is None else tensors).items():
        stored = gguf.GGMLQuantizationType[kind if tensor.dim() > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(tensor.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a whole file, and where its tensors' data begin."""
    path = write(tmp_path_factory.mktemp("whole") / "whole.gguf")
    return path.read_bytes(), min(place.offset for place in read_header(path).tensors.values())


@pytest.mark.parametrize("config", [CONFIG, BIASED, QWEN2, QWEN3], ids=["llama", "llama-biased", "qwen2", "qwen3"])
def test_what_was_written_is_loaded_bit_by_bit(config, tmp_path):
    loaded = load_model(write(tmp_path / "a.gguf", config))
    assert same(loaded.weights, weights_of(config))
    a, expected = loaded.architecture, architecture_of(config, "here")
    assert (a.family, a.num_layers, a.head_size, a.tie_embeddings, a.qk_norm, a.attention_bias) == (
        expected.family,
        expected.num_layers,
        expected.head_size,
        expected.tie_embeddings,
        expected.qk_norm,
        expected.attention_bias,
    )
    assert (a.rope, a.max_model_len, a.eos_token_ids) == (expected.rope, expected.max_model_len, (30,))
    assert a.norm_eps == pytest.approx(expected.norm_eps)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_matrices_come_back_as_the_package_has_them(kind, tmp_path):
    loaded = load_model(write(tmp_path / "a.gguf", QWEN2, kind=kind))
    stored = gguf.GGMLQuantizationType[kind]
    for got, wrote in zip(loaded.weights.tensors(), weights_of(QWEN2).tensors(), strict=True):
        expected = wrote
        if wrote.dim() > 1:
            expected = torch.from_numpy(gguf.dequantize(gguf.quantize(wrote.numpy(), stored), stored))
            assert (expected - wrote).abs().max() < 0.25 * wrote.abs().max()
        assert torch.equal(got, expected)


def test_the_tokenizer_merges_as_the_metadata_say(tmp_path):
    loaded = load_model(write(tmp_path / "a.gguf"))
    ids = loaded.tokenizer.encode("the th the<3>a")
    assert [TOKENS[token] for token in ids] == ["the", "Ġ", "th", "Ġthe", "<3>", "a"]
    assert loaded.tokenizer.decode(ids) == "the th thea"
    assert loaded.tokenizer.decode(ids, skip_special_tokens=False) == "the th the<3>a"
    assert loaded.tokenizer.vocab_size == len(TOKENS)


def test_a_first_token_is_added_where_the_metadata_say_so(tmp_path):
    extra = [("tokenizer.ggml.bos_token_id", 31), ("tokenizer.ggml.add_bos_token", True)]
    tokenizer = load_model(write(tmp_path / "a.gguf", extra=extra)).tokenizer
    assert tokenizer.encode("a") == [31, 0]
    assert tokenizer.encode("a", add_special_tokens=False) == [0]


@pytest.mark.parametrize("what", ["none", "another"])
def test_a_model_whose_tokenizer_is_not_made_here_has_none_and_says_so(what, tmp_path):
    extra = [] if what == "none" else [("tokenizer.ggml.model", "llama")]
    loaded = load_model(write(tmp_path / "a.gguf", extra=extra, tokens=False))
    assert loaded.tokenizer is None
    assert "no tokenizer" in loaded.provenance.notes[0]


# damage ---------------------------------------------------------------------------------------------------------------


@MANY
@given(data=st.data())
def test_a_file_cut_off_anywhere_is_refused(data, whole, tmp_path):
    content, start = whole
    limit = data.draw(st.sampled_from([start, len(content)]))
    end = data.draw(st.integers(0, limit - 1))
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[:end])
    with pytest.raises(ValueError, match=r"cut.gguf: (not a GGUF file|.*truncated)"):
        load_model(path)


@MANY
@given(data=st.data())
def test_a_changed_header_is_refused_or_gives_a_model_of_the_same_shapes(data, whole, tmp_path):
    """Some changes are other models (another eps), none is an error of another kind, or a long loop."""
    content, start = whole
    # Mostly the numbers and lengths about the end, where tensors are described.
    place = data.draw(st.one_of(st.integers(0, start - 1), st.integers(start * 3 // 4, start - 1)))
    changed = bytearray(content)
    changed[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.gguf"
    path.write_bytes(changed)
    try:
        loaded = load_model(path)
    except ValueError as error:
        assert "changed.gguf" in str(error)  # noqa: PT017  either is right
    else:
        shapes = [tensor.shape for tensor in weights_of(CONFIG).tensors()]
        assert [tensor.shape for tensor in loaded.weights.tensors()] == shapes


@MANY
@given(name=st.sampled_from(NAMES))
def test_a_missing_weight_is_named(name, tmp_path):
    tensors = tensors_of(CONFIG)
    del tensors[name]
    if name == "output.weight":  # then it is tied, as GGUF says it
        assert load_model(write(tmp_path / "a.gguf", tensors=tensors)).architecture.tie_embeddings
        return
    with pytest.raises(ValueError, match=f"a.gguf: missing weight {name}, which"):
        load_model(write(tmp_path / "a.gguf", tensors=tensors))


def test_a_weight_of_another_shape_is_named_with_both_shapes(tmp_path):
    tensors = tensors_of(CONFIG) | {"blk.1.ffn_up.weight": torch.zeros(63, 32)}
    with pytest.raises(ValueError, match=r"weight blk.1.ffn_up.weight: expected shape \[64, 32\], got \[63, 32\]"):
        load_model(write(tmp_path / "a.gguf", tensors=tensors))


@pytest.mark.parametrize(
    "extra,message",
    [
        (("llama.expert_count", 8), "llama.expert_count=8: what this changes in a 'llama' model is not done here"),
        (("llama.attention.sliding_window", 16), "llama.attention.sliding_window=16"),
        (("llama.rope.scaling.type", "yarn"), r"stretched rotary positions \(yarn\) are not read"),
        (("llama.rope.dimension_count", 4), "expected rope.dimension_count to be the head size 8, got 4"),
    ],
)
def test_metadata_that_ask_for_what_is_not_done_here_are_refused(extra, message, tmp_path):
    with pytest.raises(ValueError, match=f"a.gguf: {message}"):
        load_model(write(tmp_path / "a.gguf", extra=[extra]))
    harmless = [("llama.expert_count", 0), ("llama.rope.scaling.type", "none"), ("llama.rope.dimension_count", 8)]
    assert same(load_model(write(tmp_path / "b.gguf", extra=harmless)).weights, weights_of(CONFIG))


def test_frequencies_that_the_file_brings_are_refused(tmp_path):
    tensors = tensors_of(CONFIG) | {"rope_freqs.weight": torch.ones(4)}
    with pytest.raises(ValueError, match="stretched rotary positions"):
        load_model(write(tmp_path / "a.gguf", tensors=tensors))


def test_another_architecture_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"architecture 'gemma' is not read from GGUF here; expected llama, qwen2, qwen"
    ):
        load_model(write(tmp_path / "a.gguf", {**CONFIG, "model_type": "gemma"}, tensors=tensors_of(CONFIG)))


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_another_version_is_refused(version, whole, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(whole[0][:4] + struct.pack("<I", version) + whole[0][8:])
    with pytest.raises(ValueError, match=f"at byte 8: expected GGUF version 2 or 3, got {version}"):
        load_model(path)


def test_a_storage_type_that_nobody_reads_is_refused(whole, tmp_path):
    content = bytearray(whole[0])
    place = content.index(b"blk.0.attn_norm.weight") + len(b"blk.0.attn_norm.weight") + 4 + 8
    assert content[place : place + 4] == struct.pack("<I", gguf.GGMLQuantizationType.F32)
    content[place : place + 4] = struct.pack("<I", 99)
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tensor blk.0.attn_norm.weight is stored as ggml type 99, which is not read"):
        load_model(path)


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pagelab\[gguf\]'"):
        load_model(path)
