"""Tokenizers of folders and of GGUF metadata."""

import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from engine.model import load_model
from engine.model.gguf_header import GGUFHeader
from engine.model.gguf_tokenizer import tokenizer_of_gguf
from tests.engine.model.damage import save_folder

tokenizers = pytest.importorskip("tokenizers")
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def saved(folder):
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"<s>": 0, "a": 1, "b": 2, "ab": 3}, merges=[("a", "b")]))
    made.add_special_tokens(["<s>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(save_folder(folder) / "tokenizer.json"))
    return folder


def test_a_folders_tokenizer_is_the_one_of_its_tokenizer_json(tmp_path):
    tokenizer = load_model(saved(tmp_path)).tokenizer
    assert tokenizer.encode("aba") == [0, 3, 1]
    assert tokenizer.encode("aba", add_special_tokens=False) == [3, 1]
    assert tokenizer.decode([0, 3], skip_special_tokens=False).replace(" ", "") == "<s>ab"
    assert tokenizer.decode([0, 3]) == "ab"
    assert (tokenizer.vocab_size, tokenizer.token_id("ab"), tokenizer.token_id("ba")) == (4, 3, None)


def test_a_folder_without_one_has_none_and_says_so(tmp_path):
    loaded = load_model(save_folder(tmp_path))
    assert loaded.tokenizer is None
    assert loaded.provenance.notes == (f"no tokenizer: {tmp_path} has no tokenizer.json",)


def test_without_the_package_there_is_none_and_it_says_so(tmp_path, monkeypatch):
    folder = saved(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    loaded = load_model(folder)
    assert loaded.tokenizer is None
    assert loaded.provenance.notes == ("no tokenizer: the package tokenizers is not installed",)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    (saved(tmp_path) / "tokenizer.json").write_text('{"model": {"type": "None"}}')
    with pytest.raises(ValueError, match=r"tokenizer.json: not a tokenizer that the package tokenizers reads"):
        load_model(tmp_path)


def header(pre, merges, **more):
    tokens = [*ALPHABET, *("".join(merge.split(" ")) for merge in merges), "<end>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
    }
    return GGUFHeader(Path("a.gguf"), MappingProxyType(metadata | more), MappingProxyType({}), 0)


@pytest.mark.parametrize(
    "pre,digits",
    [
        ("default", ["0", "123"]),
        ("gpt-2", ["0", "123"]),
        ("llama-bpe", ["0", "12", "3"]),
        ("qwen2", ["0", "1", "2", "3"]),
        ("smollm", ["0", "1", "2", "3"]),
    ],
)
def test_numbers_are_cut_as_the_named_pre_tokenizer_cuts_them(pre, digits):
    tokenizer, notes = tokenizer_of_gguf(header(pre, ["1 2", "12 3"]))
    assert notes == ()
    assert [tokenizer.decode([token]) for token in tokenizer.encode("0123")] == digits
    for text in ("  Hé, don't\n\n 3.14\t漢字 🙂 ", "x<end>y", ""):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.decode(tokenizer.encode("x<end>y")) == "xy"


def test_whole_words_go_before_merges_where_llama_3_has_it_so():
    words = ["o k", "k a", "o ka"]  # oka is a token, but merging o and k first never gets there
    for pre, count in (("llama-bpe", 1), ("gpt-2", 2)):
        tokenizer, _ = tokenizer_of_gguf(header(pre, words))
        assert len(tokenizer.encode("oka")) == count


def test_qwen_composes_letters_and_accents_first():
    tokenizer, _ = tokenizer_of_gguf(header("qwen2", []))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"


@pytest.mark.parametrize(
    "change,message",
    [
        ({"tokenizer.ggml.tokens": 3}, "expected lists tokenizer.ggml.tokens and .merges"),
        ({"tokenizer.ggml.merges": None}, "expected lists"),
        ({"tokenizer.ggml.token_type": [1]}, "a tokenizer.ggml.token_type for each of 259 tokens"),
        ({"tokenizer.ggml.merges": ["1 2", "no such"]}, "does not describe a tokenizer"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 10**6}, "does not describe a tokenizer"),
    ],
)
def test_metadata_that_describe_no_tokenizer_are_refused(change, message):
    with pytest.raises(ValueError, match=f"a.gguf: .*{message}"):
        tokenizer_of_gguf(header("gpt-2", ["1 2", "12 3"], **change))


@pytest.mark.parametrize("change", [{"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "tekken"}])
def test_another_kind_of_tokenizer_is_none_with_a_note(change):
    tokenizer, notes = tokenizer_of_gguf(header("gpt-2", [], **change))
    assert tokenizer is None
    assert notes[0].startswith("no tokenizer: ")
