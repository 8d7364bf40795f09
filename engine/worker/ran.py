"""What an executor knows of a step that was launched: whose tokens come of it, how they were sampled, where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from engine.core.request import Request
    from engine.worker.tokens import RequestTokens


SAMPLING_DTYPES = {"temperature": np.float32, "seeds": np.int64, "top_k": np.int32, "top_p": np.float32}
"""Of `RowSampling`'s fields, in order, under the names that they have as tensors (`engine.model.sampling`)."""


class RowSampling(NamedTuple):
    """How one request samples; temperature 0: the likeliest token."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    """0: all tokens."""
    top_p: float = 1.0

    @classmethod
    def columns(cls, rows: Sequence[RowSampling]) -> list[npt.NDArray[np.generic]]:
        """Field by field, as the device has them (see `SAMPLING_DTYPES`)."""
        return [np.array([row[i] for row in rows], dtype) for i, dtype in enumerate(SAMPLING_DTYPES.values())]

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
    beams: bool = False
    """Whether beams are among them, whose tokens a search chooses."""
