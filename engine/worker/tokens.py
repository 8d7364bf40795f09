"""Token ids of the requests: given, or derived from what a trace says of their content, and the sampled ones.

A trace tells lengths and perhaps which blocks are equal, but no tokens. Requests with equal content get equal tokens,
all others differ, and the same request has the same tokens in every run. Where another prompt holds a request's answer,
the answer is derived too and its tokens are forced, so that what the simulator finds in the cache is there.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.core.content import BlockIdContent, TokenContent
from engine.core.text_runs import RunContent

if TYPE_CHECKING:
    from engine.core.content import Content
    from engine.core.request import Request

Int64s = npt.NDArray[np.int64]


class RequestTokens:
    """One request's tokens: the prompt and what was sampled, known up to the last one."""

    __slots__ = ("_first", "_forcing", "kept", "limit", "prompt")

    def __init__(self, request: Request, vocab_size: int) -> None:
        """ValueError where the content knows fewer tokens than the prompt has, or ids outside the vocabulary."""
        content = request.content if isinstance(request.content, TokenContent) else None
        given = content is not None
        self.prompt = given_tokens(request, vocab_size) if given else derived_tokens(request, vocab_size)
        self.limit = request.num_stop_tokens
        """Outputs after which the request stops, if nothing stops it before."""
        if isinstance(request.content, RunContent) and request.content.shares_outputs:
            total = request.num_prompt_tokens + request.num_stop_tokens
            content = TokenContent(run_tokens(request, request.content, total, vocab_size).tolist())
        named = content is not None and len(content.tokens) > len(self.prompt)
        self._forcing = content if named else None
        self.kept: list[int] = content.tokens if content is not None and not named else []
        """Where sampled tokens are appended: the content's own list, which prefix caching hashes, if there is one."""
        self._first = len(self.kept)

    @property
    def forced(self) -> bool:
        """Whether the content names outputs, and `append` has to look."""
        return self._forcing is not None

    @property
    def num_outputs(self) -> int:
        """Tokens sampled so far."""
        return len(self.kept) - self._first

    @property
    def outputs(self) -> list[int]:
        """The tokens sampled so far, as a list of their own."""
        return self.kept[self._first :]

    def fork(self, num_outputs: int) -> RequestTokens:
        """Those of a sequence that has the prompt and the first outputs of this one, in a list of its own."""
        twin: RequestTokens = object.__new__(RequestTokens)
        twin.prompt, twin.limit = self.prompt, self.limit
        twin._forcing, twin._first = None, 0
        twin.kept = self.kept[self._first : self._first + num_outputs]
        return twin

    def follow(self, content: Content) -> None:
        """Keeps sampled tokens in this content's list from now on, if it has one: prefix caching hashes them.
        ValueError where it does not know the same tokens."""
        if not isinstance(content, TokenContent) or content.tokens is self.kept:
            return
        count = len(self.prompt)
        if content.tokens[count:] != self.outputs:
            raise ValueError(f"a fork goes on with {self.outputs}, and its content with {content.tokens[count:]}")
        self.kept, self._first = content.tokens, count

    def between(self, start: int, stop: int) -> Int64s:
        """Tokens at positions start to stop - 1."""
        count = len(self.prompt)
        if stop <= count:
            return self.prompt[start:stop]
        first = self._first
        outputs = np.array(self.kept[first + max(start - count, 0) : first + stop - count], np.int64)
        return outputs if start >= count else np.concatenate((self.prompt[start:], outputs))

    def append(self, token: int) -> int:
        """The token that follows: the sampled one, unless the content names another (teacher forcing: a recorded
        conversation)."""
        forcing = self._forcing
        if forcing is not None:
            known = len(self.prompt) + len(self.kept)
            if known < len(forcing.tokens):
                token = forcing.tokens[known]
            else:
                forcing.tokens.append(token)
        self.kept.append(token)
        return token


def given_tokens(request: Request, vocab_size: int) -> Int64s:
    """The prompt's token ids [num_prompt_tokens], as given; ValueError for too few or impossible ones."""
    content, count = request.content, request.num_prompt_tokens
    assert isinstance(content, TokenContent)
    tokens = np.array(content.tokens, np.int64)  # outputs that it names, too: they will be inputs
    if len(tokens) < count:
        raise ValueError(f"request {request.request_id!r}: {len(tokens)} tokens are given for a prompt of {count}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        bad = int(np.flatnonzero((tokens < 0) | (tokens >= vocab_size))[0])
        raise ValueError(
            f"request {request.request_id!r}: token {tokens[bad]} at position {bad} is outside a vocabulary of "
            f"{vocab_size}"
        )
    return tokens[:count]


def derived_tokens(request: Request, vocab_size: int) -> Int64s:
    """Prompt tokens [num_prompt_tokens] by content: equal where the content is, different by request elsewhere."""
    count, content = request.num_prompt_tokens, request.content
    if not content.shares_prompt:
        return _drawn(f"request {request.request_id!r}", count, vocab_size)
    assert isinstance(content, BlockIdContent | RunContent)
    return run_tokens(request, content, count, vocab_size)


def run_tokens(request: Request, content: BlockIdContent | RunContent, count: int, vocab_size: int) -> Int64s:
    """The first `count` tokens of prompt and answer, run by run; what no run covers is the request's own."""
    runs = content.runs(count)
    parts = [_drawn(f"text {text} from {start}", stop - start, vocab_size) for text, start, stop in runs]
    missing = count - (runs[-1].stop if runs else 0)
    return np.concatenate([*parts, _drawn(f"request {request.request_id!r} tail", missing, vocab_size)])


def _drawn(name: str, count: int, vocab_size: int) -> Int64s:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.Philox(key=seed)).integers(0, vocab_size, count)
