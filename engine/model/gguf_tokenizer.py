"""The tokenizer that a GGUF file describes in its metadata, made of the parts of the `tokenizers` package.

Only byte-level BPE (`gpt2` in the metadata); how a text is cut before merging follows the name in
`tokenizer.ggml.pre`, with the patterns of the models' own tokenizer.json. Others give no tokenizer and a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from engine.model.gguf_header import GGUFHeader
from engine.model.tokenizer import NOT_INSTALLED, Tokenizer, installed

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = MappingProxyType({"llama-bpe": _WORDS % r"\p{N}{1,3}", "qwen2": _WORDS % r"\p{N}"})
_PRE = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm")


def tokenizer_of_gguf(header: GGUFHeader) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer of a file's metadata, or none and why.

    ValueError for metadata that describes one which cannot be: no tokens, or merges of tokens that are not there.
    """
    metadata = header.metadata
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or pre not in _PRE:
        return None, (f"no tokenizer: {model!r} with pre-tokenizer {pre!r} is not made here (gpt2: {', '.join(_PRE)})",)
    if not installed():
        return None, (NOT_INSTALLED,)
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise ValueError(f"{header.path}: expected lists tokenizer.ggml.tokens and .merges for a gpt2 tokenizer")
    kinds = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise ValueError(f"{header.path}: expected a tokenizer.ggml.token_type for each of {len(tokens)} tokens")
    try:
        return Tokenizer(_bpe(tokens, merges, kinds, pre, metadata)), ()
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{header.path}: tokenizer.ggml does not describe a tokenizer: {error}") from error


def _bpe(
    tokens: list[str], merges: list[str], kinds: list[int], pre: str, metadata: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers, processors

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe")  # whole words first, as Llama 3
    )
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = _pre_tokenizer(pre)
    made.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [token for token, of in zip(tokens, kinds, strict=True) if of == kind]
        made.add_tokens([tokenizers.AddedToken(token, normalized=False, special=special) for token in added])
    first = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and isinstance(first, int):
        name = tokens[first]
        made.post_processor = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, first)])
    return made


def _pre_tokenizer(pre: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    if pre in _PATTERNS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PATTERNS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    return words
