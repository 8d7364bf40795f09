"""What an executor knows of a step that was launched: whose tokens come of it, how they were sampled, where they go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from engine.core.request import Request
    from engine.worker.tokens import RequestTokens


class RowSampling(NamedTuple):
    """How one request samples; temperature 0: the likeliest token."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    """0: all tokens."""
    top_p: float = 1.0

    @property
    def filtered(self) -> bool:
        """Whether some tokens are left out."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0)


@dataclass(slots=True)
class Ran:
    """A step's sampled rows, and what is to be done with their tokens. Steps of the same rows share it."""

    requests: list[Request]
    tokens: list[RequestTokens]
    puts: list[Callable[[int], None]]
    """Where each row's token is kept, if nothing but keeping it is to be done; else empty."""
    sampled: npt.NDArray[np.int32]
    """The tokens, once the step has been waited for."""
    filtered: bool
    left: int
    """Steps before one of the requests has all its tokens."""
