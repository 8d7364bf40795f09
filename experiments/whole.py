"""Options that are whole numbers: cyclopts alone rounds 1.5 to 2 and says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def whole(kind: Any, tokens: Sequence[Token]) -> int | tuple[int, ...]:
    """One number, or as many as there are tokens where the option is a tuple."""
    numbers = tuple(_whole(token.value) for token in tokens)
    return numbers if "tuple" in str(kind) else numbers[0]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


Whole = Annotated[int, Parameter(converter=whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=whole)]
Wholes = Annotated[tuple[int, ...], Parameter(converter=whole)]
