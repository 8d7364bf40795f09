"""How many tokens a text has, by a named tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

WORDS: Final = "words"
ADVICE: Final = "say --tokenizer words (whitespace-separated) or the path of a Hugging Face tokenizer.json"


def token_counter(name: str | None, needed_for: str) -> Callable[[str], int]:
    """Counts tokens of a text, special ones included where the tokenizer adds them.

    `name` is 'words' or a file. Raises ValueError for anything else, with what to say instead.
    """
    if name is None:
        raise ValueError(f"tokenizer: {needed_for} holds texts, whose lengths depend on a tokenizer; {ADVICE}")
    if name == WORDS:
        return lambda text: len(text.split())
    if not Path(name).is_file():
        raise ValueError(f"tokenizer: {name!r} is no file; {ADVICE}")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError(
            f"tokenizer: reading {name} needs the package tokenizers (pip install tokenizers), or say --tokenizer words"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(name)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for a file it cannot read
        raise ValueError(f"tokenizer: {name} is no tokenizer.json ({error}); {ADVICE}") from None
    return lambda text: len(tokenizer.encode(text).ids)
