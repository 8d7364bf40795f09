"""How many tokens a text has, by a named tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from workloads.content import Content
from workloads.rows import TraceError

WORDS: Final = "words"
ADVICE: Final = "say --tokenizer words (whitespace-separated) or the path of a Hugging Face tokenizer.json"


def token_counter(content: Content, name: str | None) -> Callable[[str], int]:
    """Counts tokens of a text, special ones included where the tokenizer adds them.

    `name` is 'words' or a file. Raises TraceError for anything else, with what to say instead.
    """
    path = content.path
    if name is None:
        raise TraceError(f"{path}: holds texts, whose lengths depend on a tokenizer; {ADVICE}")
    if name == WORDS:
        return lambda text: len(text.split())
    if not Path(name).is_file():
        raise TraceError(f"{path}: the tokenizer {name!r} is no file; {ADVICE}")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        advice = "pip install tokenizers, or say --tokenizer words"
        raise TraceError(f"{path}: reading {name} needs the package tokenizers; {advice}") from None
    try:
        tokenizer = Tokenizer.from_file(name)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for a file it cannot read
        raise TraceError(f"{path}: {name} is no tokenizer.json ({error}); {ADVICE}") from None
    return lambda text: len(tokenizer.encode(text).ids)
