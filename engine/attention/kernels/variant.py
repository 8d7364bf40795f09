"""A kernel with what is compiled into it: a row of the table of resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By Triton's names."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel and what is compiled into it."""

    kernel: Any
    """The @triton.jit function."""
    dtype: str
    """Triton's name of the type of Q, K and V: fp16, bf16."""
    options: tuple[tuple[str, Any], ...]
    """Constexprs, num_warps and num_stages by name."""

    @classmethod
    def of(cls, kernel: Any, dtype: str, options: dict[str, Any]) -> Variant:
        """Hashable, to find each once."""
        return cls(kernel, dtype, tuple(options.items()))
