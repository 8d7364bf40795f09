"""The elements of one JSON array, however large: never more of it in memory than a few of them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Final

ENDS: Final = frozenset(" \t\n\r,]")
"""What follows an element."""
BLANK: Final = re.compile(r"[ \t\n\r]*")


def elements(chunks: Iterator[bytes]) -> Iterator[object]:
    """As `json.loads` would have them, one by one. Raises ValueError where it is found that this is no JSON array."""
    window = _Window(chunks)
    window.expect("[")
    more = window.mark() != "]"
    while more:
        yield window.value()
        more = window.mark() == ","
        if more:
            window.expect(",")
    window.expect("]")
    if window.mark():
        raise ValueError("more after the array")


class _Window:
    """A part of the text, and how far it is read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._decoder = chunks, codecs.getincrementaldecoder("utf-8")()
        self._decode = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0

    def mark(self) -> str:
        """The next character that is not blank, '' at the end."""
        while True:
            found = BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def expect(self, mark: str) -> None:
        """Go behind the next mark. Raises ValueError if it is another one."""
        if self.mark() != mark:
            raise ValueError(f"no {mark}")
        self._at += 1

    def value(self) -> object:
        """Go behind the next value. What has no end in the window may go on behind it: 1.5 begins as 1 does."""
        self.mark()
        while True:
            try:
                value, stop = self._decode(self._text, self._at)
            except ValueError:
                stop = len(self._text)
            if self._text[stop : stop + 1] in ENDS:
                self._at = stop
                return value
            if not self._grow():
                raise ValueError("no value")

    def _grow(self) -> bool:
        """Forget what is read, and double what is left: a large element is parsed again only a few times."""
        left = len(self._text) - self._at
        parts, added = [self._text[self._at :]], 0
        while added <= left:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(self._decoder.decode(chunk))
            added += len(parts[-1])
        self._text, self._at = "".join(parts), 0
        return added > 0
