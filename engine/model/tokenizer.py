"""Text to token ids and back, by the `tokenizers` package, which runs what a model's tokenizer.json describes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

_FILE = "tokenizer.json"
NOT_INSTALLED = "no tokenizer: the package tokenizers is not installed"


class Tokenizer:
    """One model's tokens."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included; a model's own vocabulary may be padded beyond it."""
        size: int = self._inner.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens are those that the model wants around any text (often a first one)."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_id(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it; None if it has none such."""
        found: int | None = self._inner.token_to_id(token)
        return found


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("tokenizers") is not None


def tokenizer_of_folder(folder: Path) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer of a Hugging Face folder, or none and why.

    ValueError for a tokenizer.json that the package cannot read.
    """
    path = folder / _FILE
    if not path.is_file():
        return None, (f"no tokenizer: {folder} has no {_FILE}",)
    if not installed():
        return None, (NOT_INSTALLED,)
    import tokenizers

    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path))), ()
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path}: not a tokenizer that the package tokenizers reads: {error}") from error
