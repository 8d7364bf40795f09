"""When a completion ends before its length: end-of-sequence tokens, stop tokens, stop texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer
    from engine.sampling_params import SamplingParams

BYTES_PER_CHARACTER = 4
"""A token may be a single byte of a character."""


class Stopping:
    """Knows a model's end-of-sequence tokens and how its tokens read."""

    def __init__(self, eos_token_ids: Sequence[int], tokenizer: Tokenizer | None) -> None:
        self._eos = frozenset(eos_token_ids)
        self._tokenizer = tokenizer

    def check(self, params: SamplingParams) -> None:
        """ValueError where stop texts are asked for and nobody can tell how tokens read."""
        if params.stop and self._tokenizer is None:
            raise ValueError(f"stop: the model has no tokenizer to find {params.stop[0]!r} with: use stop_token_ids")

    def stops(self, tokens: Sequence[int], params: SamplingParams) -> bool:
        """Whether the last of a completion's tokens ends it."""
        last = tokens[-1]
        if last in params.stop_token_ids or (last in self._eos and not params.ignore_eos):
            return True
        return bool(params.stop) and self._at_stop_text(tokens, params.stop)

    def _at_stop_text(self, tokens: Sequence[int], stop: Sequence[str]) -> bool:
        """Looks only as far back as a stop text can reach that the last token completes: further where tokens read as
        nothing."""
        assert self._tokenizer is not None
        longest = max(map(len, stop))
        reach = BYTES_PER_CHARACTER * (longest + 1)
        while True:
            # An end that is not a whole character yet reads as U+FFFD.
            tail = self._tokenizer.decode(list(tokens[-reach:])).rstrip("\ufffd")
            if len(tail) > longest or reach >= len(tokens):
                return any(text in tail for text in stop)
            reach *= 2

    def finish(self, tokens: Sequence[int], params: SamplingParams) -> tuple[str, str]:
        """(text, finish reason) of a completion that has ended; its text ends before the first stop text."""
        reason = "stop" if self.stops(tokens, params) else "length"
        if self._tokenizer is None:
            return "", reason
        text = self._tokenizer.decode(list(tokens))
        cuts = [at for stop in params.stop if (at := text.find(stop)) >= 0]
        return text[: min(cuts)] if cuts else text, reason
