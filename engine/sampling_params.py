"""What a caller asks of a generation: how to sample, and when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names, meanings and defaults of vLLM's `SamplingParams`. ValueError for values that cannot be."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0: always the likeliest token."""
    top_k: int = 0
    """Only the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability."""
    seed: int | None = None
    """Equal seeds give equal tokens, whatever else is generated beside; None: the engine's seed and the request's
    place in the call."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a completion, besides the model's own end-of-sequence tokens; the last token is kept."""
    ignore_eos: bool = False
    """Go on to `max_tokens`, whatever is sampled."""
    n: int = 1
    """Completions of each prompt; the prompt's blocks are shared through the prefix cache, as in vLLM."""

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("n", 1), ("top_k", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature: expected 0 or above, got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected above 0 and at most 1, got {self.top_p!r}")
        stop: object = self.stop
        if isinstance(stop, str):
            raise ValueError(f"stop: expected a tuple of texts, got the text {stop!r}: write ({stop!r},)")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop: expected texts that are not empty, got {self.stop!r}")
