"""How many tokens a contiguous allocation asks for: the reservations of Orca as the paper simulates it, and others.

Sources: SOSP'23 section 6.1 and the artifact's length estimators. `max`, `pow2` and `oracle` never grow, so they are
never refused later and never preempt; `chunk(n)` takes n tokens at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine.core.request import Request


class Reserve(NamedTuple):
    """A reservation rule: tokens to ask for, given the request, the tokens wanted now and `max_model_len`."""

    name: str
    ask: Callable[[Request, int, int], int]
    chunk_tokens: int
    """Tokens by which it grows; 0 if everything is asked for at admission."""


def _ask_max(request: Request, num_tokens: int, max_model_len: int) -> int:
    return max_model_len


def _ask_limit(request: Request, num_tokens: int, max_model_len: int) -> int:
    return min(request.num_prompt_tokens + request.max_tokens, max_model_len)


def _ask_pow2(request: Request, num_tokens: int, max_model_len: int) -> int:
    """The artifact rounds the true output length up to a power of two (25 -> 32)."""
    estimate: int = 1 << (request.num_stop_tokens - 1).bit_length()
    return min(request.num_prompt_tokens + estimate, max_model_len)


def _ask_oracle(request: Request, num_tokens: int, max_model_len: int) -> int:
    return min(request.num_prompt_tokens + request.num_stop_tokens, max_model_len)


def _chunk(size: int) -> Reserve:
    def ask(request: Request, num_tokens: int, max_model_len: int) -> int:
        return min(-(-num_tokens // size) * size, max_model_len)

    return Reserve(f"chunk({size})", ask, size)


_RULES = {"max": _ask_max, "limit": _ask_limit, "pow2": _ask_pow2, "oracle": _ask_oracle}


def parse_reserve(text: str, block_size: int) -> Reserve:
    """`max`, `limit`, `pow2`, `oracle` or `chunk(n)` with n a multiple of the block size; ValueError otherwise."""
    if text in _RULES:
        return Reserve(text, _RULES[text], 0)
    head, _, tail = text.partition("(")
    if head == "chunk" and tail.endswith(")") and tail[:-1].strip().isdigit():
        size = int(tail[:-1])
        if size < 1 or size % block_size:
            raise ValueError(f"reserve chunk({size}) must be a positive multiple of block_size={block_size}")
        return _chunk(size)
    raise ValueError(f"unknown reserve {text!r}: use one of {', '.join(_RULES)} or chunk(n)")
