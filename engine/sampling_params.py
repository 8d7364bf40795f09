"""What a caller asks of a generation: how to sample, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.option_checks import MOST_SEED, check_switch, check_whole, is_number


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
    """Completions of each prompt; number i draws with seed + i."""

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("n", 1), ("top_k", 0)):
            check_whole(name, getattr(self, name), least, MOST)
        if self.seed is not None:
            check_whole("seed", self.seed, -MOST_SEED, MOST_SEED)
        if not (is_number(self.temperature) and 0 <= self.temperature <= MOST_TEMPERATURE):
            raise ValueError(f"temperature: expected a number of 0 to {MOST_TEMPERATURE:g}, got {self.temperature!r}")
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p: expected a number above 0 and at most 1, got {self.top_p!r}")
        check_switch("ignore_eos", self.ignore_eos)
        self._check_stops()

    def _check_stops(self) -> None:
        stop: object = self.stop
        if not isinstance(stop, tuple | list):
            raise ValueError(f"stop: expected a tuple of texts, got {stop!r}: write ({stop!r},)")
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop: expected texts that are not empty, got {stop!r}")
        ids: object = self.stop_token_ids
        if not isinstance(ids, tuple | list):
            raise ValueError(f"stop_token_ids: expected a tuple of token ids, got {ids!r}: write ({ids!r},)")
        for token in ids:
            check_whole("stop_token_ids", token, 0, MOST)


MOST = (1 << 31) - 1
"""Of anything that the device counts in 32 bits."""


MOST_TEMPERATURE = 1e6
