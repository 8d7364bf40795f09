"""What may be told of where things came from: names of files, never the folders around them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def name_only(word: str) -> str:
    """Absolute paths, also behind `=` or `:`, become their last part."""
    for mark in ("=", ":"):
        head, found, tail = word.rpartition(mark)
        if Path(tail).is_absolute():
            return head + found + Path(tail).name
    return word


def without_folders(value: Any) -> Any:
    """The same structure with every absolute path in its texts cut down to its last part."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    if isinstance(value, str):
        return " ".join(name_only(word) for word in value.split(" "))
    return value
