"""How many tokens a group may get: as many as its allocator would serve with the pool to itself.

There is one rule for that, `refuses_forever`, which the engine asks too. Here it is asked the other way round, as a
trace does not always say how many tokens a request wants at most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from engine.core.content import PrivateContent
from engine.core.group import Group
from engine.core.request import Request

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator

Room = Callable[[int, int], int]
"""(prompt tokens, true output tokens) to most output tokens; below 1 where nothing fits."""


def room_of_groups(allocator: KVAllocator, max_model_len: int, width: int) -> Room:
    """For groups of `width` sequences; O(log max_model_len) questions for each pair of lengths."""
    content = PrivateContent()

    def fits(prompt: int, output: int, max_tokens: int) -> bool:
        probe = Request("probe", prompt, max_tokens, oracle_output_tokens=output, content=content)
        probe.group = Group((probe,) * width)
        return allocator.refuses_forever(probe) is None

    @cache
    def room(prompt: int, output: int) -> int:
        """More tokens never need less memory, so that halving finds the last number that fits."""
        low, high = 0, max(max_model_len - prompt, 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(prompt, output, middle) else (low, middle - 1)
        return low

    return lambda prompt, output: room(prompt, output) if prompt < max_model_len else max_model_len - prompt
