"""What to say about the value of an option: its name, what it may be, what it was. A bool is no number here."""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.core.suggestion import unknown_name

MOST_SEED = (1 << 63) - 1
"""Of any seed: what 64 bits with a sign hold."""


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """ValueError for what is no whole number of `least` to `most`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and least <= value and (most is None or value <= most)):  # type: ignore[operator]
        end = "" if most is None else f" and at most {most}"
        raise ValueError(f"{name}: expected a whole number of at least {least}{end}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether it is finite and real, and no bool."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def check_number(name: str, value: object) -> None:
    """ValueError for what is no finite number."""
    if not is_number(value):
        raise ValueError(f"{name}: expected a number, got {value!r}")


def check_switch(name: str, value: object) -> None:
    """ValueError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r}")


def check_text(name: str, value: object, expected: str) -> None:
    """ValueError for what is no text, or an empty one. `expected`: what it may say."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


def check_choice(name: str, value: object, known: Iterable[str], what: str | None = None) -> None:
    """ValueError for what is not one of the texts `known`, with all of them and the nearest. `what`: what a text would
    name, if not what the option is called."""
    texts = list(known)
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected one of {', '.join(texts)}, got {value!r}")
    if value not in texts:
        said, known_are = str(unknown_name(what or name, value, texts)), f"known: {', '.join(sorted(texts))}"
        raise ValueError(said if said.endswith(known_are) else f"{said} ({known_are})")
